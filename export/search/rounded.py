"""A graph whose linears can be run quantised or not, one by one, without writing a file for each choice.

Switchboard(model, options).calibrate(feeds)     every linear rounded once, as quantize_model would
.outputs(feeds, keep)                            the graph's outputs with all linears quantised but `keep`
.alone(feeds, linears)                           the outputs with one linear quantised, for each of them
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
import torch

from ...core.progress import Progress, silent
from ...graph.evaluator import TypedEvaluator
from ...graph.evaluator.machine import Frame
from ...graph.evaluator.plan import Step
from ..calibration.observers import Grid, Observed
from ..linears.find import Linear, find_linears
from ..linears.pack import pack_linears
from ..quantize.calibrate import Calibration, Quantized, typed_product
from ..quantize.grids import E4M3
from ..quantize.options import QuantizeOptions
from ..quantize.weights import WEIGHT_FORMATS, expanded

Feeds = Sequence[Mapping[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Rounded:
    """One linear's codes [in, out] in the smallest torch type that holds them, its scales, its activation's scale."""

    codes: torch.Tensor
    scales: torch.Tensor
    activation: Observed | None

    def product(self, linear: Linear, x: torch.Tensor, form: str) -> torch.Tensor:
        """What the quantised linear gives for `x`, in the type that the graph declares."""
        seen = x.float()
        if self.activation is not None:
            scale = self.activation.scale
            seen = E4M3.round(seen / scale) * scale
        weight = self.codes.float() * expanded(self.scales, WEIGHT_FORMATS[form])
        return typed_product(linear, seen @ weight)


@dataclass(slots=True)
class Switchboard:
    """The switchable graph.

    model: packed in place where the options ask for it; linears: all of them; members: the names of the linears that a
    packed one was made of, its own name for another.
    """

    model: ir.Model
    options: QuantizeOptions
    linears: list[Linear] = field(init=False)
    members: dict[Linear, tuple[str, ...]] = field(init=False)
    evaluator: TypedEvaluator = field(init=False)
    _rounded: dict[Linear, Rounded] = field(default_factory=dict)

    def __post_init__(self) -> None:
        single = find_linears(self.model, self.options)
        self.linears = pack_linears(self.model, single) if self.options.pack else single
        self.members = {x: _members(x, single) for x in self.linears}
        self.evaluator = TypedEvaluator(self.model, cache_weights=True)

    @property
    def candidates(self) -> list[Linear]:
        """The linears that the options let be quantised."""
        return [linear for linear in self.linears if not linear.reason]

    def calibrate(
        self, feeds: Feeds, scale_dtype: ir.DataType, progress: Progress = silent
    ) -> None:
        """Round every candidate, each seeing what the rounded ones before it give."""
        form = WEIGHT_FORMATS[self.options.format]

        def store(done: Quantized) -> None:
            codes = _compact(done.codes, form.grid)
            self._rounded[done.linear] = Rounded(codes, done.scales, done.activation)

        Calibration(self.model, self.candidates, self.options, scale_dtype, store).run(
            feeds, [], progress
        )

    @torch.no_grad()
    def outputs(
        self, feeds: Feeds, keep: Collection[Linear] | None
    ) -> list[dict[str, torch.Tensor]]:
        """The graph's outputs for each feed; keep None: nothing is quantised."""
        chosen = set() if keep is None else set(self.candidates) - set(keep)
        found = []
        for feed in feeds:
            frame = self.evaluator.frame(feed)
            found.append(self._finish(frame, 0, chosen))
        return found

    @torch.no_grad()
    def alone(
        self, feeds: Feeds, linears: Collection[Linear]
    ) -> Iterator[tuple[Linear, list[dict[str, torch.Tensor]]]]:
        """Each of `linears` in graph order, with the outputs when it alone is quantised; the steps before are shared."""
        frames = [self.evaluator.frame(feed) for feed in feeds]
        by_node = {linear.node: linear for linear in linears}
        left = len(by_node)
        for index, step in enumerate(self.evaluator.steps):
            if not left:
                return
            linear = linear_of(step, by_node)
            if linear is not None:
                left -= 1
                yield linear, [self._finish(dict(f), index, {linear}) for f in frames]
            for frame in frames:
                self.evaluator.advance(step, frame)
                release(step, frame)

    def quantized(self, linear: Linear, frame: Frame) -> torch.Tensor:
        """What the quantised linear gives in `frame`."""
        x = self.evaluator.read(linear.x, frame)
        assert isinstance(x, torch.Tensor)
        return self._rounded[linear].product(linear, x, self.options.format)

    def _finish(
        self, frame: Frame, start: int, chosen: Collection[Linear]
    ) -> dict[str, torch.Tensor]:
        """Run from step `start` to the end."""
        by_node = {linear.node: linear for linear in chosen}
        for step in self.evaluator.steps[start:]:
            linear = linear_of(step, by_node)
            if linear is None:
                self.evaluator.advance(step, frame)
            else:
                frame[step.outputs[0]] = self.quantized(linear, frame)
            release(step, frame)
        return self.read_outputs(frame)

    def read_outputs(self, frame: Frame) -> dict[str, torch.Tensor]:
        """The graph's outputs by name, in the frame after the last step."""
        outputs = {}
        for value in self.model.graph.outputs:
            found = self.evaluator.read(value, frame)
            assert isinstance(found, torch.Tensor) and value.name
            outputs[value.name] = found
        return outputs


def linear_of(step: Step, by_node: Mapping[ir.Node, Linear]) -> Linear | None:
    """The linear among `by_node` that the step computes, None for another step."""
    node = step.outputs[0].producer() if step.outputs else None
    return None if node is None else by_node.get(node)


def _members(linear: Linear, single: Sequence[Linear]) -> tuple[str, ...]:
    if linear in single:
        return (linear.name,)
    gone = [x for x in single if x.x is linear.x and x.node.graph is None]
    alike = [x for x in gone if x.node.op_type == linear.node.op_type]
    members = [x for x in alike if x.transposed == linear.transposed]
    assert sum(x.size_out for x in members) == linear.size_out, linear.name
    return tuple(x.name for x in members)


def release(step: Step, frame: Frame) -> None:
    """Forget what nothing reads after the step."""
    for value in step.release:
        frame.pop(value, None)


def _compact(codes: torch.Tensor, grid: Grid) -> torch.Tensor:
    """Codes in one byte each where torch has a type that holds the grid."""
    if grid is E4M3:
        return codes.to(torch.float8_e4m3fn)
    return codes.to(torch.int8) if grid.name.startswith("int") else codes.half()
