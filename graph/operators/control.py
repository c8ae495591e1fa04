"""Control flow: bodies are graphs that see the values around them."""

import onnx_ir as ir
import torch

from ..type_names import DataType
from ..values import TORCH_TYPES, WIDE_FLOATS, Value
from .registry import Call, Tensor, raw


@raw("If")
def if_(call: Call, condition: Tensor) -> tuple[Value, ...]:
    """Run one branch: its outputs are the node's."""
    return tuple(call.bodies["then_branch" if bool(condition) else "else_branch"]([]))


@raw("Loop")
def loop(
    call: Call, trip_count: Tensor | None, condition: Tensor | None, *carried: Value
) -> tuple[Value, ...]:
    """body(iteration, condition, carried...) -> condition, carried..., scanned...; scanned values are stacked."""
    limit = None if trip_count is None else int(trip_count)
    going = True if condition is None else bool(condition)
    state: list[Value] = list(carried)
    scanned: list[list[Tensor]] = [[] for _ in call.wanted[len(state) :]]
    step = held = 0
    while going and (limit is None or step < limit):
        outcome, *results = call.bodies["body"]([torch.tensor(step), torch.tensor(going), *state])
        assert isinstance(outcome, torch.Tensor)
        going = bool(outcome)
        state = results[: len(state)]
        for column, value in zip(scanned, results[len(state) :], strict=True):
            assert isinstance(value, torch.Tensor)
            column.append(value)
            held = _held(call, held, value)
        step += 1
    declared = call.bodies["body"].outputs[1 + len(state) :]
    return (
        *state,
        *(
            torch.stack(c) if c else _nothing(call, v)
            for c, v in zip(scanned, declared, strict=True)
        ),
    )


def _held(call: Call, held: int, value: Tensor) -> int:
    """The bytes that wait to be stacked; ValueError where they pass what a value may have."""
    held += value.numel() * value.element_size()
    if held > call.value_bytes:
        raise ValueError(f"its iterations stack {held} bytes, a value may have {call.value_bytes}")
    return held


def _nothing(call: Call, declared: ir.Value) -> Tensor:
    """What a loop without iterations stacks: no rows of the declared type and sizes (unknown ones as 0)."""
    dtype = TORCH_TYPES[declared.dtype or DataType.FLOAT]
    if call.exact and declared.dtype in WIDE_FLOATS:
        dtype = torch.float64
    sizes = [n if isinstance(n, int) else 0 for n in declared.shape or ()]
    return torch.zeros(0, *sizes, dtype=dtype)


@raw("Scan")
def scan(call: Call, *inputs: Tensor) -> tuple[Value, ...]:
    """body(state..., slices...) -> state..., scanned...: one step per slice of the scan inputs (opset 9)."""
    if call.version < 9:
        raise ValueError("Scan before opset 9 runs over batches: convert the model to opset 9")
    count = call.get_int("num_scan_inputs", 1)
    state: list[Value] = list(inputs[: len(inputs) - count])
    sources = inputs[len(inputs) - count :]
    axes = call.get_ints("scan_input_axes") or [0] * count
    backwards = call.get_ints("scan_input_directions") or [0] * count
    columns = [
        source.flip(axis) if back else source
        for source, axis, back in zip(sources, axes, backwards, strict=True)
    ]
    outputs = len(call.wanted) - len(state)
    scanned: list[list[Tensor]] = [[] for _ in range(outputs)]
    held = 0
    for step in range(sources[0].shape[axes[0]]):
        slices = [c.select(axis, step) for c, axis in zip(columns, axes, strict=True)]
        results = call.bodies["body"]([*state, *slices])
        state = results[: len(state)]
        for column, value in zip(scanned, results[len(state) :], strict=True):
            assert isinstance(value, torch.Tensor)
            column.append(value)
            held = _held(call, held, value)
    out_axes = call.get_ints("scan_output_axes") or [0] * outputs
    reverse = call.get_ints("scan_output_directions") or [0] * outputs
    stacked = [
        torch.stack(c[::-1] if back else c, axis)
        for c, axis, back in zip(scanned, out_axes, reverse, strict=True)
    ]
    return (*state, *stacked)
