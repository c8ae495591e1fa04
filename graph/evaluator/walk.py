"""Walk: one graph over several sets of inputs at once, a step at a time, with results that the caller may replace.

walk = Walk(model, feeds); for step in walk.steps(): walk.inputs(value) -> tensors; walk.advance(step) or walk.put(...)
"""

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir
import torch

from ...core.errors import UsageError
from ..values import Narrow, Value
from .evaluator import TypedEvaluator
from .machine import Frame
from .plan import Step


class Walk:
    """What calibration needs of the evaluator: at each step the values of every feed, and no others, are held.

    The steps are those of the main graph; functions and inner graphs run inside their step. Numbers are those of
    `TypedEvaluator.run`. Raises UsageError for inputs that do not fit, as `run` does.
    """

    def __init__(self, model: ir.Model, feeds: Sequence[Mapping[str, torch.Tensor]]) -> None:
        if not feeds:
            raise UsageError(
                "a walk through a graph", found="no inputs", fix="Give one feed or more"
            )
        self._evaluator = TypedEvaluator(model)
        self._frames: list[Frame] = [self._evaluator.frame(feed) for feed in feeds]

    @torch.no_grad()
    def steps(self) -> Iterator[Step]:
        """The steps in order; what nothing reads any more is forgotten after each."""
        for step in self._evaluator.steps:
            yield step
            for frame in self._frames:
                for value in step.release:
                    frame.pop(value, None)

    @torch.no_grad()
    def advance(self, step: Step) -> None:
        """Compute the step for every feed."""
        for frame in self._frames:
            self._evaluator.advance(step, frame)

    def inputs(self, value: ir.Value) -> list[torch.Tensor]:
        """The tensor of `value` for every feed, as the graph holds it; not to be written into."""
        found = [self._evaluator.read(value, frame) for frame in self._frames]
        return [_tensor(v) for v in found]

    def put(self, value: ir.Value, tensors: Sequence[torch.Tensor]) -> None:
        """Let `value` be `tensors`, one a feed, instead of what its step computes."""
        for frame, tensor in zip(self._frames, tensors, strict=True):
            frame[value] = tensor


def _tensor(value: Value) -> torch.Tensor:
    found = value.data if isinstance(value, Narrow) else value
    assert isinstance(found, torch.Tensor), "a sequence is no operand of a product"
    return found
