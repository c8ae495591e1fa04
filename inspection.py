"""The planned kernels of a bundle's engines as tables: what runs, in which types, for which ONNX nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import table
from .core.bundle import Bundle
from .core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from .engines.kernel import Kernel, TensorInfo
    from .engines.layers_file import LayersFile


@dataclass(frozen=True, slots=True)
class PlanView:
    """Some kernels of one engine. block: the block they belong to, None for the whole engine."""

    title: str
    layers: "LayersFile"
    kernels: "tuple[Kernel, ...]"
    block: int | None

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON types."""
        from dataclasses import asdict

        return {
            "engine": self.title,
            "runtime": self.layers.runtime,
            "source": self.layers.source,
            "num_blocks": self.layers.num_blocks,
            "device_kernels": self.layers.device_kernels,
            "kernels_per_block": self.layers.kernels_per_block,
            "dtypes": self.layers.dtypes,
            "block": self.block,
            "kernels": [
                asdict(kernel) | {"dtype": kernel.dtype, "on_device": kernel.on_device}
                for kernel in self.kernels
            ],
        }


def inspect(
    path: Path,
    *,
    targets: Sequence[str] | None = None,
    precision: str | None = None,
    block: int | None = None,
    every: bool = False,
) -> list[PlanView]:
    """The engines of the bundle (or the one layers.json) at `path`, one view each.

    targets, precision: only these. block: the kernels of this block, None for the middle one; every: all
    kernels. Raises ArtefactError for a file that does not fit, UsageError when nothing is left to show.
    """
    from .engines.layers_file import load_layers

    if path.is_file():
        return [_view(path.name, load_layers(path), block, every)]
    bundle = Bundle.open(path)
    engines = [
        (variant.precision, engine)
        for variant in bundle.manifest.variants
        for engine in variant.engines
        if engine.layers is not None
    ]
    chosen = [
        (name, engine)
        for name, engine in engines
        if (not targets or engine.target in targets) and precision in (None, name)
    ]
    if not chosen:
        has = ", ".join(f"{name} {engine.target}" for name, engine in engines) or "no engine"
        raise UsageError(
            f"engines of {path}", found="none fits the choice", fix=f"The bundle has {has}"
        )
    return [
        _view(f"{name} {engine.target}", load_layers(bundle.file(str(engine.layers))), block, every)
        for name, engine in chosen
    ]


def render(views: Sequence[PlanView]) -> "Group":
    """The views as tables."""
    from rich.console import Group

    return Group(*(_table(view) for view in views))


def _view(title: str, layers: "LayersFile", block: int | None, every: bool) -> PlanView:
    from .engines.plan import kernel_blocks

    blocks = kernel_blocks(layers.kernels)
    present = sorted({b for b in blocks if b is not None})
    if every or (block is None and not present):
        return PlanView(title, layers, layers.kernels, None)
    if block is None:
        block = present[len(present) // 2]
    if block not in present:
        raise UsageError(
            f"block {block} of {title}",
            found="no kernel belongs to it",
            fix=f"Blocks: {present[0]} to {present[-1]}" if present else "Use --all",
        )
    kernels = tuple(k for k, b in zip(layers.kernels, blocks, strict=True) if b == block)
    return PlanView(title, layers, kernels, block)


def _table(view: PlanView) -> "Table":
    layers = view.layers
    facts = [layers.runtime]
    if layers.device_kernels is not None:
        facts.append(f"{layers.device_kernels} device kernels")
    if layers.kernels_per_block is not None:
        facts.append(f"{layers.kernels_per_block:g} per block")
    facts.append("all" if view.block is None else f"block {view.block}")
    made = table(
        f"{view.title}  ({', '.join(facts)})",
        "#",
        "type",
        "dtype",
        "inputs",
        "outputs",
        "ONNX nodes",
    )
    for number, kernel in enumerate(view.kernels, 1):
        made.add_row(
            str(number),
            kernel.type,
            kernel.dtype,
            ", ".join(map(_tensor, (*kernel.inputs, *kernel.constants))),
            ", ".join(map(_tensor, kernel.outputs)),
            "\n".join(kernel.nodes) or kernel.name,
            style="" if kernel.on_device else "dim",
        )
    return made


def _tensor(tensor: "TensorInfo") -> str:
    dims = "x".join("?" if d < 0 else str(d) for d in tensor.dims) or "scalar"
    return f"{tensor.dtype}[{dims}]"
