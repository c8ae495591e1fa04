"""Run a plan: read the inputs of each step, compute, round the results to their types, forget what is done."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from ...core.errors import BlockforgeError, UsageError
from ..operators import Access, Body, Call
from ..rounding import LARGEST, round_to
from ..type_names import DataType, type_name
from ..values import (
    WIDE_FLOATS,
    Narrow,
    Value,
    arithmetic,
    as_bits,
    data_type_of,
    describe,
    from_bits,
)
from .limits import LOOP_STEPS, VALUE_BYTES, Limits
from .overflow import Recorder
from .plan import Plan, Step
from .sizes import elements
from .weights import Weights

Frame = dict[ir.Value, Value]
Watch = Mapping[str, Callable[[torch.Tensor], None]]


class Machine:
    """One run of a model: its weights, what it keeps and what it noticed."""

    def __init__(
        self, weights: Weights, limits: Limits, *, exact: bool, keep: Collection[str], watch: Watch
    ) -> None:
        self._weights, self._exact = weights, exact
        self._limits, self._loop_steps = limits, 0
        self._keep, self._watch = frozenset(keep), watch
        self.recorder = Recorder()
        self.kept: dict[str, Value] = {}

    def run(self, plan: Plan, inputs: Sequence[Value], frame: Frame) -> list[Value]:
        """The outputs of `plan`; inner graphs share the frame of the graph around them."""
        frame.update(zip(plan.inputs, inputs, strict=False))
        for step in plan.steps:
            self.run_step(plan, step, frame)
            for value in step.release:
                frame.pop(value, None)
        return [self._read(value, frame) for value in plan.outputs]

    def run_step(self, plan: Plan, step: Step, frame: Frame) -> None:
        """Compute one step of `plan` from and into `frame`."""
        inputs = [None if v is None else self._read(v, frame) for v in step.inputs]
        try:
            if step.function is not None:
                missing = [None] * (len(step.function.inputs) - len(inputs))
                results = self.run(step.function, [*inputs, *missing], {})
            else:
                results = self._compute(plan, step, inputs, frame)
        except BlockforgeError as error:
            if step.function is not None or step.bodies or "node " in error.asked:
                raise
            raise UsageError(
                f"node {step.label!r} ({step.operation.name})",
                found=f"{error.asked}: {error.found}",
                fix=error.fix,
            ) from error
        except (
            RuntimeError,
            ValueError,
            IndexError,
            TypeError,
            AttributeError,
            KeyError,
            MemoryError,
        ) as error:
            cause = " ".join(str(error).split())[:300]
            raise UsageError(
                f"node {step.label!r} ({step.operation.name})",
                found=f"{cause or error.__class__.__name__}; inputs {', '.join(map(describe, inputs))}",
            ) from error
        for value, result in zip(step.outputs, results, strict=False):
            self._check_declared(step, value, result)
            frame[value] = result
            self.show(plan.prefix + (value.name or ""), result)

    def show(self, name: str, result: Value) -> None:
        """Keep the value `name`, and call who watches it, where that was asked for."""
        if name in self._keep:
            self.kept[name] = result
        if name in self._watch:
            self._watch[name](result.data if isinstance(result, Narrow) else result)  # type: ignore[arg-type]

    def _read(self, value: ir.Value, frame: Frame) -> Value:
        if value in frame:
            return frame[value]
        return self._weights.read(value)

    def _compute(self, plan: Plan, step: Step, inputs: list[Value], frame: Frame) -> list[Value]:
        operator = step.operator
        assert operator is not None
        types = tuple(data_type_of(value) for value in inputs)
        declared = tuple(  # exact numbers are fp64 whatever the graph declares
            v.dtype if v is not None and t == DataType.DOUBLE and v.dtype else t
            for v, t in zip(step.inputs, types, strict=True)
        )
        call = Call(
            op_type=step.operation.name,
            version=step.operation.version,
            attributes=step.operation.attributes,
            dtypes=declared,
            wanted=step.wanted,
            exact=self._exact,
            value_bytes=self._limits.value_bytes,
            bodies={name: self._body(step, body, frame) for name, body in step.bodies.items()},
        )
        self._check_size(step, inputs)
        if step.operation.name == "Loop":
            self._check_trips(step, inputs)
        if operator.access is Access.RAW:
            results = _as_list(operator.kernel(call, *inputs))
            if step.bodies:
                return results
            return self._observed(plan, step, inputs, results, step.output_types(types))
        targets = step.output_types(types)
        if operator.access is Access.MOVE:
            arguments = [None if v is None else as_bits(_tensor(v)) for v in inputs]
            results = _as_list(operator.kernel(call, *arguments))
            return [
                r if t is None or r is None else from_bits(r, t)
                for r, t in zip(results, targets, strict=False)
            ]
        arguments = [self._widened(v, x) for v, x in zip(step.inputs, inputs, strict=True)]
        results = _as_list(operator.kernel(call, *arguments))
        return self._observed(plan, step, inputs, results, targets)

    def _widened(self, value: ir.Value | None, x: Value) -> torch.Tensor | None:
        if value is None or x is None:
            return None
        if value.is_initializer() and not value.is_graph_input():
            return self._weights.widened(value, _tensor(x))
        return arithmetic(_tensor(x))

    def _body(self, step: Step, plan: Plan, frame: Frame) -> Body:
        def run(inputs: Sequence[Value]) -> list[Value]:
            if step.operation.name != "If":
                self._loop_steps += len(plan.steps) + 1
                if self._loop_steps > self._limits.loop_steps:
                    raise self._too_long(
                        step, f"more than {self._limits.loop_steps} steps in loops"
                    )
            return self.run(plan, inputs, frame)

        return Body(run, plan.outputs)

    def _check_size(self, step: Step, inputs: Sequence[Value]) -> None:
        """Refuse what would not fit before it is allocated."""
        count = elements(step.operation.name, inputs, step.operation.attributes)
        needed, most = count * (8 if self._exact else 4), self._limits.value_bytes
        if needed > most:
            raise UsageError(
                f"node {step.label!r} ({step.operation.name})",
                found=f"it makes {count} elements, {needed} bytes; a value may have {most}",
                fix=f"Give smaller inputs; ${VALUE_BYTES} allows more",
            )

    def _check_trips(self, step: Step, inputs: Sequence[Value]) -> None:
        """Refuse a Loop that is known to run too often before its first iteration."""
        trips, going = inputs[0], inputs[1] if len(inputs) > 1 else None
        body = step.bodies["body"]
        if not isinstance(trips, torch.Tensor) or not _never_stops(body):
            return
        if isinstance(going, torch.Tensor) and not bool(going):
            return
        if int(trips) * (len(body.steps) + 1) > self._limits.loop_steps:
            raise self._too_long(step, f"{int(trips)} iterations of {len(body.steps)} nodes")

    def _too_long(self, step: Step, found: str) -> UsageError:
        most = self._limits.loop_steps
        return UsageError(
            f"node {step.label!r} ({step.operation.name})",
            found=f"{found}; a run may make {most} steps in loops",
            fix=f"Give fewer iterations; ${LOOP_STEPS} allows more",
        )

    def _observed(
        self,
        plan: Plan,
        step: Step,
        inputs: list[Value],
        results: list[Any],
        targets: Sequence[DataType | None],
    ) -> list[Value]:
        """Results rounded to their types, with what they lost noted."""
        rounded: list[Value] = []
        for value, result, target in zip(step.outputs, results, targets, strict=False):
            if not isinstance(result, torch.Tensor) or target is None:
                rounded.append(result)
                continue
            if self._exact and target in WIDE_FLOATS:
                target = DataType.DOUBLE
            stored = self._rounded(step, result, target)
            if isinstance(stored, torch.Tensor) and target in LARGEST and inputs:
                name = plan.prefix + (value.name or "")
                wide = arithmetic(result)
                wide = wide if wide.is_floating_point() else wide.double()
                self.recorder.observe(name, step.label, wide, stored, target, inputs)
            rounded.append(stored)
        return rounded

    def _rounded(self, step: Step, result: torch.Tensor, target: DataType) -> torch.Tensor | Narrow:
        attributes = step.operation.attributes
        saturate = "saturate" not in attributes or attributes["saturate"].as_int() != 0
        mode = attributes["round_mode"].as_string() if "round_mode" in attributes else "up"
        return round_to(result, target, saturate=saturate, mode=mode)

    def _check_declared(self, step: Step, value: ir.Value, result: Value) -> None:
        found, declared = data_type_of(result), value.dtype
        if found is None or declared is None or found == declared:
            return
        if self._exact and found == DataType.DOUBLE and declared in WIDE_FLOATS:
            return
        raise UsageError(
            f"value {value.name!r} of node {step.label!r} ({step.operation.name})",
            found=f"declared {type_name(declared)}, but the operator gives {type_name(found)}",
            fix="Correct the declared type or insert a Cast",
        )


def _never_stops(body: Plan) -> bool:
    """Whether a Loop's body hands its condition on as it came."""
    value: ir.Value | None = body.outputs[0]
    while value is not None and (node := value.producer()) is not None:
        if node.op_type != "Identity":
            return False
        value = node.inputs[0]
    return value is body.inputs[1]


def _tensor(value: Value) -> torch.Tensor | Narrow:
    if isinstance(value, torch.Tensor | Narrow):
        return value
    raise TypeError(f"a tensor is needed, not a {describe(value)}")


def _as_list(results: Any) -> list[Any]:
    return list(results) if isinstance(results, tuple) else [results]
