"""An ONNX Attention node read into names, and the pieces that several rules write (ONNX operator Attention-23/24).

Shape legend: B batch, N query heads, K key heads, S queries, T keys, D head size.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from ...core.errors import BuildError
from .edit import Inserter

INPUTS = ("q", "k", "v", "mask", "past_key", "past_value", "nonpad")
POSITIONAL = (
    "is_causal",
    "left_window_size",
    "right_window_size",
)  # attributes that a mask replaces
INT64, BOOL = ir.DataType.INT64, ir.DataType.BOOL

# Added to the scores of hidden keys. Half the lowest finite number: a sum with a score stays finite, exp() of it
# is 0, and a row that hides every key gives finite numbers, where -inf gives NaN.
HIDDEN = {
    ir.DataType.FLOAT16: -32752.0,
    ir.DataType.BFLOAT16: -1.5e38,
    ir.DataType.FLOAT: -1.5e38,
    ir.DataType.DOUBLE: -1.5e38,
}


@dataclass(frozen=True, slots=True)
class AttentionForm:
    """One Attention node. Values are None where the node has no such input."""

    node: ir.Node
    q: ir.Value
    k: ir.Value
    v: ir.Value
    mask: ir.Value | None
    past_key: ir.Value | None
    past_value: ir.Value | None
    nonpad: ir.Value | None

    @property
    def dtype(self) -> ir.DataType:
        """The element type of queries, keys and values."""
        for value in (self.q, self.k, self.v, self.node.outputs[0]):
            if value.dtype is not None:
                return value.dtype
        raise self.untold("the element type")

    @property
    def is_causal(self) -> bool:
        return bool(self.node.attributes.get_int("is_causal", 0))

    @property
    def window(self) -> tuple[int, int]:
        """How many keys before and after its own position a query sees; -1 for all (opset 25)."""
        attributes = self.node.attributes
        left, right = (attributes.get_int(f"{side}_window_size", -1) for side in ("left", "right"))
        return left, right

    @property
    def is_3d(self) -> bool:
        """Whether heads are folded into the last axis: [B, S, N * D] instead of [B, N, S, D]."""
        return "q_num_heads" in self.node.attributes and self.rank == 3

    @property
    def rank(self) -> int:
        if self.q.shape is None:
            raise self.untold("the rank of its query")
        return len(self.q.shape)

    @property
    def num_heads(self) -> tuple[int, int]:
        """(query heads, key heads)."""
        attributes = self.node.attributes
        if self.is_3d:
            return attributes.get_int("q_num_heads", 0), attributes.get_int("kv_num_heads", 0)
        return self._static(self.q, 1), self._static(self.k, 1)

    def head_size(self, value: ir.Value) -> int:
        """D of one of q, k, v."""
        last = self._static(value, -1)
        if not self.is_3d:
            return last
        return last // self.num_heads[0 if value is self.q else 1]

    def heads_apart(self, at: Inserter, value: ir.Value) -> ir.Value:
        """`value` as [B, heads, length, D]."""
        if not self.is_3d:
            return value
        heads = self.num_heads[0 if value is self.q else 1]
        split = at.op(
            "Reshape",
            [value, at.constant([0, 0, heads, -1], INT64)],
            dtype=self.dtype,
        )
        batch, length, last = value.shape if value.shape is not None else (None, None, None)
        size = last // heads if isinstance(last, int) and heads else None
        shape = ir.Shape([batch, heads, length, size])
        return at.op("Transpose", [split], dtype=self.dtype, shape=shape, perm=[0, 2, 1, 3])

    def heads_together(self, at: Inserter, y_BNSD: ir.Value) -> ir.Value:
        """The node's result in the form its readers expect."""
        if not self.is_3d:
            return y_BNSD
        turned = at.op("Transpose", [y_BNSD], dtype=self.dtype, perm=[0, 2, 1, 3])
        return at.op("Reshape", [turned, at.constant([0, 0, -1], INT64)], dtype=self.dtype)

    def length(self, at: Inserter, value: ir.Value) -> ir.Value:
        """The sequence length of q, k, v (or of a past value, always 4-D), as an int64 scalar."""
        axis = 1 if self.is_3d and value in (self.q, self.k, self.v) else 2
        sizes = at.op("Shape", [value], dtype=INT64)
        return at.op("Gather", [sizes, at.constant(axis, INT64)], dtype=INT64, axis=0)

    def _static(self, value: ir.Value, axis: int) -> int:
        size = value.shape[axis] if value.shape is not None else None
        if not isinstance(size, int):
            raise self.untold(f"axis {axis} of {value.name!r}")
        return size

    def untold(self, what: str) -> BuildError:
        """The graph leaves out something a rewrite needs."""
        return BuildError(
            f"legalise node {self.node.name!r} (Attention)",
            found=f"{what} is not declared in the graph",
            fix="Run shape inference on the graph first",
        )


def attentions(model: ir.Model) -> Iterator[AttentionForm]:
    """Every Attention of the standard domain; a rule may replace the node it was handed."""
    for node in list(model.graph.all_nodes()):
        if node.domain == "" and node.op_type == "Attention":
            given = [*node.inputs, *[None] * (len(INPUTS) - len(node.inputs))]
            q, k, v, *rest = given
            assert q is not None and k is not None and v is not None
            yield AttentionForm(node, q, k, v, *rest)


def position_masks(
    form: AttentionForm, at: Inserter, keys: ir.Value, offset: ir.Value | None
) -> list[ir.Value]:
    """What causality and window hide, each as bool [.., S, T]: for query i at position p = i + offset, key j is kept

        when j <= p (is_causal), when j >= p - left window, when j <= p + right window.

    keys: T as a scalar. offset: None for 0 (no cache), a scalar, or [B, 1, 1, 1] for one per batch entry.
    """
    left, right = form.window
    if not form.is_causal and left < 0 and right < 0:
        return []
    columns = _range(at, keys)
    rows = at.op(
        "Unsqueeze", [_range(at, form.length(at, form.q)), at.constant([1], INT64)], dtype=INT64
    )
    if offset is not None:
        rows = at.op("Add", [rows, offset], dtype=INT64)
    keeps = []
    if form.is_causal:
        keeps.append(at.op("LessOrEqual", [columns, rows], dtype=BOOL))
    if left >= 0:
        first = at.op("Sub", [rows, at.constant(left, INT64)], dtype=INT64)
        keeps.append(at.op("GreaterOrEqual", [columns, first], dtype=BOOL))
    if right >= 0:
        last = at.op("Add", [rows, at.constant(right, INT64)], dtype=INT64)
        keeps.append(at.op("LessOrEqual", [columns, last], dtype=BOOL))
    return keeps


def padding_mask(form: AttentionForm, at: Inserter, keys: ir.Value, nonpad: ir.Value) -> ir.Value:
    """Bool [B, 1, 1, T]: key j is no padding when j < nonpad[b]."""
    sizes = at.op("Reshape", [nonpad, at.constant([-1, 1, 1, 1], INT64)], dtype=INT64)
    return at.op("Less", [_range(at, keys), sizes], dtype=BOOL)


def additive(form: AttentionForm, at: Inserter, keep: ir.Value) -> ir.Value:
    """0 where the bool mask `keep` is true and HIDDEN elsewhere, in the type of the scores."""
    zero = at.constant(0.0, form.dtype)
    hidden = at.constant(HIDDEN[form.dtype], form.dtype)
    return at.op("Where", [keep, zero, hidden], dtype=form.dtype)


def _range(at: Inserter, limit: ir.Value) -> ir.Value:
    return at.op("Range", [at.constant(0, INT64), limit, at.constant(1, INT64)], dtype=INT64)
