"""Patterns in the numbers alone: a constant factor, moved channels, shifted positions, one bad row or channel."""

from collections.abc import Iterator

import torch

from .case import Case, Cause
from .weights import describe_order, find_order


def positions(case: Case) -> Iterator[Cause]:
    """Whole numbers that are off by one constant."""
    expected, actual = case.evidence.expected, case.evidence.actual
    if expected.is_floating_point() or expected.dtype == torch.bool:
        return
    step = torch.unique(actual.long() - expected.long())
    if len(step) == 1:
        text = f"every number is off by {int(step)}: positions start elsewhere"
        yield Cause("positions", text, {"shift": int(step)})


def angles(case: Case) -> Iterator[Cause]:
    """Rotary angles: every position is off by the same multiple of its frequency."""
    expected, actual = case.expected, case.actual
    if expected.ndim < 2 or expected.shape[-2] < 3:
        return
    error = actual - expected
    step = expected.diff(dim=-2)
    if float(step.abs().max()) == 0 or not case.close(step, step[..., :1, :].expand_as(step)):
        return
    shift = float((error[..., 1:, :] * step).sum() / step.square().sum())
    if abs(shift) > 1e-3 and case.close(expected[..., 1:, :] + shift * step, actual[..., 1:, :]):
        text = f"angles are those of positions off by {shift:.4g}"
        yield Cause("positions", text, {"shift": shift})


def unchanged(case: Case) -> Iterator[Cause]:
    """The operator has no effect: its result is its input."""
    for value in case.region.inputs:
        x = case.evidence.given[str(value.name)]
        if (
            x.shape == case.actual.shape
            and x.is_floating_point()
            and case.close(x.double(), case.actual)
        ):
            rotary = case.twin is not None and any(
                n.op_type == "RotaryEmbedding" for n in case.twin.nodes
            )
            kind = "unrotated" if rotary else "no effect"
            text = f"the result is {value.name} unchanged" + (
                ": it is not rotated" if rotary else ""
            )
            yield Cause(kind, text, {"input": value.name})
            return


def factor(case: Case) -> Iterator[Cause]:
    """The value is a constant times the reference's."""
    e, a = case.expected, case.actual
    whole = float(e.square().sum())
    ratio = float((a * e).sum()) / whole if whole else 0.0
    if ratio and case.close(a, ratio * e):
        yield Cause("scale", f"the value is {ratio:.6g} times the reference's", {"factor": ratio})


def channels(case: Case) -> Iterator[Cause]:
    """The value's channels are the reference's in another order."""
    width = case.expected.shape[-1]
    e, a = case.expected.reshape(-1, width), case.actual.reshape(-1, width)
    if len(e) < 4 or width < 4:
        return
    limit = 16 * max(case.evidence.error.noise, case.evidence.error.unit)
    order = find_order(a.T, e.T, limit=limit)
    if order is not None:
        block, text = describe_order(order)
        yield Cause("channel order", f"channels in another order: {text}", {"block": block})


def places(case: Case) -> Iterator[Cause]:
    """A few rows or channels hold the whole error."""
    width = case.expected.shape[-1]
    error = (case.actual - case.expected).reshape(-1, width).square()
    total = float(error.sum())
    if not total > 0:
        return
    for axis, word in ((0, "channel"), (1, "position")):
        along = error.sum(axis)
        bad = (along > 1e-3 * total).nonzero().reshape(-1)
        if 0 < len(bad) <= max(1, len(along) // 8) and float(along[bad].sum()) > 0.99 * total:
            some = ", ".join(str(int(i)) for i in bad[:6]) + (", ..." if len(bad) > 6 else "")
            plural = "s" if len(bad) > 1 else ""
            if axis == 1 and case.expected.ndim > 2:
                spots = [torch.unravel_index(i, case.expected.shape[:-1]) for i in bad[:6]]
                some = ", ".join(str([int(j) for j in spot]) for spot in spots)
            text = f"99 % of the error lies in {len(bad)} {word}{plural}: {some}"
            yield Cause(f"bad {word}", text, {word: [int(i) for i in bad[:8]]}, confirmed=False)
            return
    size = case.expected.reshape(-1, width).square().mean(1)
    if len(size) >= 8:
        small = size <= size.median() / 16
        share = float(error.sum(1)[small].sum()) / total
        if bool(small.any()) and share > 0.9:
            text = f"{share:.0%} of the error lies in the {int(small.sum())} smallest rows: an epsilon or a rounding of small numbers"
            yield Cause("small rows", text, {"share": share}, confirmed=False)


def input_row(case: Case) -> Iterator[Cause]:
    """The error is one input channel times one vector: one row of a weight (or a channel of the input) is wrong."""
    width = case.expected.shape[-1]
    error = (case.actual - case.expected).reshape(-1, width)
    if len(error) < 8 or width < 4 or not bool(error.isfinite().all()):
        return
    left, sizes, _ = torch.linalg.svd(error, full_matrices=False)
    if float(sizes[1]) > 0.05 * float(sizes[0]):
        return
    for value in case.region.inputs:
        x = case.evidence.given[str(value.name)].double()
        if x.ndim < 2 or x.numel() // x.shape[-1] != len(error):
            continue
        x = x.reshape(len(error), -1)
        match = (x.T @ left[:, 0]).abs() / x.square().sum(0).sqrt().clamp(min=1e-300)
        best = int(match.argmax())
        if float(match[best]) > 0.99:
            text = f"the error is channel {best} of {value.name} times one vector: row {best} of the weight differs"
            yield Cause("weight row", text, {"row": [best], "input": value.name}, confirmed=False)
            return
