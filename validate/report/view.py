"""Manifest + layers files -> what the page shows: verdict, rows of the summary, kernels of one block."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ...core.manifest import EngineRecord, Manifest, VariantRecord, VerdictRecord
from ...engines.kernel import Kernel, TensorInfo
from ...engines.layers_file import LayersFile, load_layers
from ...engines.plan import kernel_blocks

State = Literal["pass", "fail", "none"]
LONGEST = 150  # characters of one failure at the head of the page
NOT_RUN = "plan compiled, not run here"


@dataclass(frozen=True, slots=True)
class Headline:
    """The first thing on the page."""

    state: State
    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One row of the summary: an engine, and what is known of its numbers."""

    variant: VariantRecord
    engine: EngineRecord
    state: State
    numbers: str


@dataclass(frozen=True, slots=True)
class BlockKernels:
    """The kernels of one block of one engine, in execution order."""

    variant: VariantRecord
    engine: EngineRecord
    block: int
    source: str
    kernels: tuple[Kernel, ...]
    opened: bool = False  # whether the page shows it without a click: one is enough


def headline(manifest: Manifest) -> Headline:
    """The verdict in words: failures if there are any, else how many limits hold, and what was not run."""
    judged = [v for variant in manifest.variants for v in variant.verdicts if v.judged]
    limits = sum(len(v.gates) for v in judged)
    waiting = sum(
        row.numbers.endswith(NOT_RUN)
        for row in engine_rows(manifest)
        if row.engine.path is not None
    )
    lines = [shortened(line) for line in manifest.failures]
    if waiting:
        lines.append(
            f"{waiting} TensorRT plan{'s' * (waiting > 1)} compiled, not run here: a plan needs its GPU. "
            "What is judged is the graph that each plan was compiled from, by TensorRT's rounding rules."
        )
    if manifest.failures:
        missed = len(manifest.failures)
        return Headline("fail", f"{missed} limit{'s' * (missed > 1)} missed", tuple(lines))
    if not all(v.passed for v in judged):
        return Headline("fail", "A verdict failed", tuple(lines))
    unjudged = [v.precision for v in manifest.variants if not any(d.judged for d in v.verdicts)]
    if unjudged:
        names = ", ".join(unjudged)
        return Headline("none", f"Not judged yet: {names}", tuple(lines))
    lines.insert(
        0,
        f"{limits} of {limits} limits hold against the float64 reference, in "
        f"{', '.join(v.precision for v in manifest.variants)}.",
    )
    return Headline("pass", "The numbers hold", tuple(lines))


def shortened(line: str) -> str:
    """A failure for the head of the page: the kernels that a violation lists stand in full further down."""
    return (
        line if len(line) <= LONGEST else line[: LONGEST - 1].rsplit(" ", 1)[0].rstrip(",:") + " …"
    )


def engine_rows(manifest: Manifest) -> list[EngineRow]:
    """One row per engine, in the manifest's order."""
    return [
        EngineRow(variant, engine, *_numbers_of(variant, engine))
        for variant in manifest.variants
        for engine in variant.engines
    ]


def _numbers_of(variant: VariantRecord, engine: EngineRecord) -> tuple[State, str]:
    """What is known of one engine's numbers; a plan that did not run has no verdict of its own."""
    own = next((v for v in variant.verdicts if v.runner == engine.target), None)
    graph = next((v for v in variant.verdicts if v.judged and v.runner != engine.target), None)
    if own is not None and own.judged:
        return ("pass" if own.passed else "fail"), f"{'pass' if own.passed else 'FAIL'}, run here"
    verdict = f"graph {'passes' if graph.passed else 'FAILS'}" if graph else "graph not judged"
    state: State = "none" if graph is None else "pass" if graph.passed else "fail"
    if own is not None:
        return state, f"{verdict}; run here as a second opinion"
    return state, f"{verdict}; {NOT_RUN if engine.path else 'not run here'}"


def block_kernels(folder: Path, manifest: Manifest) -> list[BlockKernels]:
    """The kernels of a middle block of every engine whose layers file is in the bundle.

    Raises ArtefactError for a layers file that is damaged.
    """
    found = []
    for variant in manifest.variants:
        for engine in variant.engines:
            if engine.layers is not None and (folder / engine.layers).is_file():
                middle = _middle_block(load_layers(folder / engine.layers))
                if middle is not None:
                    found.append(BlockKernels(variant, engine, *middle))
    plans = [b for b in found if b.source == "builder"]
    shown = next((b for b in plans if b.variant is manifest.variants[-1]), None)
    return [replace(b, opened=True) if b is shown else b for b in found]


def _middle_block(layers: LayersFile) -> tuple[int, str, tuple[Kernel, ...]] | None:
    """A block with the usual number of kernels, as close to the middle as there is one."""
    blocks = kernel_blocks(layers.kernels)
    numbers = sorted({b for b in blocks if b is not None})
    if not numbers:
        return None
    members = {
        n: tuple(k for k, b in zip(layers.kernels, blocks, strict=True) if b == n) for n in numbers
    }
    middle = numbers[len(numbers) // 2]
    usual = layers.kernels_per_block

    def distance(n: int) -> tuple[bool, int]:
        launches = sum(kernel.on_device for kernel in members[n])
        return usual is not None and launches != usual, abs(n - middle)

    block = min(numbers, key=distance)
    return block, layers.source, members[block]


def judged_by(variant: VariantRecord) -> VerdictRecord | None:
    """The verdict that speaks for the graph: the first with a gate."""
    return next((v for v in variant.verdicts if v.judged), None)


def yardstick(variant: VariantRecord) -> str:
    """The type in which PyTorch's own loss is the noise floor of this variant."""
    judged = judged_by(variant)
    return (judged.floor_dtype if judged else None) or variant.computes


def edge_types(kernel: Kernel) -> str:
    """The element types that a kernel reads and writes, each once: `fp16, int64 → fp16`."""

    def types(side: Sequence[TensorInfo]) -> str:
        return ", ".join(dict.fromkeys(t.dtype for t in side)) or "none"

    return f"{types((*kernel.inputs, *kernel.constants))} → {types(kernel.outputs)}"
