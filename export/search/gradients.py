"""What one rounded linear does to a graph's outputs, for all linears at once: to first order, from gradients.

    z(a) = outputs with y_l + a_l d_l in place of every linear's y_l      d_l = quantised - plain output
    J_l d_l = dz / da_l at 0                                              in one run of the plain graph

A random v pulled back through the graph gives <v, J_l d_l> for every linear and row in one backward pass. Its square
has the expectation E <v, J d>^2 = (J d)^T E[v v^T] J d, so v decides what is measured: with v = e_y - p and y drawn from
p = softmax(z), E[v v^T] is the Fisher matrix and half the square the KL divergence to second order; with v normal, the
squared error. Rows (tokens) are squared one by one: what their errors cancel or add in one another is left out.
Source: Amari, "Natural Gradient Works Efficiently in Learning" (1998); Hutchinson's estimator (1990).

Time: two runs, one rounded product of every linear and `samples` backward passes, whatever the number of linears.
Memory: what is live between segments of a few linears, and one segment's intermediate values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard

import onnx_ir as ir
import torch

from ...core.errors import UsageError
from ...core.progress import Progress, Step, silent
from ...graph.evaluator.machine import Frame
from ...graph.evaluator.plan import Step as GraphStep
from ..linears.find import Linear
from .measures import Measure, Outputs, logits_name
from .rounded import Feeds, Switchboard, linear_of, release

STAIRS = frozenset({"Ceil", "Floor", "Round", "Sign"})
CASTS = frozenset({"Cast", "DynamicQuantizeLinear", "QuantizeLinear"})  # to whole numbers, perhaps
SEGMENT = 4  # linears whose intermediate values are held at once
Pull = Mapping[ir.Value, torch.Tensor]  # what a random direction asks of each value


def estimated_gains(
    board: Switchboard,
    feeds: Feeds,
    reference: Sequence[Outputs],
    measure: Measure,
    *,
    samples: int,
    seed: int,
    progress: Progress = silent,
) -> dict[Linear, float]:
    """An estimate of the measure with one linear quantised, for every candidate that a gradient reaches.

    reference: the plain graph's outputs for each of `feeds`. The same seed gives the same numbers. A graph that no
    gradient passes through, or that rounds on the way, gives none.
    """
    generator = torch.Generator().manual_seed(seed)
    totals: dict[Linear, float] = {}
    for number, (feed, outputs) in enumerate(zip(feeds, reference, strict=True)):
        progress(Step("gradients", number, len(feeds)))
        pulls = _pulls(board, outputs, measure, samples, generator)
        try:
            squares = _squares(board, feed, pulls)
        except (UsageError, RuntimeError):  # an operator that torch cannot differentiate
            return {}
        known = squares if not number else totals
        totals = {x: totals.get(x, 0.0) + squares[x] for x in known if x in squares}
    return {x: _gain(total / samples, reference, measure) for x, total in totals.items()}


def _gain(square: float, reference: Sequence[Outputs], measure: Measure) -> float:
    """The measure from the mean of squares."""
    if measure == "kl":
        name = logits_name(reference[0])
        return 0.5 * square / sum(o[name].numel() // o[name].shape[-1] for o in reference)
    size = sum(float(t.double().square().sum()) for o in reference for t in _floats(o).values())
    return (square / size) ** 0.5 if size else 0.0


def _floats(outputs: Outputs) -> Outputs:
    return {name: tensor for name, tensor in outputs.items() if tensor.is_floating_point()}


def _pulls(
    board: Switchboard,
    outputs: Outputs,
    measure: Measure,
    samples: int,
    generator: torch.Generator,
) -> Iterator[Pull]:
    """`samples` random directions, one at a time."""
    values = {str(value.name): value for value in board.model.graph.outputs}
    if measure == "error":
        for _ in range(samples):
            yield {
                values[name]: torch.randn(t.shape, generator=generator).to(t.dtype)
                for name, t in _floats(outputs).items()
            }
        return
    name = logits_name(outputs)
    logits = outputs[name]
    p = logits.reshape(-1, logits.shape[-1]).float().softmax(-1)
    for _ in range(samples):
        drawn = torch.multinomial(p, 1, generator=generator)
        direction = (-p).scatter_add_(1, drawn, torch.ones(drawn.shape))
        yield {values[name]: direction.reshape(logits.shape).to(logits.dtype)}


def _squares(
    board: Switchboard, feed: Mapping[str, torch.Tensor], pulls: Iterable[Pull]
) -> dict[Linear, float]:
    """Sums over rows and directions of <v, J d>^2, for every candidate that the directions reach."""
    segments = _segments(board)
    starts = []
    with torch.no_grad():
        frame = board.evaluator.frame(feed)
        for segment in segments:
            starts.append(dict(frame))
            for step in segment:
                board.evaluator.advance(step, frame)
                release(step, frame)
    found: dict[Linear, float] = {}
    while segments:
        pulls, squares = _pulled_back(board, segments.pop(), starts.pop(), pulls)
        found |= squares
    return {x: square for x, square in found.items() if 0 < square < float("inf")}  # nor NaN


def _segments(board: Switchboard) -> list[list[GraphStep]]:
    by_node = {linear.node: linear for linear in board.candidates}
    segments: list[list[GraphStep]] = [[]]
    count = 0
    for step in board.evaluator.steps:
        if linear_of(step, by_node) is not None:
            count += 1
            if count > SEGMENT:
                segments.append([])
                count = 1
        segments[-1].append(step)
    return segments


def _pulled_back(
    board: Switchboard, segment: Sequence[GraphStep], frame: Frame, pulls: Iterable[Pull]
) -> tuple[list[Pull], dict[Linear, float]]:
    """Run a segment again from its first frame, and take each direction from its end to its start."""
    leaves = {v: t.detach().requires_grad_() for v, t in frame.items() if _differentiable(t)}
    frame = {**frame, **leaves}
    factors: dict[Linear, torch.Tensor] = {}
    by_node = {linear.node: linear for linear in board.candidates}
    with torch.enable_grad():
        for step in segment:
            linear = linear_of(step, by_node)
            change = None if linear is None else _quantized(board, linear, frame)
            varies = any(_reached(frame.get(v)) for v in step.inputs if v is not None)
            board.evaluator.advance(step, frame)
            if varies and _rounds(step, frame):
                raise RuntimeError(f"{step.label} has no slope")
            if linear is not None and change is not None:
                plain = frame[step.outputs[0]]
                assert isinstance(plain, torch.Tensor)
                change = change.float() - plain.detach().float()
                factor = torch.zeros(*change.shape[:-1], 1, requires_grad=True)
                factors[linear] = factor
                frame[step.outputs[0]] = (plain.float() + factor * change).to(plain.dtype)
            release(step, frame)
    asked = [*leaves.values(), *factors.values()]
    before: list[Pull] = []
    squares = dict.fromkeys(factors, 0.0)
    for pull in pulls:
        ends = [(end, g) for v, g in pull.items() if _reached(end := frame.get(v))]
        grads: Sequence[torch.Tensor | None] = [None] * len(asked)
        if ends:
            grads = torch.autograd.grad(
                [e for e, _ in ends],
                asked,
                [g for _, g in ends],
                retain_graph=True,
                allow_unused=True,
            )
        before.append({v: g for v, g in zip(leaves, grads, strict=False) if g is not None})
        for linear, slope in zip(factors, grads[len(leaves) :], strict=True):
            squares[linear] += float("nan") if slope is None else float(slope.square().sum())
    return before, squares


@torch.no_grad()
def _quantized(board: Switchboard, linear: Linear, frame: Frame) -> torch.Tensor:
    return board.quantized(linear, frame)


def _rounds(step: GraphStep, frame: Frame) -> bool:
    """Whether the step's result follows its input in stairs, which a gradient takes for constant."""
    name = step.operation.name
    return name in STAIRS or (name in CASTS and not _reached(frame[step.outputs[0]]))


def _differentiable(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.itemsize > 1


def _reached(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor) and value.requires_grad
