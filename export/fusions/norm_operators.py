"""The standard operators of the norms: RMSNormalization (opset 23) and LayerNormalization (opset 17).

Both normalise in float32 (stash_type 1), round to the type of x, then scale: the point where the graph rounds is
kept by giving them x in the type in which the graph multiplies by the weight.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..algebra.facts import FLOATS, Facts
from ..algebra.symbols import Dims
from .match import Standard, Tape
from .statistics import Join

FLOAT = ir.DataType.FLOAT
LONGEST = 2**24  # of a scale of ones, which the operators ask for
NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(slots=True)
class Norm:
    """A proven normalisation, from the tensor to the value `root`."""

    centred: bool  # LayerNorm
    x: ir.Value  # what is normalised, as the product reads it
    axes: tuple[int, ...]
    dims: Dims
    epsilon: float
    placement: str  # inside, outside, floor
    exact: bool  # the scale is 1 to the last bit, not only to the type's precision
    join: Join
    root: ir.Value
    unweighted: ir.Value  # before the weight, the same as root without one
    weight: ir.Value | None = None
    bias: ir.Value | None = None
    weight_first: bool = False
    partial: bool = False  # statistics of the first elements only
    notes: list[str] = field(default_factory=list)


def standard_norm(facts: Facts, norm: Norm) -> Standard | None:
    """The standard operator for a proven norm, None where it would compute something else."""
    rank, count = len(norm.dims), len(norm.axes)
    sizes = norm.dims[rank - count :]
    if norm.axes != tuple(range(rank - count, rank)) or not all(isinstance(d, int) for d in sizes):
        return None
    if norm.weight is None and math.prod(d for d in sizes if isinstance(d, int)) > LONGEST:
        return None
    dtype = facts.dtype(norm.root)
    if dtype not in (FLOAT, *NARROW) or facts.dims(norm.root) != norm.dims:
        return None
    x = _source(facts, norm, dtype)
    if x is None or any(facts.dtype(v) != dtype for v in (norm.weight, norm.bias) if v is not None):
        return None
    if facts.dims(x) != norm.dims:
        return None
    norm.notes += _rounding(facts, norm, dtype)

    def build(tape: Tape) -> ir.Value:
        scale = _vector(tape, norm.weight, sizes, dtype, 1.0)
        inputs = [x, scale]
        if norm.bias is not None:
            inputs.append(_vector(tape, norm.bias, sizes, dtype, 0.0))
        operator = "LayerNormalization" if norm.centred else "RMSNormalization"
        return tape.op(
            operator, inputs, dtype, norm.dims, axis=-count, epsilon=norm.epsilon, stash_type=1
        )

    return Standard(
        "LayerNormalization" if norm.centred else "RMSNormalization",
        17 if norm.centred else 23,
        build,
    )


def _source(facts: Facts, norm: Norm, dtype: ir.DataType) -> ir.Value | None:
    """x in the type of the result: the operand itself, or what it was cast from."""
    value = norm.x
    while facts.dtype(value) != dtype:
        node = value.producer()
        below = node.inputs[0] if node is not None and node.op_type == "Cast" else None
        if below is None or facts.dtype(below) not in FLOATS:
            return None
        value = below
    return value


def _vector(
    tape: Tape, value: ir.Value | None, sizes: tuple[object, ...], dtype: ir.DataType, fill: float
) -> ir.Value:
    """A weight with exactly the normalised sizes, or one that changes nothing."""
    shape = [int(d) for d in sizes if isinstance(d, int)]
    if value is None:
        return tape.constant(np.full(shape, fill, dtype=np.float32), dtype)
    if tape.facts.dims(value) == tuple(shape):
        return value
    return tape.op("Reshape", [value, tape.ints(*shape)], dtype, tuple(shape))


def _rounding(facts: Facts, norm: Norm, dtype: ir.DataType) -> list[str]:
    """What the operator rounds elsewhere than the graph did."""
    notes = []
    kind = dtype.name.lower()
    if dtype in NARROW:
        argument = norm.join.moment.node.inputs[0]
        if dtype in (
            facts.dtype(argument),
            facts.dtype(facts.peel(argument) if argument is not None else None),
        ):
            notes.append(
                f"statistics were computed in {kind}, the operator computes them in float32"
            )
        elif facts.dtype(norm.join.node.outputs[0]) == dtype:
            notes.append(
                f"the root was rounded to {kind} before the product, the operator rounds after it"
            )
        if norm.weight_first:
            notes.append(
                f"the weight was multiplied first in {kind}, the operator multiplies it last"
            )
    return notes
