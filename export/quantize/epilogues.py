"""Fold the quantise into the norm or gate before it: one operator, which a plugin computes in one trip to memory.

    norm(x) -> QuantizeLinear                 ->  RMSNormQuantize(x, weight, scale)
    x + skip -> norm -> QuantizeLinear        ->  AddRMSNormQuantize(x, skip, weight, scale) -> codes, sum
    SwiGLU(gate, up) -> QuantizeLinear        ->  SwiGLUQuantize(gate, up, scale)
    SwiGLU(halves of x) -> QuantizeLinear     ->  SwiGLUPackedQuantize(x, scale)

The same for LayerNorm and GeGLU. The unquantised result must have no other reader. Numbers stay the same to the bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ...core.domain import DOMAIN
from .epilogue_forms import (
    PLAIN,
    TYPES,
    Form,
    form_of,
    from_halves,
    is_candidate,
    is_constant,
    is_standard,
)
from .epilogue_functions import declare, quantizing

E4M3 = ir.DataType.FLOAT8E4M3FN
OPERATORS = frozenset(f"{name}Quantize" for name in PLAIN)


@dataclass(frozen=True, slots=True)
class Folding:
    """What was done. folded: operator -> how often; left: a line for each quantised norm or gate left alone."""

    folded: dict[str, int]
    left: tuple[str, ...]


def fold_epilogues(model: ir.Model) -> Folding:
    """Fold every quantise of the main graph that can be, in place."""
    folded: dict[str, int] = {}
    left = []
    for node in list(model.graph):
        value = node.outputs[0] if node.outputs else None
        if value is None or not _quantizers(value) or not is_candidate(node):
            continue
        reason = _fold(model, node, value, folded)
        if reason:
            left.append(
                f"{node.name or node.op_type} ({node.op_type}) keeps its quantise: {reason}"
            )
    _drop_unused(model)
    return Folding(folded, tuple(left))


def _fold(model: ir.Model, node: ir.Node, value: ir.Value, folded: dict[str, int]) -> str:
    """Fold the quantise of `value`, the first output of `node`; returns why not, "" where it was done."""
    scale = _common_scale(value)
    if isinstance(scale, str):
        return scale
    form = form_of(model, node)
    if isinstance(form, str):
        return form
    for node_of_shape in [u.node for u in value.uses() if is_standard(u.node, "Shape")]:
        if form.alike is None:
            return f"{node_of_shape.name or 'Shape'} reads its shape, which nothing else has"
        node_of_shape.replace_input_with(0, form.alike)
    form = from_halves(form)
    function = quantizing(form.function)
    if not declare(model, function):
        return f"the graph has another {function.name}"
    _rewrite(model.graph, node, form, function.name, _as_scalar(model.graph, scale))
    folded[function.name] = folded.get(function.name, 0) + 1
    return ""


def _quantizers(value: ir.Value) -> list[ir.Node]:
    uses = value.uses()
    return [u.node for u in uses if u.idx == 0 and is_standard(u.node, "QuantizeLinear")]


def _common_scale(value: ir.Value) -> ir.Value | str:
    """The scale with which every reader of `value` quantises it to E4M3, or what stands in the way."""
    if value.is_graph_output():
        return "its result is a graph output"
    quantizers = _quantizers(value)
    readers = [u.node for u in value.uses() if u.node not in quantizers]
    others = [n for n in readers if not is_standard(n, "Shape")]
    if others:
        return f"{others[0].name or others[0].op_type} reads its result unquantised"
    for node in quantizers:
        if fault := _unfit(node):
            return fault
    scales = [_scale(node) for node in quantizers]
    first = scales[0]
    held = first.const_value
    assert held is not None
    for other in scales[1:]:
        tensor = other.const_value
        assert tensor is not None
        if (tensor.dtype, tensor.tobytes()) != (held.dtype, held.tobytes()):
            return "its result is quantised with two scales"
    return first


def _as_scalar(graph: ir.Graph, scale: ir.Value) -> ir.Value:
    """The scale without axes, as the plugins take it."""
    held = scale.const_value
    assert held is not None
    if not len(held.shape):
        return scale
    name = f"{scale.name}/scalar"
    known = graph.initializers.get(name)
    if known is not None:
        return known
    tensor = ir.tensor(held.numpy().reshape(()), dtype=held.dtype, name=name)
    made = ir.Value(name=name, const_value=tensor, type=scale.type, shape=ir.Shape([]))
    graph.register_initializer(made)
    return made


def _scale(node: ir.Node) -> ir.Value:
    scale = node.inputs[1]
    assert scale is not None
    return scale


def _unfit(node: ir.Node) -> str:
    """Why a QuantizeLinear is not the one of the plugins, "" where it is."""
    scale, dtype = _scale(node), node.outputs[0].dtype
    if dtype != E4M3:
        return f"it is quantised to {dtype.name.lower() if dtype else 'an unknown type'}"
    if not is_constant(scale) or scale.dtype not in TYPES:
        return "its scale is no constant float"
    if scale.shape is None or scale.shape.numpy() not in ((), (1,)):
        return f"its scale has shape {list(scale.shape or ())}: one for the tensor is needed"
    zero = node.inputs[2] if len(node.inputs) > 2 else None
    if zero is not None and (zero.const_value is None or any(zero.const_value.tobytes())):
        return "its zero point is not zero"
    attributes = node.attributes
    if attributes.get_int("saturate", 1) == 0 or attributes.get_int("precision", 0) != 0:
        return "it does not saturate, or divides in a type of its own"
    return ""


def _rewrite(graph: ir.Graph, node: ir.Node, form: Form, name: str, scale: ir.Value) -> None:
    """Put the folded operator in the place of the nodes it replaces and of the quantisers behind them."""
    quantizers = _quantizers(node.outputs[0])
    replaced = [quantizers[0].outputs[0], *form.others]
    outputs = [ir.Value(name=v.name, type=v.type, shape=v.shape) for v in replaced]
    made = ir.Node(
        DOMAIN, name, [*form.inputs, scale], form.attributes,
        outputs=outputs, name=_node_name(graph, node, name),
    )  # fmt: skip
    made.metadata_props.update(node.metadata_props)
    graph.insert_before(form.place, made)
    for old, new in zip(replaced, outputs, strict=True):
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = None
    for other in quantizers[1:]:
        other.outputs[0].replace_all_uses_with(outputs[0], replace_graph_outputs=True)
    graph.remove([*quantizers, *form.nodes], safe=True)
    _drop_initializers(graph, [v for n in (*quantizers, *form.nodes) for v in n.inputs])


def _node_name(graph: ir.Graph, node: ir.Node, operator: str) -> str:
    """`layers.0.input_layernorm/RMSNormalization` -> `layers.0.input_layernorm/RMSNormQuantize`."""
    module = (node.name or node.outputs[0].name or "").rpartition("/")[0]
    taken = {n.name for n in graph}
    wanted = f"{module or node.name or node.outputs[0].name}/{operator}"
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name


def _drop_unused(model: ir.Model) -> None:
    """Functions of ours that no node calls any more."""
    called = {n.op_identifier() for n in model.graph.all_nodes()}
    called |= {n.op_identifier() for f in model.functions.values() for n in f}
    for identifier in [i for i in model.functions if i[0] == DOMAIN and i not in called]:
        del model.functions[identifier]


def _drop_initializers(graph: ir.Graph, values: Sequence[ir.Value | None]) -> None:
    for value in dict.fromkeys(values):
        if value is None or not value.is_initializer() or value.uses() or value.is_graph_output():
            continue
        graph.initializers.pop(str(value.name), None)
