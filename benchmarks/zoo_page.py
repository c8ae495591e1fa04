"""Rows of the zoo -> docs/models.md. The page is a function of the results file and of zoo_systems.py alone."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zoo_limits import Limit
from zoo_run import KNOWN, LIMITS, SIZES, TARGETS, Built, Row
from zoo_systems import SYSTEMS

COMMAND = "make zoo"
NAMES = {
    "onnxruntime:cpu": "ONNX Runtime",
    "tensorrt-rtx:sm89": "TensorRT-RTX sm89",
    "tensorrt-rtx:sm120": "TensorRT-RTX sm120",
}
NOTE = "refused<sup>1</sup>"
DECOMPOSABLE = re.compile(r"TRT_decomposable on (\d+) Attention \((.*?)\)")
INLINED = re.compile(r"inlined \S*?(\w+) \((\d+)x\)")


@dataclass(frozen=True, slots=True)
class Zoo:
    """Everything the page shows. tools: package -> version."""

    tools: Mapping[str, str]
    rows: tuple[Row, ...]
    limits: tuple[Limit, ...]

    @property
    def failures(self) -> tuple[str, ...]:
        """One line for everything that is not as it should be."""
        lines = [f"{r.preset} {r.precision}: {f}" for r in self.rows for f in r.failures]
        return (*lines, *(f"{x.form}: {x.failure}" for x in self.limits if x.failure))


def page(zoo: Zoo) -> str:
    """The whole page as Markdown."""
    return "\n".join([*_head(zoo), *_systems(zoo), *_operators(zoo), *_limits(zoo)]) + "\n"


def _head(zoo: Zoo) -> Iterator[str]:
    versions = ", ".join(f"{tool} {version}" for tool, version in zoo.tools.items())
    low, best, high = ("x".join(map(str, size[:2])) for size in SIZES)
    rows, bad = len(zoo.rows), sum(bool(row.failures) for row in zoo.rows)
    yield from (
        "# Models: what builds, with how many kernels, and how exactly",
        "",
        f"Written by `{COMMAND}` with {versions}. Do not edit: run the command.",
        "",
        "Every system is built from a tiny preset (`model/presets_tiny.py`) with seeded random weights: PyTorch reference, "
        "ONNX graph, verdict, engines. No GPU takes part: TensorRT-RTX plans its kernels ahead of time, and we read "
        f"them. Inputs range from {low} to {high} (batch x sequence), planned for {best}.",
        "",
        f"**{rows - bad} of {rows} rows are green**"
        + (", " + "; ".join(zoo.failures) + "." if zoo.failures else "."),
        "",
        "## Systems",
        "",
        "*Error over floor*: the graph's root-mean-square error against float64, over the error of PyTorch itself in the "
        "same type, at its worst output; the typed evaluator follows TensorRT's rounding rules. About 1 means that the "
        "graph loses what the type loses. Above "
        f"{LIMITS.max_error_over_floor:g}, or with one value out of its type's range, a row fails. *Kernels*: device "
        "kernels of the whole model, and of one block (median of the blocks; in encoder-decoders encoder and decoder block "
        "together); *on sizes*: reshapes and casts of one int64, which TensorRT plans beside them for its own shape "
        "arithmetic. A kernel that computes in another type than its graph declares fails the row. ONNX Runtime computes "
        "16-bit graphs through FP32 and so comes out below 1 there: a second opinion, no kernels.",
        "",
    )


def _systems(zoo: Zoo) -> Iterator[str]:
    heads = ["System", "Preset", "Type", "Error over floor", "ONNX Runtime"]
    heads += [f"{NAMES[target]} kernels" for target in TARGETS if "tensorrt" in target]
    yield from _table_head([*heads, "Legalised for TensorRT", ""])
    by_preset = {preset: [r for r in zoo.rows if r.preset == preset] for preset in _presets()}
    for system in SYSTEMS:
        for preset in system.tiny:
            for row in by_preset[preset]:
                first = preset == system.tiny[0] and row is by_preset[preset][0]
                yield _line(_row_cells(system.name if first else "", row))
    words = {
        built.refused
        for row in zoo.rows
        for target, built in row.engines.items()
        if built.refused and (target, row.precision) in KNOWN
    }
    yield ""
    yield (
        "<sup>1</sup> The runtime's own limit: ONNX Runtime's CPU provider has no bf16 kernel for the first "
        "operator that it names. Such a graph is judged by the typed evaluator and built for TensorRT. Its words:"
    )
    yield ""
    yield from (f"- `{text}`" for text in sorted(words))
    yield ""


def _row_cells(system: str, row: Row) -> list[str]:
    cells = [system, f"`{row.preset}`", row.precision, _number(row.errors.get("typed-evaluator"))]
    for target in TARGETS:
        built = row.engines.get(target, Built(refused="not built"))
        if built.refused:
            cells.append(NOTE if (target, row.precision) in KNOWN else "**failed**")
        elif built.kernels is None:
            cells.append(_number(row.errors.get(target)))
        else:
            cells.append(_kernels(built))
    lines = next((b.legalized for t, b in row.engines.items() if b.legalized), ())
    return [*cells, _legalised(lines), "failed" if row.failures else "ok"]


def _kernels(built: Built) -> str:
    """Kernels on numbers, those on sizes apart, and kernels a block."""
    whole = sum(count for dtype, count in built.dtypes.items() if dtype.startswith("int"))
    numbers = f"{(built.kernels or 0) - whole}" + (f" + {whole} on sizes" if whole else "")
    return numbers if built.per_block is None else f"{numbers}, {built.per_block:g} a block"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _legalised(lines: Sequence[str]) -> str:
    """The lines of an EngineRecord, by what was done instead of where."""
    done: Counter[str] = Counter()
    for line in lines:
        if match := INLINED.fullmatch(line):
            done[f"{match[1]} inlined"] += int(match[2])
        elif match := DECOMPOSABLE.match(line):
            done[f"Attention marked decomposable ({match[2]})"] += int(match[1])
        else:
            done[line.partition(": ")[2] or line] += 1
    return ", ".join(f"{what} (x{count})" for what, count in done.items()) or "nothing"


def _operators(zoo: Zoo) -> Iterator[str]:
    yield from ("## Operators", "")
    yield "What each graph is made of, as `operator x nodes`; the types where they differ. Fused operators carry their domain."
    yield ""
    yield from _table_head(["Preset", "Types", "Operators"])
    for preset in _presets():
        kinds: dict[str, list[str]] = {}
        for row in zoo.rows:
            if row.preset == preset and row.operators:
                ordered = sorted(row.operators.items(), key=lambda item: (-item[1], item[0]))
                text = ", ".join(f"{name} x{count}" for name, count in ordered)
                kinds.setdefault(text, []).append(row.precision)
        for text, precisions in kinds.items():
            yield _line([f"`{preset}`", ", ".join(precisions), text])
    yield from ("", "## What sets each system apart, and its published sizes", "")
    yield from _table_head(["System", "What it needs", "Presets of published sizes"])
    for system in SYSTEMS:
        sizes = ", ".join(f"`{name}`" for name in system.full_sizes())
        yield _line([system.name, system.needs, sizes or "none"])
    yield ""


def _limits(zoo: Zoo) -> Iterator[str]:
    yield from (
        "## What TensorRT-RTX refuses, and what is built instead",
        "",
        "Each form is one Attention node, built for sm89 as it is and once more as `engines/legalize` rewrites it. The "
        "rewritten graphs equal ONNX's reference evaluator (`tests/engines/test_legalize*.py`).",
        "",
    )
    yield from _table_head(["Attention", "As it is", "Legalised", "Kernels"])
    for limit in zoo.limits:
        refusal = f"refused: `{limit.refusal}`" if limit.refusal else limit.silent
        kernels = "**failed**" if limit.kernels is None else str(limit.kernels)
        yield _line([limit.form, refusal, _legalised(limit.legalized), kernels])


def _presets() -> tuple[str, ...]:
    return tuple(preset for system in SYSTEMS for preset in system.tiny)


def _table_head(heads: Sequence[str]) -> Iterator[str]:
    yield _line(heads)
    yield "|" + "---|" * len(heads)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
