"""Recognise the norms and gates that a quantise can be folded into, whatever they read.

RMSNormalization, LayerNormalization (with the addition before them), Swish, Gelu and x * Sigmoid(x) times a value, and the
functions of the domain blockforge that compute these already.
"""

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ...core.domain import DOMAIN
from ...plugins.table import ACTIVATIONS, MAX_ROW
from .epilogue_functions import NORMS, gate_function, norm_function, packed

TYPES = frozenset(ir.DataType(d.onnx) for d in ACTIVATIONS)
PLAIN = ("RMSNorm", "AddRMSNorm", "LayerNorm", "AddLayerNorm", "SwiGLU", "GeGLU", "SwiGLUPacked", "GeGLUPacked")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """An operator to fold: its function, what it reads, the values it computes besides the quantised one, its nodes.

    place: the node before which the folded one can stand.
    """

    function: onnx.FunctionProto
    inputs: tuple[ir.Value, ...]
    attributes: tuple[ir.Attr, ...]
    others: tuple[ir.Value, ...]
    nodes: tuple[ir.Node, ...]  # later ones first
    place: ir.Node

    @property
    def alike(self) -> ir.Value | None:
        """A value that stays and has the shape of the result, None where there is none."""
        if self.function.name.endswith("Packed"):
            return None
        return self.others[0] if self.others else self.inputs[0]


def is_candidate(node: ir.Node) -> bool:
    """Whether `node` gives what a norm or gate gives."""
    if node.domain == DOMAIN:
        return node.op_type in PLAIN
    return is_standard(node) and (node.op_type in NORMS or _activation(node) is not None)


def form_of(model: ir.Model, node: ir.Node) -> Form | str:
    """The operator that ends at `node`, or why it cannot be folded."""
    opset = model.opset_imports[""]
    if node.domain == DOMAIN:
        return _call(model, node)
    if node.op_type in NORMS:
        return _norm(node, opset)
    return _gate(node, opset)


def _call(model: ir.Model, node: ir.Node) -> Form | str:
    """A norm or gate that is a function already: its body stays."""
    function = model.functions.get(node.op_identifier())
    inputs = tuple(v for v in node.inputs if v is not None)
    if function is None or len(function.inputs) != len(node.inputs) or len(inputs) != len(node.inputs):  # fmt: skip
        return "the graph has no body for it"
    if inputs[0].dtype not in TYPES:
        return "its type is not known"
    if function.opset_imports.get("") != model.opset_imports[""]:
        return f"its body is of opset {function.opset_imports.get('')}"
    proto = ir.serde.serialize_function(function)
    attributes = tuple(node.attributes.values())
    return Form(proto, inputs, attributes, tuple(node.outputs[1:]), (node,), node)


def _norm(node: ir.Node, opset: int) -> Form | str:
    x, *vectors = node.inputs
    wanted = NORMS[node.op_type][1]
    if x is None or x.dtype not in TYPES or x.shape is None:
        return "the type or shape of its input is not known"
    if node.attributes.get_int("axis", -1) not in (-1, len(x.shape) - 1):
        return f"it runs over axis {node.attributes.get_int('axis', -1)}, not the last of {len(x.shape)}"
    if node.attributes.get_int("stash_type", 1) != 1:
        return "its statistics are not in FP32"
    if any(v.uses() or v.is_graph_output() for v in node.outputs[1:]):
        return "its statistics are read"
    held = tuple(v for v in vectors if v is not None and is_constant(v))
    if len(held) != len(wanted) or len(vectors) != len(wanted):
        return f"its {' or '.join(wanted)} is computed, or absent"
    if any(v.shape is None or len(v.shape) != 1 or v.dtype not in TYPES for v in held):
        return "its weight is no vector"
    size = held[0].shape.numpy()[0] if held[0].shape is not None else 0
    if size > MAX_ROW:
        return f"its rows have {size} elements, and the plugin takes {MAX_ROW}"
    epsilon = ir.AttrFloat32("epsilon", node.attributes.get_float("epsilon", 1e-5))
    addition = _residual(x)
    if addition is None:
        function = norm_function(node.op_type, residual=False, opset=opset)
        return Form(function, (x, *held), (epsilon,), (), (node,), node)
    added = tuple(v for v in addition.inputs if v is not None)
    function = norm_function(node.op_type, residual=True, opset=opset)
    return Form(function, (*added, *held), (epsilon,), (x,), (node, addition), addition)


def _residual(total: ir.Value) -> ir.Node | None:
    """The addition of two activations of equal type and shape that gives `total`."""
    node = total.producer()
    if node is None or not is_standard(node, "Add"):
        return None
    parts = [v for v in node.inputs if v is not None and not is_constant(v)]
    alike = len(parts) == 2 and all(p.dtype == total.dtype and _same_shape(p, total) for p in parts)
    return node if alike else None


@dataclass(frozen=True, slots=True)
class _Activation:
    """Swish, Gelu or x * Sigmoid(x): the operator that names it, what it reads, its nodes with the last one first."""

    operator: str
    gate: ir.Value
    nodes: tuple[ir.Node, ...]


def _activation(node: ir.Node) -> _Activation | None:
    """The activation whose product with another value `node` is."""
    if node.op_type != "Mul":
        return None
    for value in node.inputs:
        made = None if value is None else value.producer()
        if made is None or not is_standard(made) or made.inputs[0] is None:
            continue
        if made.op_type in ("Swish", "Gelu"):
            return _Activation(made.op_type, made.inputs[0], (made,))
        if made.op_type == "Mul" and (sigmoid := _sigmoid_of_other(made)) is not None:
            gate = sigmoid.inputs[0]
            assert gate is not None
            return _Activation("Sigmoid", gate, (made, sigmoid))
    return None


def _sigmoid_of_other(product: ir.Node) -> ir.Node | None:
    """The Sigmoid of x in x * Sigmoid(x)."""
    for value, other in (product.inputs, reversed(product.inputs)):
        made = None if value is None else value.producer()
        if made is not None and is_standard(made, "Sigmoid") and made.inputs[0] is other:
            return made
    return None


def _gate(node: ir.Node, opset: int) -> Form | str:
    found = _activation(node)
    assert found is not None, "only such products are candidates"
    activated, gate = found.nodes[0].outputs[0], found.gate
    up = node.inputs[1 if node.inputs[0] is activated else 0]
    inner = [n.outputs[0] for n in found.nodes]
    if up is None or up is activated or any(len(v.uses()) > 1 for v in inner):
        return "its activation is read elsewhere"
    if any(v.is_graph_output() for v in inner):
        return "its activation is a graph output"
    if not _same_shape(gate, up) or gate.dtype not in TYPES or up.dtype != gate.dtype:
        return "gate and up differ in type or shape"
    if found.nodes[0].attributes.get_float("alpha", 1.0) != 1.0:
        return "its Swish has a factor"
    attributes = [a for a in found.nodes[0].attributes.values() if a.name != "alpha"]
    if found.operator == "Gelu" and not attributes:
        attributes = [ir.AttrString("approximate", "none")]
    function = gate_function(found.operator, opset)
    return Form(function, (gate, up), tuple(attributes), (), (node, *found.nodes), node)


def from_halves(form: Form) -> Form:
    """The form that reads the packed projection where gate and up are its halves and nothing else reads them."""
    if form.function.name not in ("SwiGLU", "GeGLU"):
        return form
    split = form.inputs[0].producer()
    if split is None or not is_standard(split, "Split") or tuple(split.outputs) != form.inputs:
        return form
    whole, sizes = split.inputs[0], [v.shape[-1] if v.shape else None for v in split.outputs]
    if whole is None or whole.shape is None or sizes[0] != sizes[1]:
        return form
    last = split.attributes.get_int("axis", 0) in (-1, len(whole.shape) - 1)
    users = [u.node for v in split.outputs for u in v.uses()]
    read = any(n not in form.nodes for n in users) or any(
        v.is_graph_output() for v in split.outputs
    )
    if not last or read or not isinstance(sizes[0], int):
        return form
    nodes = (*form.nodes, split)
    return Form(packed(form.function), (whole,), form.attributes, (), nodes, form.place)


def is_standard(node: ir.Node, operator: str = "") -> bool:
    """Whether the node is ONNX's own, and `operator` where given."""
    return node.domain in ("", "ai.onnx") and operator in ("", node.op_type)


def is_constant(value: ir.Value) -> bool:
    """Whether the value is a weight that no caller can replace."""
    return value.is_initializer() and not value.is_graph_input() and value.const_value is not None


def _same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Equal in every dimension; one without a name equals none."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return False
    pairs = zip(a.shape, b.shape, strict=True)
    return all(
        x == y
        if isinstance(x, int) or isinstance(y, int)
        else x.value is not None and x.value == y.value
        for x, y in pairs
    )
