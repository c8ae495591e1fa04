"""TypedEvaluator: what a strongly typed engine computes from an ONNX graph, on a CPU and without TensorRT."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import onnx_ir as ir
import torch

from ...core.errors import UsageError
from ..io import load_model
from ..type_names import type_name
from ..values import WIDE_FLOATS, Narrow, Value, data_type_of
from .limits import Limits, limits_here
from .machine import Frame, Machine, Watch
from .overflow import Overflow, Underflow
from .plan import Step, plan_model
from .weights import Weights


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one run gave.

    outputs: graph outputs by name, in their declared types (fp64 where exact); kept: the values asked for by
    `keep`; overflow: values that left the finite range, in order; largest: the largest finite magnitude of every
    floating value before rounding, by name; underflow: values with numbers that rounding made zero, in order.
    """

    outputs: dict[str, torch.Tensor]
    kept: dict[str, torch.Tensor]
    overflow: tuple[Overflow, ...]
    largest: dict[str, float]
    underflow: tuple[Underflow, ...] = ()


class TypedEvaluator:
    """Executes a typed ONNX graph in torch by TensorRT's rules.

    Every value is rounded to its declared type, once; arithmetic on 16- and 8-bit floats happens in fp32, products
    and reductions accumulate in fp32, normalisations keep their statistics in fp32. exact: every floating value
    of 16 bits and more is fp64 and nothing is rounded; types of 8 bits and less keep their grid, which is part of
    what the graph means. cache_weights: keep converted weights between runs (as much memory again, or twice
    or four times that, for speed). Source: TensorRT Developer Guide, strongly typed networks; ONNX operators.
    """

    def __init__(
        self,
        model: ir.Model | Path | str,
        *,
        exact: bool = False,
        cache_weights: bool = False,
        limits: Limits | None = None,
    ) -> None:
        """Read and plan the model; raises UsageError naming an operator that is not known.

        limits: what a run may ask of this machine, limits_here() by default.
        """
        self._model = model if isinstance(model, ir.Model) else load_model(model)
        self._exact = exact
        self._limits = limits or limits_here()
        self._plan = plan_model(self._model)
        self._weights = Weights(exact=exact, cache=cache_weights)

    def value_names(self) -> tuple[str, ...]:
        """Every computed value that `keep` may name; inside functions "<node>/<value>"."""
        return tuple(self._plan.value_names())

    @torch.no_grad()
    def run(
        self,
        feeds: Mapping[str, torch.Tensor],
        keep: Collection[str] = (),
        watch: Watch | None = None,
    ) -> Evaluation:
        """Execute the graph on `feeds` (input name -> tensor in the declared type; any float where exact).

        keep: values to return as well. watch: value -> called with the tensor as soon as it is there, graph inputs
        first; it must not write into it and need not hold it. What a body inside Loop computes comes each time.
        Raises UsageError for a missing, unknown or misfitting input, for an unknown name in `keep` or `watch`, and
        where a node cannot run or would pass the limits, naming it.
        """
        watch = watch or {}
        inputs = self._inputs(feeds)
        self._check_known((*keep, *watch))
        machine = Machine(self._weights, self._limits, exact=self._exact, keep=keep, watch=watch)
        for value, fed in zip(self._plan.inputs, inputs, strict=True):
            machine.show(value.name or "", fed)
        results = machine.run(self._plan, inputs, {})
        names = [str(value.name) for value in self._plan.outputs]
        lent = self._weights.lent | {_address(fed) for fed in inputs}
        return Evaluation(
            outputs={n: _public(v, lent) for n, v in zip(names, results, strict=True)},
            kept={n: _public(v, lent) for n, v in machine.kept.items()},
            overflow=machine.recorder.found,
            largest=machine.recorder.largest,
            underflow=machine.recorder.vanished,
        )

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of the main graph, for those who run them one by one (see Walk)."""
        return tuple(self._plan.steps)

    def frame(self, feeds: Mapping[str, torch.Tensor]) -> Frame:
        """The values before the first step: the checked inputs. Raises UsageError as `run` does."""
        return dict(zip(self._plan.inputs, self._inputs(feeds), strict=True))

    def advance(self, step: Step, frame: Frame) -> None:
        """Compute one of `steps`; its inputs are in `frame`, where its outputs go."""
        machine = Machine(self._weights, self._limits, exact=self._exact, keep=(), watch={})
        machine.run_step(self._plan, step, frame)

    def read(self, value: ir.Value, frame: Frame) -> Value:
        """A value of `frame`, or the weight of that name."""
        return frame[value] if value in frame else self._weights.read(value)

    def _inputs(self, feeds: Mapping[str, torch.Tensor]) -> list[Value]:
        known = [str(value.name) for value in self._plan.inputs]
        if unknown := sorted(feeds.keys() - set(known)):
            raise UsageError(
                f"inputs {', '.join(unknown)}",
                found="the graph has no such input",
                fix=f"It has {', '.join(known)}",
            )
        sizes: dict[str, tuple[str, int]] = {}
        inputs: list[Value] = []
        for value in self._plan.inputs:
            if value.name is not None and value.name in feeds:
                fed: Value = feeds[value.name]
                if isinstance(fed, torch.Tensor):
                    self._check_feed(value, fed, sizes)
                    if self._exact and fed.is_floating_point() and value.dtype in WIDE_FLOATS:
                        fed = fed.double()
                inputs.append(fed)
            elif value.const_value is not None:
                inputs.append(self._weights.read(value))
            elif isinstance(value.type, ir.OptionalType):
                inputs.append(None)
            else:
                raise UsageError(
                    f"input {value.name!r}", found="not given", fix=f"Give {', '.join(known)}"
                )
        return inputs

    def _check_feed(
        self, value: ir.Value, fed: torch.Tensor, sizes: dict[str, tuple[str, int]]
    ) -> None:
        asked = f"input {value.name!r}"
        found, declared = data_type_of(fed), value.dtype
        exact = self._exact and declared in WIDE_FLOATS and fed.is_floating_point()
        if declared is not None and found != declared and not exact:
            raise UsageError(
                asked,
                found=f"{type_name(found)}, but the graph declares {type_name(declared)}",
                fix="Convert the input",
            )
        if value.shape is None:
            return
        if len(value.shape) != fed.ndim:
            raise UsageError(asked, found=f"rank {fed.ndim}", fix=f"The graph has {value.shape}")
        for axis, (dim, size) in enumerate(zip(value.shape, fed.shape, strict=True)):
            if isinstance(dim, int):
                if dim != size:
                    raise UsageError(
                        asked, found=f"axis {axis} has size {size}", fix=f"It must be {dim}"
                    )
            elif dim.value is not None:
                other, before = sizes.setdefault(str(dim.value), (str(value.name), size))
                if before != size:
                    raise UsageError(
                        f"{asked}, axis {axis} ({dim.value})",
                        found=f"size {size}, but {other!r} has {before}",
                        fix="One axis name has one size",
                    )

    def _check_known(self, names: Collection[str]) -> None:
        if not names:
            return
        known = {*self.value_names(), *(str(v.name) for v in self._plan.inputs)}
        for name in names:
            if name not in known:
                near = get_close_matches(name, known, n=3)
                raise UsageError(
                    f"value {name!r}",
                    found="the graph computes no such value",
                    fix=f"Close to it: {', '.join(near)}" if near else "See value_names()",
                )


def _address(value: Value) -> int:
    return value.untyped_storage().data_ptr() if isinstance(value, torch.Tensor) else 0


def _public(value: Value, lent: Collection[int]) -> torch.Tensor:
    """A value that the caller may write into: a copy of what shares memory with a weight or an input.

    Numbers of types that torch lacks come in the type that holds them; sequences and absent values as they are.
    """
    if isinstance(value, Narrow):
        return value.data
    if _address(value) in lent and isinstance(value, torch.Tensor):
        return value.clone()
    return value  # type: ignore[return-value]
