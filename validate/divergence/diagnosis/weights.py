"""Weights: the region reads other numbers than the reference; which ones, and how they differ."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ..sides import GraphSide
from ..units import unit_of_torch
from .case import Case, Cause

THETAS = (1e4, 1e5, 5e5, 1e6, 5e6, 1e7)  # published bases
FEW = 0.25  # of the rows or columns: below it they are listed


@dataclass(frozen=True, slots=True)
class Difference:
    """kind and sentence of how a weight differs from the reference's."""

    kind: str
    text: str
    facts: dict[str, object]


def weights(case: Case) -> Iterator[Cause]:
    """Every weight of the region that differs, and whether the reference's one repairs it."""
    theirs = _partners(case)
    for name, mine in case.evidence.forced.weights.items():
        for reference in theirs.get(name, ()):
            pair = case.sides(mine, reference)
            difference = compare_weights(*pair)  # type: ignore[arg-type]
            if difference is None:
                continue
            if not case.repaired(weights={name: reference.to(mine.dtype)}):
                continue
            text = f"{name}: {difference.text}; with the other side's numbers the error is gone"
            facts = {"weight": name, **difference.facts}
            yield Cause(difference.kind, text, facts, node=case.reader(name))
            return


def thetas(case: Case) -> Iterator[Cause]:
    """Rotary frequencies of another base, where the other side has no such weight to compare with."""
    for name, mine in case.evidence.forced.weights.items():
        base = geometric_base(mine.double())
        if base is None or case.setting.other.weight(name) is not None:
            continue
        n = mine.numel()
        for theta in THETAS:
            if abs(theta / base - 1) < 1e-3:
                continue
            other = theta ** -(torch.arange(n, dtype=torch.float64) / n)
            if case.repaired(weights={name: other.reshape(mine.shape).to(mine.dtype)}):
                one, two = case.sides(base, theta)
                text = f"{name}: rotary frequencies of theta {one:.6g}, the reference's values are those of {two:.6g}"
                facts = {"weight": name, "theta": one, "reference_theta": two}
                yield Cause("rope theta", text, facts, node=case.reader(name))
                return


def _partners(case: Case) -> dict[str, list[torch.Tensor]]:
    """Weight of the region -> what the other side has for it, in the ways that it may be stored."""
    found: dict[str, list[torch.Tensor]] = {}
    other = case.setting.other
    graph = isinstance(other, GraphSide)
    spare = list(case.twin.weights) if case.twin is not None else []
    for name, mine in case.evidence.forced.weights.items():
        weight = other.weight(name)
        if weight is None:
            alike = [w for w in spare if w.shape is not None and list(w.shape) == list(mine.shape)]
            weight = other.weight(str(alike[0].name)) if alike else None
        if weight is None:
            continue
        ways = [weight]
        if weight.ndim == 2 and (not graph or weight.shape != mine.shape):
            ways.append(weight.T)
        found[name] = [w.contiguous() for w in ways if w.shape == mine.shape]
    return found


def compare_weights(mine: torch.Tensor, reference: torch.Tensor) -> Difference | None:
    """How the candidate's weight differs from the reference's (equal shapes); None within their rounding."""
    unit = max(unit_of_torch(mine.dtype), unit_of_torch(reference.dtype))
    m, r = mine.double(), reference.double()
    off = (m - r).abs() > 2 * unit * r.abs() + unit * float(r.square().mean().sqrt()) / 64
    if not bool(off.any()):
        return None
    size = float((m - r).square().mean().sqrt() / r.square().mean().sqrt().clamp(min=1e-300))
    facts: dict[str, object] = {"relative": size}
    if not bool(m.any()):
        return Difference("zeroed weight", "every element is zero", facts)
    if theta := _theta(m, r):
        text = f"rotary frequencies of theta {theta[0]:.6g}, the reference has {theta[1]:.6g}"
        return Difference("rope theta", text, {"theta": theta[0], "reference_theta": theta[1]})
    factor = float((m * r).sum() / r.square().sum().clamp(min=1e-300))
    if factor and bool(((m - factor * r).abs() <= 4 * unit * (factor * r).abs() + 1e-12).all()):
        text = f"{factor:.6g} times the reference's"
        return Difference("scale", text, {"factor": factor})
    if m.ndim == 2 and m.shape[0] == m.shape[1] and torch.allclose(m, r.T, rtol=4 * unit, atol=0):
        return Difference("transposed weight", "the reference's, transposed", facts)
    if m.ndim < 2:
        return _vector(m, off, facts)
    return _matrix(m, r, off, unit, facts)


def _vector(m: torch.Tensor, off: torch.Tensor, facts: dict[str, object]) -> Difference:
    if m.numel() > 1 and bool((m == m.reshape(-1)[0]).all()):
        value = float(m.reshape(-1)[0])
        return Difference(
            "constant weight", f"every element is {value:.6g}", {**facts, "value": value}
        )
    at = [int(i) for i in off.reshape(-1).nonzero().reshape(-1)]
    text = f"{len(at)} of {m.numel()} elements differ, the first at {at[0]}"
    return Difference("weight element", text, {**facts, "index": at[:8]})


def _matrix(
    m: torch.Tensor, r: torch.Tensor, off: torch.Tensor, unit: float, facts: dict[str, object]
) -> Difference:
    for axis, word in ((0, "row"), (1, "column")):
        along = off.flatten(1).any(1) if axis == 0 else off.flatten(0, -2).any(0)
        at = [int(i) for i in along.nonzero().reshape(-1)]
        if len(at) <= FEW * along.numel() or len(at) == 1:
            some = ", ".join(map(str, at[:6])) + (", ..." if len(at) > 6 else "")
            text = f"{word} {some} of {along.numel()} differs" + _exchange(m, r, at, axis, unit)
            return Difference(f"weight {word}", text, {**facts, word: at[:8]})
    for axis, word in ((0, "rows"), (1, "columns")):
        lines = (
            (m.flatten(1), r.flatten(1)) if axis == 0 else (m.flatten(0, -2).T, r.flatten(0, -2).T)
        )
        order = find_order(*lines, limit=8 * unit)
        if order is not None:
            block, text = describe_order(order)
            return Difference(
                "channel order", f"{word} in another order: {text}", {**facts, "block": block}
            )
    text = f"differs by {facts['relative']:.3g} of its size, all over"
    return Difference("weight", text, facts)


def _exchange(m: torch.Tensor, r: torch.Tensor, at: list[int], axis: int, unit: float) -> str:
    """Whether the rows that differ are the reference's in another order."""
    if not 2 <= len(at) <= 64:
        return ""
    pick = torch.tensor(at)
    mine, theirs = m.index_select(axis, pick), r.index_select(axis, pick)
    lines = (mine.flatten(1), theirs.flatten(1)) if axis == 0 else (mine.T, theirs.T)
    order = find_order(*lines, limit=8 * unit)
    return "" if order is None else ": they changed places"


def find_order(mine: torch.Tensor, reference: torch.Tensor, *, limit: float) -> list[int] | None:
    """order with mine[i] = reference[order[i]] for all lines [n, k], if it is one and not the identity."""
    if len(mine) > 8192 or len(mine) != len(reference):
        return None
    apart = torch.cdist(mine, reference, compute_mode="donot_use_mm_for_euclid_dist")
    best, order = apart.min(1)
    size = reference.square().sum(1).sqrt()[order].clamp(min=1e-300)
    if not bool((best <= limit * size).all()):
        return None
    found = [int(i) for i in order]
    if sorted(found) != list(range(len(found))) or found == list(range(len(found))):
        return None
    return found


def describe_order(order: list[int]) -> tuple[int, str]:
    """The block that moves as one (a head), and the order of blocks in words."""
    breaks = [i for i in range(1, len(order)) if order[i] != order[i - 1] + 1]
    block = math.gcd(len(order), *breaks, *(order[i] % len(order) for i in (0, *breaks)))
    block = max(block, 1)
    blocks = [order[i] // block for i in range(0, len(order), block)]
    some = " ".join(map(str, blocks[:12])) + (" ..." if len(blocks) > 12 else "")
    return block, f"blocks of {block} stand as {some}"


def _theta(m: torch.Tensor, r: torch.Tensor) -> tuple[float, float] | None:
    """The bases of two rows of rotary frequencies, if that is what both are and they differ."""
    mine, theirs = geometric_base(m), geometric_base(r)
    if mine is None or theirs is None or abs(mine / theirs - 1) < 1e-4:
        return None
    return mine, theirs


def geometric_base(w: torch.Tensor) -> float | None:
    """theta of frequencies theta^(-i/n), None for other numbers."""
    flat = w.reshape(-1).double()
    if len(flat) < 4 or not bool((flat > 0).all()) or abs(float(flat[0]) - 1) > 1e-3:
        return None
    steps = flat.log().diff()
    mean = float(steps.mean())
    if mean >= 0 or float((steps - mean).abs().max()) > 1e-3 * abs(mean):
        return None
    return math.exp(-mean * len(flat))
