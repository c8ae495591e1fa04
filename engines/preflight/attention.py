"""Forms of Attention (ONNX operator Attention-23/24/25) that TensorRT refuses or ignores. Measured on TensorRT-RTX 1.7.1.

Shape legend: B batch, N query heads, K key heads, S queries, T keys, D head size.
"""

from collections.abc import Callable, Iterator

import onnx_ir as ir

from ..legalize.attention_decomposable import ATTRIBUTE, LARGEST_FUSED, SMALLEST_FUSED
from .row import Row, Spot
from .scene import Scene, input_of, integer, label, sizes

MASK, PAST_KEY, PAST_VALUE, NONPAD = 3, 4, 5, 6
FLOAT, BOOL = ir.DataType.FLOAT, ir.DataType.BOOL

Look = Callable[[ir.Node], str | None]


def _each(look: Look) -> Callable[[Scene], Iterator[Spot]]:
    """A check from a function that says what is wrong with one Attention node."""

    def check(scene: Scene) -> Iterator[Spot]:
        for node in scene.of("Attention"):
            if len(node.inputs) >= 3 and (found := look(node)):
                yield Spot(label(node), found)

    return check


def _heads(node: ir.Node) -> tuple[int | None, int | None]:
    """(N, K) where they are told."""
    q, k = (sizes(input_of(node, i)) for i in (0, 1))
    if q is not None and len(q) == 3:
        return integer(node, "q_num_heads", 0) or None, integer(node, "kv_num_heads", 0) or None
    return (q[1] if q and len(q) == 4 else None), (k[1] if k and len(k) == 4 else None)


def _head_size(node: ir.Node, index: int) -> int | None:
    """D of input `index`."""
    dims, heads = sizes(input_of(node, index)), _heads(node)[min(index, 1)]
    if dims is None or dims[-1] is None:
        return None
    if len(dims) == 4:
        return dims[-1]
    return dims[-1] // heads if heads else None


def _dtype(node: ir.Node) -> ir.DataType | None:
    values = (*node.inputs[:3], *node.outputs[:1])
    return next((v.dtype for v in values if v is not None and v.dtype is not None), None)


def _read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _fp32(node: ir.Node) -> str | None:
    return "fp32 attention" if _dtype(node) == FLOAT and ATTRIBUTE not in node.attributes else None


def _size(node: ir.Node) -> str | None:
    size = _head_size(node, 0)
    if size is None or ATTRIBUTE in node.attributes or SMALLEST_FUSED <= size <= LARGEST_FUSED:
        return None
    return f"head size {size}"


def _value_size(node: ir.Node) -> str | None:
    query, value = _head_size(node, 0), _head_size(node, 2)
    different = query is not None and value is not None and query != value
    return f"head size {query}, values {value}" if different else None


def _mixed_head_sizes(node: ir.Node) -> str | None:
    dims = [sizes(input_of(node, i)) for i in range(3)]
    known = [d[-1] is not None for d in dims if d]
    mixed = len(known) == 3 and any(known) and not all(known)
    return (
        f"the last axis of {'qkv'[known.index(False)]} is dynamic, others are not"
        if mixed
        else None
    )


def _softcap(node: ir.Node) -> str | None:
    softcap = node.attributes.get("softcap")
    if softcap is None or softcap.is_ref() or not softcap.as_float():
        return None
    return f"softcap={softcap.as_float():g}"


def _mask_and_causal(node: ir.Node) -> str | None:
    both = input_of(node, MASK) is not None and integer(node, "is_causal", 0)
    return "a mask and is_causal" if both else None


def _outputs(node: ir.Node) -> str | None:
    if len(node.outputs) < 2 or _scores(node):
        return None
    read = [str(o.name) for o in node.outputs[1:] if _read(o)]
    return f"{len(node.outputs)} outputs" + (f", read: {', '.join(read)}" if read else "")


def _scores(node: ir.Node) -> str | None:
    read = len(node.outputs) > 3 and _read(node.outputs[3])
    return f"its scores {node.outputs[3].name!r} are read" if read else None


def _past(node: ir.Node) -> str | None:
    past = input_of(node, PAST_KEY) or input_of(node, PAST_VALUE)
    return f"past keys {past.name!r}" if past is not None else None


def _precision(node: ir.Node, allowed: bool) -> str | None:
    if "softmax_precision" not in node.attributes:
        return None
    asked = integer(node, "softmax_precision", 0)
    wide = asked in (int(FLOAT), int(_dtype(node) or FLOAT))
    return f"softmax_precision={asked}" if wide == allowed else None


def _mask_dtype(node: ir.Node) -> str | None:
    mask, dtype = input_of(node, MASK), _dtype(node)
    if mask is None or mask.dtype in (None, BOOL, dtype) or dtype is None:
        return None
    assert mask.dtype is not None
    return f"its mask is {mask.dtype.name}, its queries are {dtype.name}"


def _mask_length(node: ir.Node) -> str | None:
    mask, keys = sizes(input_of(node, MASK)), sizes(input_of(node, 1))
    if not mask or not keys or _past(node) or mask[-1] is None or keys[-2] is None:
        return None
    short = 1 < mask[-1] < keys[-2]
    return f"its mask has {mask[-1]} columns for {keys[-2]} keys" if short else None


def _groups(node: ir.Node) -> str | None:
    heads, key_heads = _heads(node)
    uneven = heads and key_heads and heads % key_heads
    return f"{heads} query heads on {key_heads} key heads" if uneven else None


def _no_heads(node: ir.Node) -> str | None:
    q = sizes(input_of(node, 0))
    missing = q is not None and len(q) == 3 and not integer(node, "q_num_heads", 0)
    return "3-D queries without q_num_heads" if missing else None


def _nonpad(node: ir.Node) -> str | None:
    nonpad = input_of(node, NONPAD)
    return f"nonpad_kv_seqlen {nonpad.name!r}" if nonpad is not None else None


def _window(node: ir.Node) -> str | None:
    left, right = (integer(node, f"{side}_window_size", -1) for side in ("left", "right"))
    return f"a window of {left} before and {right} after" if max(left, right) >= 0 else None


def _inner(scene: Scene) -> Iterator[Spot]:
    for node in scene.of("Attention"):
        if scene.is_inner(node):
            yield Spot(label(node), "it stands in a branch or a loop's body")


NOT_FUSED = "The build fails: no dedicated kernel, and the node is not marked decomposable"
MARK = f"Set {ATTRIBUTE}=1 on the node"

ROWS = (
    Row("attention.fp32", "Attention", "queries are fp32", NOT_FUSED, MARK, _each(_fp32), legalized=True),
    Row("attention.head-size", "Attention", f"the head size is below {SMALLEST_FUSED} or above {LARGEST_FUSED}",
        NOT_FUSED, MARK, _each(_size), legalized=True),
    Row("attention.value-size", "Attention", "values have another head size than queries",
        "The parser refuses the node", "Spell it out as MatMul and Softmax", _each(_value_size), legalized=True),
    Row("attention.dynamic-size", "Attention", "the head size of some of queries, keys and values is dynamic",
        "The parser refuses the node: 'must have the same head dimension'", "Give each last axis its size", _each(_mixed_head_sizes)),
    Row("attention.softcap", "Attention", "softcap is set", "The parser refuses the node",
        "Spell it out as MatMul, Tanh and Softmax", _each(_softcap), legalized=True),
    Row("attention.mask-and-causal", "Attention", "it has a mask and is_causal", "The parser refuses the node",
        "Put causality into the mask", _each(_mask_and_causal), legalized=True),
    Row("attention.outputs", "Attention", "it has present outputs, or unread ones", "The parser refuses the node",
        "Concatenate the cache outside of the node", _each(_outputs), legalized=True),
    Row("attention.scores", "Attention", "its fourth output, the scores, is read", "The parser refuses the node",
        "Export the graph without that output", _each(_scores)),
    Row("attention.past", "Attention", "it has past inputs", "The parser refuses the node",
        "Concatenate the cache outside of the node", _each(_past), legalized=True),
    Row("attention.subgraph", "Attention", "it stands inside If, Loop or Scan",
        "The build fails: the scale that the importer puts before it is lost", "Spell it out as MatMul and Softmax",
        _inner, legalized=True),
    Row("attention.softmax-precision", "Attention", "softmax_precision is fp32 or the type of the queries",
        "The parser refuses the attribute", "Leave it out: TensorRT chooses", _each(lambda n: _precision(n, True)),
        legalized=True),
    Row("attention.narrow-softmax", "Attention", "softmax_precision is narrower than the queries",
        "The parser refuses the attribute", "Leave it out, or cast queries, keys and values",
        _each(lambda n: _precision(n, False))),
    Row("attention.mask-type", "Attention", "its additive mask has another type than its queries",
        "The build fails: element types differ", "Cast the mask, its lowest numbers clipped", _each(_mask_dtype),
        legalized=True),
    Row("attention.mask-length", "Attention", "its mask has fewer columns than there are keys",
        "It is refused: shapes do not broadcast", "Pad the mask to the number of keys, with what hides them",
        _each(_mask_length)),
    Row("attention.groups", "Attention", "query heads are no multiple of key heads", "The parser refuses the node",
        "Correct the numbers of heads", _each(_groups)),
    Row("attention.heads", "Attention", "3-D inputs without q_num_heads", "The parser refuses the node",
        "Set q_num_heads and kv_num_heads", _each(_no_heads)),
    Row("attention.nonpad", "Attention", "nonpad_kv_seqlen is given",
        "It builds ('Unused Input') and then attends to the padding", "Put it into the mask", _each(_nonpad),
        "silent", legalized=True),
    Row("attention.window", "Attention", "left or right window size is set (opset 25)",
        "It builds and then attends to everything", "Put it into the mask", _each(_window), "silent", legalized=True),
)  # fmt: skip
