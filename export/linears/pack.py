"""Pack linears that read one value into one product, a pass that any graph can have.

    q, k, v = x Wq, x Wk, x Wv      ->      q, k, v = split(x [Wq Wk Wv])

Every output is the same sum of the same products. Biases that follow each of them move behind the packed product.
The packed weight is put together when it is read: no more than one is in memory.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .find import Linear

PARTS = "parts"  # key of a joined value's `meta`: the names of the values in it, in order


def pack_linears(model: ir.Model, linears: Sequence[Linear]) -> list[Linear]:
    """Pack what can be packed among `linears`; returns them in order, packed ones in place of their first member.

    Packed are products of one operator and layout that read one value, with weights of one type that nothing else
    reads. Linears with a reason to stay high are left as they are.
    """
    groups: dict[tuple[object, ...], list[Linear]] = {}
    for linear in linears:
        if not linear.reason and _packable(linear):
            bias = _gemm_bias(linear) is not None
            key = (linear.x, linear.node.op_type, linear.transposed, linear.weight.dtype, bias)
            groups.setdefault(key, []).append(linear)
    packed: dict[Linear, Linear | None] = {}
    for members in groups.values():
        if len(members) > 1:
            packed |= dict.fromkeys(members[1:], None)
            packed[members[0]] = _pack(model.graph, members)
    return [p for x in linears if (p := packed.get(x, x)) is not None]


def _packable(linear: Linear) -> bool:
    alone = len(linear.weight.uses()) == 1 and not linear.weight.is_graph_output()
    direct = linear.node.inputs[1] is linear.weight
    bias = _gemm_bias(linear)
    return alone and direct and (bias is None or _is_vector(bias, linear.size_out))


def _gemm_bias(linear: Linear) -> ir.Value | None:
    inputs = linear.node.inputs
    return inputs[2] if linear.node.op_type == "Gemm" and len(inputs) > 2 else None


def _is_vector(value: ir.Value, size: int) -> bool:
    shape = None if value.shape is None else value.shape.numpy()
    return value.const_value is not None and value.is_initializer() and shape == (size,)


def _pack(graph: ir.Graph, members: Sequence[Linear]) -> Linear:
    first = members[0]
    name = packed_name([m.name for m in members])
    weight = _joined(graph, [m.weight for m in members], f"{name}.weight", first.axis_out)
    inputs: list[ir.Value | None] = [first.x, weight]
    if _gemm_bias(first) is not None:
        inputs.append(_joined(graph, [m.node.inputs[2] for m in members], f"{name}.bias", 0))
    outputs = [m.node.outputs[0] for m in members]
    whole = _value_like(outputs[0], name, sum(m.size_out for m in members))
    node = ir.Node(
        "", first.node.op_type, inputs, list(first.node.attributes.values()),
        outputs=[whole], name=f"{name}/{first.node.op_type}",
    )  # fmt: skip
    node.metadata_props.update(first.node.metadata_props)
    added = [node]
    replaced = [m.node for m in members]
    biases = [_bias_after(m) for m in members]
    if all(b is not None for b in biases):
        adds = [b for b in biases if b is not None]
        vector = _joined(graph, [v for _, v in adds], f"{name}.bias", 0)
        outputs = [add.outputs[0] for add, _ in adds]
        biased = _value_like(outputs[0], f"{name}/biased", sum(m.size_out for m in members))
        added.append(ir.Node("", "Add", [whole, vector], outputs=[biased], name=f"{name}/Add"))
        replaced += [add for add, _ in adds]
        whole = biased
    added.append(_split(graph, name, whole, outputs, [m.size_out for m in members]))
    _replace(graph, added, replaced, outputs, [m.weight for m in members])
    return replace(
        first, node=node, name=name, weight=weight, size_out=sum(m.size_out for m in members)
    )


def _split(
    graph: ir.Graph, name: str, whole: ir.Value, outputs: Sequence[ir.Value], sizes: Sequence[int]
) -> ir.Node:
    lengths = ir.Value(
        name=f"{name}/sizes",
        const_value=ir.tensor(np.array(sizes, np.int64), name=f"{name}/sizes"),
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape([len(sizes)]),
    )
    graph.register_initializer(lengths)
    parts = [ir.Value(type=v.type, shape=v.shape) for v in outputs]
    return ir.Node(
        "",
        "Split",
        [whole, lengths],
        [ir.AttrInt64("axis", -1)],
        outputs=parts,
        name=f"{name}/Split",
    )


def _replace(
    graph: ir.Graph,
    added: Sequence[ir.Node],
    replaced: Sequence[ir.Node],
    outputs: Sequence[ir.Value],
    weights: Sequence[ir.Value],
) -> None:
    graph.insert_before(replaced[0], added)
    for old, new in zip(outputs, added[-1].outputs, strict=True):
        name = old.name
        new.metadata_props.update(old.metadata_props)
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = f"{name}/unpacked"
        new.name = name
    constants = [v for n in replaced for v in n.inputs if v is not None and v.is_initializer()]
    graph.remove([*reversed(replaced)], safe=True)
    for value in dict.fromkeys([*weights, *constants]):
        name = value.name or ""
        if not value.uses() and not value.is_graph_output() and name in graph.initializers:
            del graph.initializers[name]


def _bias_after(linear: Linear) -> tuple[ir.Node, ir.Value] | None:
    """The Add of a constant vector that alone reads the product, and the vector."""
    output = linear.node.outputs[0]
    users = [use.node for use in output.uses()]
    if linear.node.op_type != "MatMul" or len(users) != 1 or output.is_graph_output():
        return None
    (add,) = users
    if add.op_type != "Add" or add.domain not in ("", "ai.onnx"):
        return None
    others = [v for v in add.inputs if v is not output]
    if len(others) != 1 or others[0] is None or not _is_vector(others[0], linear.size_out):
        return None
    return add, others[0]


def _joined(graph: ir.Graph, values: Sequence[ir.Value | None], name: str, axis: int) -> ir.Value:
    """An initializer that holds `values` side by side along `axis`, put together when it is read."""
    tensors = [v.const_value for v in values if v is not None]
    parts = [t for t in tensors if t is not None]
    assert len(parts) == len(values)
    shape = list(parts[0].shape.numpy())
    shape[axis] = sum(t.shape.numpy()[axis] for t in parts)
    dtype = parts[0].dtype

    def join() -> ir.TensorProtocol:
        array = np.concatenate([t.numpy() for t in parts], axis=axis)
        return ir.tensor(array, dtype=dtype, name=name)

    lazy = ir.LazyTensor(join, dtype=dtype, shape=ir.Shape(shape), name=name)
    value = ir.Value(name=name, const_value=lazy, type=ir.TensorType(dtype), shape=ir.Shape(shape))
    value.meta[PARTS] = tuple(str(v.name) for v in values if v is not None)
    graph.register_initializer(value)
    return value


def _value_like(value: ir.Value, name: str, size: int) -> ir.Value:
    """A value of `value`'s type, whose last axis has `size`."""
    shape = None if value.shape is None else ir.Shape([*value.shape.dims[:-1], size])
    dtype = None if value.dtype is None else ir.TensorType(value.dtype)
    return ir.Value(name=name, type=dtype, shape=shape)


def packed_name(names: Sequence[str]) -> str:
    """`a.q_proj`, `a.k_proj` -> `a.q_proj_k_proj`: the common path, then what differs."""
    first, last = min(names), max(names)  # what these two share, all share
    pairs = enumerate(zip(first, last, strict=False))
    same = next((i for i, (a, b) in pairs if a != b), min(len(first), len(last)))
    stem = first[: max(first.rfind(".", 0, same), first.rfind("/", 0, same)) + 1]
    return stem + "_".join(name[len(stem) :] for name in names)
