"""The planned kernels of a bundle's engines as tables: what runs, in which types, for which ONNX nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import table
from .core.bundle import Bundle
from .core.errors import ArtefactError, UsageError
from .core.whole_file import write_whole
from .tables_plans import options_text

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from .core.manifest import EngineRecord, VariantRecord
    from .engines.kernel import Kernel, TensorInfo
    from .engines.layers_file import LayersFile
    from .engines.target import Target


LAYERS = ".layers.json"


@dataclass(frozen=True, slots=True)
class Plan:
    """One engine's kernels. options: of its build. variant: the graph it was built from, None for a lone file."""

    title: str
    layers: "LayersFile"
    options: Mapping[str, Any]
    variant: "VariantRecord | None" = None


@dataclass(frozen=True, slots=True)
class PlanView:
    """Some kernels of one engine. block: the block they belong to, None for the whole engine."""

    title: str
    layers: "LayersFile"
    options: Mapping[str, Any]
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
            "options": dict(self.options),
            "device_kernels": self.layers.device_kernels,
            "kernels_per_block": self.layers.kernels_per_block,
            "dtypes": self.layers.dtypes,
            "block": self.block,
            "kernels": [
                asdict(kernel) | {"dtype": kernel.dtype, "on_device": kernel.on_device}
                for kernel in self.kernels
            ],
        }


def open_plans(
    path: Path, *, targets: Sequence[str] | None = None, precision: str | None = None
) -> list[Plan]:
    """The engines that `path` names: a bundle's, one layers.json, or that beside a lone plan.

    targets, precision: only these of a bundle; a joint engine serves each of its architectures. Raises ArtefactError for a
    file that does not fit, UsageError for a target that does not exist or that several engines cover, and when nothing is left.
    """
    from .engines.layers_file import load_layers
    from .engines.target import Target

    if path.is_file():
        beside = path.with_name(path.name.removesuffix(".plan") + LAYERS)
        file = beside if path.suffix == ".plan" else path
        try:
            layers = load_layers(file)
            return [Plan(path.name, layers, layers.options)]
        except ArtefactError:
            _refuse_trtexec(file)
            raise
    bundle = Bundle.open(path)
    engines = [
        (variant, engine)
        for variant in bundle.manifest.variants
        for engine in variant.engines
        if engine.layers is not None
    ]
    wanted = [Target.parse(target) for target in dict.fromkeys(targets or ())]
    chosen = [
        (variant, engine)
        for variant in bundle.manifest.variants
        if precision in (None, variant.precision)
        for engine in _serving([e for v, e in engines if v is variant], wanted, path)
    ]
    if not chosen:
        has = ", ".join(f"{v.precision} {e.target}" for v, e in engines) or "no engine"
        raise UsageError(
            f"engines of {path}", found="none fits the choice", fix=f"The bundle has {has}"
        )
    return [
        Plan(f"{v.precision} {e.target}", load_layers(bundle.file(str(e.layers))), e.options, v)
        for v, e in chosen
    ]


def _serving(
    engines: "Sequence[EngineRecord]", targets: "Sequence[Target]", path: Path
) -> "list[EngineRecord]":
    """Those that serve one of `targets`, in the bundle's order; all where none is named."""
    from .engines.engine_choice import engine_for

    if not targets:
        return list(engines)
    found = [engine_for(engines, target, f"engine {target} of {path}") for target in targets]
    return [engine for engine in engines if engine in found]


def require_there(path: Path) -> None:
    """UsageError where there is neither a bundle nor a file at `path`."""
    if not path.exists():
        raise UsageError(
            f"engine {path}",
            found="no such file or folder",
            fix=f"Name a bundle, a {LAYERS}, or a .plan beside one",
        )


def _refuse_trtexec(file: Path) -> None:
    """ArtefactError for a file with the two keys of trtexec's layers; others are load_layers' to judge."""
    import json

    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return
    if isinstance(content, dict) and {"Layers", "Bindings"} <= content.keys():
        raise ArtefactError(
            f"kernels of {file}",
            found="layers as trtexec writes them",
            fix=f"Name the bundle, or the engine's {LAYERS} in it",
        )


def one_plan(path: Path, *, target: str | None = None, precision: str | None = None) -> Plan:
    """The one engine that `path` names; UsageError lists them where it is not one. Other errors as open_plans."""
    plans = open_plans(path, targets=target and [target], precision=precision)
    if len(plans) > 1:
        raise UsageError(
            f"one engine of {path}",
            found=f"it has {len(plans)}: {', '.join(plan.title for plan in plans)}",
            fix="Choose with --precision and --target",
        )
    return plans[0]


def inspect(
    path: Path,
    *,
    targets: Sequence[str] | None = None,
    precision: str | None = None,
    block: int | None = None,
    every: bool = False,
) -> list[PlanView]:
    """What open_plans finds, as view_plans shows it; raises what they raise."""
    plans = open_plans(path, targets=targets, precision=precision)
    return view_plans(plans, block=block, every=every)


def view_plans(
    plans: Sequence[Plan], *, block: int | None = None, every: bool = False
) -> list[PlanView]:
    """Kernels of the plans, one view each.

    block: the kernels of this block, None for the middle one; every: all kernels. Raises UsageError for a block that
    none belongs to.
    """
    return [_view(plan, block, every) for plan in plans]


def write_trtexec(plans: Sequence[Plan], file: Path) -> None:
    """Write the layers of the one plan among `plans` as `trtexec --exportLayerInfo` does.

    Raises UsageError for several, for a lone file, whose inputs and outputs nobody names, for ONNX Runtime's nodes, and for what cannot be written.
    """
    import json

    from .engines.trtexec_layers import trtexec_layers

    asked = f"layers as trtexec writes them, in {file}"
    if len(plans) > 1:
        raise UsageError(
            asked,
            found=f"{len(plans)} engines: {', '.join(plan.title for plan in plans)}",
            fix="Choose with --precision and --target",
        )
    plan = plans[0]
    if plan.variant is None:
        raise UsageError(
            asked,
            found=f"only {plan.title}, which does not name inputs and outputs",
            fix="Name its bundle",
        )
    if plan.layers.source != "builder":
        raise UsageError(
            asked,
            found=f"{plan.title}, whose nodes are no layers of TensorRT",
            fix="Choose an engine of TensorRT with --target",
        )
    edges = [record.name for record in (*plan.variant.inputs, *plan.variant.outputs)]
    text = json.dumps(trtexec_layers(plan.layers, edges), indent=1)
    try:
        write_whole(file, text + "\n")
    except OSError as error:
        raise UsageError(
            asked, found=f"cannot write it: {error.strerror}", fix="Name a folder you may write"
        ) from None


def render(views: Sequence[PlanView]) -> "Group":
    """The views as tables."""
    from rich.console import Group

    return Group(*(_table(view) for view in views))


def _view(plan: Plan, block: int | None, every: bool) -> PlanView:
    from .engines.plan import kernel_blocks

    title, layers = plan.title, plan.layers
    blocks = kernel_blocks(layers.kernels)
    present = sorted({b for b in blocks if b is not None})
    if every or (block is None and not present):
        return PlanView(title, layers, plan.options, layers.kernels, None)
    if block is None:
        block = present[len(present) // 2]
    if block not in present:
        raise UsageError(
            f"block {block} of {title}",
            found="no kernel belongs to it",
            fix=f"Blocks: {present[0]} to {present[-1]}" if present else "Use --all",
        )
    kernels = tuple(k for k, b in zip(layers.kernels, blocks, strict=True) if b == block)
    return PlanView(title, layers, plan.options, kernels, block)


def _table(view: PlanView) -> "Table":
    layers = view.layers
    facts = [layers.runtime]
    if layers.device_kernels is not None:
        facts.append(f"{layers.device_kernels} device kernels")
    if layers.kernels_per_block is not None:
        facts.append(f"{layers.kernels_per_block:g} per block")
    if view.options:
        facts.append(f"built with {options_text(view.options)}")
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
