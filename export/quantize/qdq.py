"""Write QuantizeLinear and DequantizeLinear into a graph, in the places from which an engine plans quantised products.

    x -> QuantizeLinear -> DequantizeLinear -> MatMul <- DequantizeLinear <- weight codes

A weight's DequantizeLinear feeds its product directly, with one scale per output channel; an activation has one scale,
one pair of nodes for all linears that read it, and its other readers keep the unquantised value.
"""

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..linears.find import Linear

SUFFIX = "quantized"


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A quantised weight as the file holds it: codes in the layout of the linear, scales, and how they lie.

    axis: counts channels, or (block > 0) the axis along which `block` codes share a scale. whole: a scalar by which
    scales that are codes themselves are multiplied.
    """

    codes: ir.TensorProtocol
    scales: ir.TensorProtocol
    axis: int
    block: int = 0
    whole: ir.TensorProtocol | None = None


@dataclass(slots=True)
class Writer:
    """Writes the nodes of one graph; what it shares (scales, pairs) is written once."""

    graph: ir.Graph
    _activations: dict[ir.Value, ir.Value] = field(default_factory=dict)
    _weights: dict[tuple[ir.Value, bool], tuple[ir.Value, ir.Value]] = field(default_factory=dict)

    def quantize_activation(
        self, user: ir.Node, index: int, scale: ir.TensorProtocol, dtype: ir.DataType
    ) -> None:
        """Let input `index` of `user` pass through a pair of nodes with `scale` (a scalar)."""
        x = user.inputs[index]
        assert x is not None and x.dtype is not None
        dequantized = self._activations.get(x)
        if dequantized is None:
            given = self.constant(f"{x.name}/{SUFFIX}/scale", scale)
            dequantized = self._activations[x] = self.pair(x, given, dtype, f"{x.name}/{SUFFIX}")
        user.replace_input_with(index, dequantized)

    def pair(self, x: ir.Value, scale: ir.Value, dtype: ir.DataType, base: str) -> ir.Value:
        """`x` through QuantizeLinear and DequantizeLinear behind its producer; `base` names what comes back."""
        assert x.dtype is not None
        codes = ir.Value(name=f"{base}/codes", type=ir.TensorType(dtype), shape=x.shape)
        back = ir.Value(name=base, type=ir.TensorType(x.dtype), shape=x.shape)
        nodes = [quantizing(x, scale, codes), dequantizing(codes, scale, back)]
        producer = x.producer()
        if producer is None:
            self.graph.insert_before(self.graph[0], nodes)
        else:
            self.graph.insert_after(producer, nodes)
        return back

    def quantize_weight(self, linear: Linear, stored: StoredWeight) -> None:
        """Let the product of `linear` read `stored` instead of its weight; a Transpose between stays out."""
        assert linear.weight.dtype is not None
        key = linear.weight, linear.wants_transposed
        known = self._weights.get(key)
        if known is None:
            base = f"{linear.weight.name}/{SUFFIX}"
            if base in self.graph.initializers:  # the other layout of a shared weight
                base += "_transposed"
            known = (
                self.constant(base, stored.codes),
                self.constant(f"{base}/scale", stored.scales),
            )
            self._weights[key] = known
        name = linear.node.name or linear.name
        codes, scales = known
        scale_type = stored.scales.dtype
        if stored.whole is not None:
            scales = self._dequantized_scales(linear, scales, stored.whole, name)
            scale_type = stored.whole.dtype
        attributes = [ir.AttrInt64("axis", stored.axis)]
        if stored.block:
            attributes.append(ir.AttrInt64("block_size", stored.block))
        wide = ir.Value(
            name=f"{name}/weight",
            type=ir.TensorType(linear.weight.dtype),
            shape=ir.Shape(stored.codes.shape.numpy()),
        )
        node = ir.Node(
            "", "DequantizeLinear", [codes, scales],
            [*attributes, *_output_type(scale_type, linear.weight.dtype)],
            outputs=[wide], name=f"{name}/DequantizeLinear",
        )  # fmt: skip
        self.graph.insert_before(linear.node, node)
        linear.node.replace_input_with(1, wide)

    def _dequantized_scales(
        self, linear: Linear, codes: ir.Value, whole: ir.TensorProtocol, name: str
    ) -> ir.Value:
        """The block scales of a weight, from their own codes."""
        given = self.constant(f"{name}/whole_scale", whole)
        wide = ir.Value(name=f"{name}/scales", type=ir.TensorType(whole.dtype), shape=codes.shape)
        node = ir.Node(
            "", "DequantizeLinear", [codes, given], outputs=[wide],
            name=f"{name}/scales/DequantizeLinear",
        )  # fmt: skip
        self.graph.insert_before(linear.node, node)
        return wide

    def constant(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """An initializer of the graph."""
        assert name not in self.graph.initializers, name
        value = ir.Value(
            name=name,
            const_value=tensor,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
        )
        self.graph.register_initializer(value)
        return value


def quantizing(x: ir.Value, scale: ir.Value, codes: ir.Value) -> ir.Node:
    """codes = x / scale, in the type of `codes`; named after what it quantises for."""
    assert codes.dtype is not None
    name = f"{(codes.name or '').removesuffix('/codes')}/QuantizeLinear"
    attributes = [ir.AttrInt64("output_dtype", codes.dtype)]
    return ir.Node("", "QuantizeLinear", [x, scale], attributes, outputs=[codes], name=name)


def dequantizing(codes: ir.Value, scale: ir.Value, back: ir.Value) -> ir.Node:
    """back = codes * scale, in the type of `back`, after which it is named."""
    assert scale.dtype is not None and back.dtype is not None
    attributes = _output_type(scale.dtype, back.dtype)
    name = f"{back.name}/DequantizeLinear"
    return ir.Node("", "DequantizeLinear", [codes, scale], attributes, outputs=[back], name=name)


def _output_type(scale: ir.DataType, wanted: ir.DataType) -> list[ir.Attr]:
    """The attribute that names the output's type where it is not the scale's."""
    return [] if scale == wanted else [ir.AttrInt64("output_dtype", wanted)]


def scale_tensor(scales: np.ndarray | float, dtype: ir.DataType, name: str) -> ir.TensorProtocol:
    """Scales of any shape as a tensor of `dtype`, in which they must be exact."""
    array = np.asarray(scales, np.float32)
    stored = array.astype(dtype.numpy())
    assert (stored.astype(np.float32) == array).all(), (
        f"scales of {name} are not exact in {dtype.name}"
    )
    return ir.tensor(stored, dtype=dtype, name=name)
