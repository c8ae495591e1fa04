"""Planned engines for a reader: their build options in a line; what differs between two, alike in every block, once."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .console import table

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from .engines.kernel import Kernel
    from .engines.plan_diff import Change, PlanDiff

_BLOCK = re.compile(r"(?<=layers\.)\d+")
_HASH = re.compile(r"_0x[0-9a-f]{16,}$")
Row = tuple[str, str, str, str]


def options_text(options: Mapping[str, Any]) -> str:
    """Build options as a reader takes them: `workspace_bytes by default, tf32 on, tactic_sources a+b`."""
    return ", ".join(f"{name} {_option(value)}" for name, value in options.items())


def sizes_text(profile: Mapping[str, Sequence[Sequence[int]]]) -> str:
    """A profile as a reader takes it: `input_ids 1x1 to 1x128 to 4x1024`."""
    return ", ".join(
        f"{name} {' to '.join('x'.join(map(str, shape)) for shape in shapes)}"
        for name, shapes in profile.items()
    )


def _option(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "by default", True: "on", False: "off"}[value]
    if isinstance(value, list | tuple):
        return "+".join(map(str, value)) or "none"
    return str(value)


def diff_tables(title_a: str, title_b: str, diff: "PlanDiff") -> "Group":
    """The counts of both, every difference, and a sentence."""
    from rich.console import Group

    same = "no difference" if diff.identical else "equal in fusion, kernel types and dtypes"
    line = (same if diff.equal else "not equal") + f"; {diff.unchanged} kernels are the same\n"
    parts: list[Table | str] = [_counts(title_a, title_b, diff)]
    if not diff.identical:
        parts.append(_differences(diff))
    return Group(*parts, line)


def _counts(title_a: str, title_b: str, diff: "PlanDiff") -> "Table":
    made = table("planned engines", "", f">A: {title_a}", f">B: {title_b}")
    for name in ("target", "runtime"):
        made.add_row(name, getattr(diff.a, name), getattr(diff.b, name))
    made.add_row("kernels", *(_text(layers.device_kernels) for layers in (diff.a, diff.b)))
    made.add_row("per block", *(_text(layers.kernels_per_block) for layers in (diff.a, diff.b)))
    for name in dict.fromkeys((*diff.a.dtypes, *diff.b.dtypes)):
        made.add_row(name, *(str(layers.dtypes.get(name, 0)) for layers in (diff.a, diff.b)))
    for name, counts in diff.other.items():
        made.add_row(name, *map(str, counts))
    return made


def _differences(diff: "PlanDiff") -> "Table":
    rows: Counter[Row] = Counter()
    rows.update(("removed", "", _kernels([kernel]), "-") for kernel in diff.removed)
    rows.update(("added", "", "-", _kernels([kernel])) for kernel in diff.added)
    rows.update(("regrouped", "", _kernels(g.a), _kernels(g.b)) for g in diff.regrouped)
    rows.update(("changed", _nodes(pair.nodes), *_sides(pair.changes)) for pair in diff.changed)
    made = table("differences", "!", ">times", "ONNX nodes", "A", "B")
    for (what, nodes, a, b), times in rows.items():
        made.add_row(what, str(times), nodes, a, b)
    return made


def _sides(changes: "Sequence[Change]") -> tuple[str, str]:
    """What a pair differs in: of a change of type, what follows from it is left out."""
    from .engines.plan_diff import GATED

    shown = [c for c in changes if c.aspect in GATED] or list(changes)
    shown = [c for c in shown if not c.where] or shown
    labels = [" ".join(filter(None, (c.where, c.aspect))) for c in shown]
    sides = [
        "\n".join(
            f"{label}: {_HASH.sub('', value) or 'none'}"
            for label, value in zip(labels, each, strict=True)
        )
        for each in ([c.a for c in shown], [c.b for c in shown])
    ]
    if sides[0] == sides[1]:  # tactics of one name
        return "\n".join(c.a for c in shown), "\n".join(c.b for c in shown)
    return sides[0], sides[1]


def _kernels(kernels: "Iterable[Kernel]") -> str:
    """One line a kernel."""
    return "\n".join(
        f"{kernel.type} {kernel.dtype}: "
        + (_nodes(kernel.nodes).replace("\n", " + ") or _name(kernel.name))
        for kernel in kernels
    )


def _nodes(nodes: Iterable[str]) -> str:
    from rich.markup import escape

    return "\n".join(escape(_BLOCK.sub("*", node)) for node in nodes)


def _name(name: str) -> str:
    """A kernel's name without the numbers that a build gives it."""
    return re.sub(r"_myl\d+_\d+$", "", name)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"
