"""What differs between two planned engines, kernel by kernel; kernels are matched by the ONNX nodes they cover.

Order and names say nothing: two builds of one graph number their kernels and tensors anew. So kernels that cover the same
nodes are one pair (of several, those most alike); what is left over and shares nodes was grouped otherwise; the rest was
added or removed. A kernel without nodes (a transposed copy) is known by those that make what it reads and read what it makes.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import UsageError
from .kernel import Kernel, TensorInfo
from .layers_file import LayersFile

Key = tuple[bool, frozenset[str]]  # whether the nodes are the kernel's own, and the nodes
EDGES = ("inputs", "constants", "outputs")
GATED = ("type", "dtype")  # differences in these, and in what is fused, make two plans unequal
NEIGHBOURS = "beside "  # before the nodes of a copy's neighbours


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that two matched kernels differ in. aspect: type, dtype, tactic or shape; where: "", or which edge."""

    aspect: str
    where: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two kernels that cover the same nodes, and what differs."""

    nodes: tuple[str, ...]
    changes: tuple[Change, ...]
    a: Kernel
    b: Kernel


@dataclass(frozen=True, slots=True)
class Regrouped:
    """Kernels that cover some of the same nodes in other groups: fused further in one plan than in the other."""

    a: tuple[Kernel, ...]
    b: tuple[Kernel, ...]


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """What differs between the plans a and b, over the kernels that run on the device.

    unchanged: pairs without a difference. other: type of an entry that is no kernel (host work, synchronisation, a transfer)
    -> how many a and b have, where that differs.
    """

    a: LayersFile
    b: LayersFile
    added: tuple[Kernel, ...]
    removed: tuple[Kernel, ...]
    regrouped: tuple[Regrouped, ...]
    changed: tuple[Pair, ...]
    unchanged: int
    other: dict[str, tuple[int, int]]

    @property
    def dtypes(self) -> dict[str, tuple[int, int]]:
        """Element type -> kernels of a and of b that compute in it, where that differs."""
        return _differing(self.a.dtypes, self.b.dtypes)

    @property
    def equal(self) -> bool:
        """Whether both fuse the same nodes into kernels of the same types, in the same element types."""
        aspects = {change.aspect for pair in self.changed for change in pair.changes}
        return not (self.added or self.removed or self.regrouped or aspects & set(GATED))

    @property
    def identical(self) -> bool:
        """Whether tactics, shapes and all that is no kernel are the same too."""
        return self.equal and not self.changed and not self.other

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON types."""
        return {
            "equal": self.equal,
            "identical": self.identical,
            "a": _facts(self.a),
            "b": _facts(self.b),
            "added": [_row(kernel) for kernel in self.added],
            "removed": [_row(kernel) for kernel in self.removed],
            "regrouped": [
                {"a": [_row(k) for k in group.a], "b": [_row(k) for k in group.b]}
                for group in self.regrouped
            ],
            "changed": [
                {
                    "nodes": list(pair.nodes),
                    "changes": [
                        {"aspect": c.aspect, "where": c.where, "a": c.a, "b": c.b}
                        for c in pair.changes
                    ],
                }
                for pair in self.changed
            ],
            "unchanged": self.unchanged,
            "dtypes": {name: list(counts) for name, counts in self.dtypes.items()},
            "other": {name: list(counts) for name, counts in self.other.items()},
        }


def diff_plans(a: LayersFile, b: LayersFile) -> PlanDiff:
    """Match the device kernels of two plans and say what differs.

    Raises UsageError for kernels that TensorRT planned beside nodes that ONNX Runtime ran: they have nothing in common.
    """
    if a.source != b.source:
        raise UsageError(
            "what differs between two plans",
            found=f"{a.target} lists what its {a.source} said, {b.target} what its {b.source} said",
            fix="Compare TensorRT with TensorRT, or ONNX Runtime with ONNX Runtime",
        )
    sides = (_keyed(a.kernels), _keyed(b.kernels))
    pairs: list[Pair] = []
    left: tuple[list[tuple[Key, Kernel]], list[tuple[Key, Kernel]]] = ([], [])
    for key in dict.fromkeys((*sides[0], *sides[1])):
        matched, rest_a, rest_b = _matched(key, sides[0].get(key, []), sides[1].get(key, []))
        pairs += matched
        left[0].extend((key, kernel) for kernel in rest_a)
        left[1].extend((key, kernel) for kernel in rest_b)
    groups = _groups(*left)
    return PlanDiff(
        a=a,
        b=b,
        added=tuple(k for group in groups if not group.a for k in group.b),
        removed=tuple(k for group in groups if not group.b for k in group.a),
        regrouped=tuple(group for group in groups if group.a and group.b),
        changed=tuple(pair for pair in pairs if pair.changes),
        unchanged=sum(not pair.changes for pair in pairs),
        other=_differing(_others(a.kernels), _others(b.kernels)),
    )


def changes_between(a: Kernel, b: Kernel) -> tuple[Change, ...]:
    """What differs between two kernels; the order of tensors at an edge, and their names, do not count."""
    found = [Change("type", "", a.type, b.type)]
    found.append(Change("dtype", "", a.dtype, b.dtype))
    for aspect, text in (("dtype", _dtypes), ("shape", _shapes)):
        found += [
            Change(aspect, edge, text(getattr(a, edge)), text(getattr(b, edge))) for edge in EDGES
        ]
    found.append(Change("tactic", "", a.tactic, b.tactic))
    return tuple(change for change in found if change.a != change.b)


def _dtypes(tensors: Iterable[TensorInfo]) -> str:
    return ", ".join(sorted(t.dtype for t in tensors))


def _shapes(tensors: Iterable[TensorInfo]) -> str:
    shapes = sorted(t.dims for t in tensors)
    return ", ".join("x".join("?" if d < 0 else str(d) for d in s) or "scalar" for s in shapes)


def _keyed(kernels: Sequence[Kernel]) -> dict[Key, list[Kernel]]:
    """The device kernels by what they are known by, in execution order."""
    makers = {t.name: k for k in kernels if k.nodes for t in k.outputs}
    readers = {t.name: k for k in reversed(kernels) if k.nodes for t in k.inputs}
    found: dict[Key, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if not kernel.on_device:
            continue
        nodes: set[str] = set(kernel.nodes)
        if not nodes:
            beside = [makers.get(t.name) for t in kernel.inputs]
            beside += [readers.get(t.name) for t in kernel.outputs]
            nodes = {node for k in beside if k is not None for node in k.nodes}
        found[bool(kernel.nodes), frozenset(nodes)].append(kernel)
    return found


def _matched(
    key: Key, a: list[Kernel], b: list[Kernel]
) -> tuple[list[Pair], list[Kernel], list[Kernel]]:
    """(pairs, what is left of a, what is left of b): the pairs that differ least first."""
    own, nodes = key
    shown = tuple(sorted(nodes) if own else (NEIGHBOURS + node for node in sorted(nodes)))
    ranked = sorted(
        (_distance(changes_between(k, other)), i, j)
        for i, k in enumerate(a)
        for j, other in enumerate(b)
    )
    pairs, used_a, used_b = [], set[int](), set[int]()
    for _, i, j in ranked:
        if i not in used_a and j not in used_b:
            used_a.add(i)
            used_b.add(j)
            pairs.append(Pair(shown, changes_between(a[i], b[j]), a[i], b[j]))
    rest = [
        [k for i, k in enumerate(side) if i not in used]
        for side, used in ((a, used_a), (b, used_b))
    ]
    return pairs, rest[0], rest[1]


def _distance(changes: Sequence[Change]) -> tuple[int, int]:
    """How unlike two kernels are: what makes plans unequal weighs first."""
    return sum(c.aspect in GATED for c in changes), len(changes)


def _groups(a: list[tuple[Key, Kernel]], b: list[tuple[Key, Kernel]]) -> list[Regrouped]:
    """Kernels that share a node, directly or over others, as one group; those without nodes each alone."""
    group_of: dict[str, int] = {}  # node -> the group it lies in
    groups: dict[int, tuple[list[Kernel], list[Kernel]]] = {}
    for number, (side, (own, nodes), kernel) in enumerate(
        [(0, *each) for each in a] + [(1, *each) for each in b]
    ):
        names = nodes if own else frozenset[str]()
        made: tuple[list[Kernel], list[Kernel]] = ([], [])
        for old in dict.fromkeys(group_of[n] for n in sorted(names) if n in group_of):
            for mine, theirs in zip(made, groups.pop(old), strict=True):
                mine += theirs
            group_of |= dict.fromkeys((n for n, g in group_of.items() if g == old), number)
        made[side].append(kernel)
        groups[number] = made
        group_of |= dict.fromkeys(names, number)
    return [Regrouped(tuple(in_a), tuple(in_b)) for in_a, in_b in groups.values()]


def _others(kernels: Sequence[Kernel]) -> Counter[str]:
    return Counter(kernel.type for kernel in kernels if not kernel.on_device)


def _differing(a: dict[str, int], b: dict[str, int]) -> dict[str, tuple[int, int]]:
    return {
        name: (a.get(name, 0), b.get(name, 0))
        for name in dict.fromkeys((*a, *b))
        if a.get(name, 0) != b.get(name, 0)
    }


def _facts(layers: LayersFile) -> dict[str, Any]:
    return {
        "target": layers.target,
        "runtime": layers.runtime,
        "kernels": layers.device_kernels,
        "kernels_per_block": layers.kernels_per_block,
        "dtypes": layers.dtypes,
    }


def _row(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "type": kernel.type,
        "dtype": kernel.dtype,
        "tactic": kernel.tactic,
        "nodes": list(kernel.nodes),
    }
