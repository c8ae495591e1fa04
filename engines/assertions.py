"""What a recipe may demand of a planned engine: few kernels a block, fused operators, products in a type.

    (planned kernels, graph, demands) -> violations, each with the layers that offend

A demand that nothing can answer is a violation too: no block, no such operator, no kernel that names a node.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..core.domain import DOMAIN
from ..core.dtypes import dtype_from_name
from ..core.errors import UsageError
from ..graph.rules import domain_of
from .dtype_check import covers
from .kernel import Kernel
from .plan import kernel_blocks, kernels_per_block

FUSED_ATTENTION = "mha"  # in the name of every fused attention kernel of TensorRT-RTX 1.7.1
SHOWN = 12  # layers that a message names
GATES = frozenset({"Swish", "Gelu", "Sigmoid"})
NORMS = frozenset({"RMSNormalization", "LayerNormalization", "SimplifiedLayerNormalization"})
KINDS = ("norm", "attention", "swiglu", "rope")


@dataclass(frozen=True, slots=True)
class Violation:
    """One demand that the plan does not meet. layers: the nodes and kernels that show it."""

    demand: str
    found: str
    layers: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown, more = ", ".join(self.layers[:SHOWN]), len(self.layers) - SHOWN
        tail = f": {shown}" + (f" and {more} more" if more > 0 else "") if shown else ""
        return f"{self.demand}: {self.found}{tail}"


@dataclass(frozen=True, slots=True)
class Demands:
    """What the recipe says. max_kernels_per_block: None for any number. require_fused: of KINDS. require_dtype: "gemm" or
    "attention" -> a type's name. spared: nodes whose name starts so are left out of require_dtype, e.g. ("lm_head",)."""

    max_kernels_per_block: float | None = None
    require_fused: tuple[str, ...] = ()
    require_dtype: Mapping[str, str] | None = None
    spared: tuple[str, ...] = ()


def check_demands(
    kernels: Sequence[Kernel], model: ir.Model, num_blocks: int, demands: Demands
) -> tuple[Violation, ...]:
    """Every demand that `kernels`, planned for `model`, do not meet. UsageError for a demand that does not exist."""
    found: list[Violation] = []
    if demands.max_kernels_per_block is not None:
        found += check_kernels_per_block(kernels, num_blocks, demands.max_kernels_per_block)
    found += check_fused(kernels, model, demands.require_fused)
    found += check_required_dtypes(kernels, demands.require_dtype or {}, demands.spared)
    return tuple(found)


def check_kernels_per_block(
    kernels: Sequence[Kernel], num_blocks: int, limit: float
) -> tuple[Violation, ...]:
    """One violation where a block costs more device kernels than `limit` (plan.kernels_per_block), with a block's kernels."""
    demand = f"max_kernels_per_block = {limit:g}"
    count = kernels_per_block(kernels, num_blocks)
    if count is None:
        return (Violation(demand, "no kernel belongs to a block"),)
    if count <= limit:
        return ()
    members: dict[int, list[str]] = {}
    for kernel, block in zip(kernels, kernel_blocks(kernels), strict=True):
        if kernel.on_device and block is not None:
            members.setdefault(block, []).append(kernel.name)
    inner = sorted(members)[1:-1] if num_blocks >= 3 else sorted(members)
    block = min(inner, key=lambda b: abs(len(members[b]) - count))
    return (Violation(demand, f"{count:g}, in block {block}", tuple(members[block])),)


def check_fused(
    kernels: Sequence[Kernel], model: ir.Model, kinds: Sequence[str]
) -> tuple[Violation, ...]:
    """One violation for each of `kinds` with an operator in `model` that more than one kernel computes.

    norm, swiglu, rope: one device kernel covers the operator's nodes. attention: one fused kernel covers it, and no
    matrix product (copies beside it count in kernels_per_block). An operator that the graph spells out is not fused.
    """
    planned = [k for k in kernels if k.on_device]
    return tuple(v for kind in kinds for v in _fused(planned, model, kind))


def check_required_dtypes(
    kernels: Sequence[Kernel], required: Mapping[str, str], spared: Sequence[str] = ()
) -> tuple[Violation, ...]:
    """One violation for each kind in `required` with a kernel that computes in another type."""
    found = []
    for kind, name in required.items():
        demand = f'require_dtype = {{ {kind} = "{name}" }}'
        choose = _DTYPE_KINDS.get(kind)
        if choose is None:
            raise UsageError(
                demand, found=f"no kind {kind!r}", fix=f"Known: {', '.join(_DTYPE_KINDS)}"
            )
        wanted = dtype_from_name({"fp8": "fp8_e4m3"}.get(name, name)).value
        judged = [k for k in kernels if k.on_device and choose(k) and not _spared(k, spared)]
        if not judged:
            found.append(Violation(demand, f"the plan has no {kind} kernel"))
        wrong = [k for k in judged if k.dtype != wanted]
        if wrong:
            types = ", ".join(sorted({k.dtype for k in wrong}))
            layers = tuple(f"{k.name} ({k.dtype})" for k in wrong)
            found.append(
                Violation(demand, f"{len(wrong)} of {len(judged)} compute in {types}", layers)
            )
    return tuple(found)


def _is_attention(kernel: Kernel) -> bool:
    return FUSED_ATTENTION in kernel.name


def _is_gemm(kernel: Kernel) -> bool:
    return kernel.is_matrix and not _is_attention(kernel)


_DTYPE_KINDS: dict[str, Callable[[Kernel], bool]] = {"gemm": _is_gemm, "attention": _is_attention}


def _spared(kernel: Kernel, prefixes: Sequence[str]) -> bool:
    return bool(prefixes) and any(node.startswith(tuple(prefixes)) for node in kernel.nodes)


def _fused(planned: list[Kernel], model: ir.Model, kind: str) -> Iterator[Violation]:
    demand = f'require_fused = ["{kind}"]'
    if kind not in KINDS:
        raise UsageError(demand, found=f"no kind {kind!r}", fix=f"Known: {', '.join(KINDS)}")
    groups = list(_operators(model, kind))
    if not groups:
        yield Violation(
            demand, "the graph has no such operator, or spells it out (blockforge fuse)"
        )
        return
    layers: list[str] = []
    for names in groups:
        covering = [k for k in planned if any(covers(k.nodes, name) for name in names)]
        if not _is_fused(covering, kind):
            told = " + ".join(k.name for k in covering) or "no kernel names it"
            layers.append(f"{names[0]} ({told})")
    if layers:
        yield Violation(demand, f"{len(layers)} of {len(groups)} are not", tuple(layers))


def _is_fused(covering: list[Kernel], kind: str) -> bool:
    if kind != "attention":
        return len(covering) == 1
    fused = [k for k in covering if _is_attention(k)]
    return len(fused) == 1 and not any(_is_gemm(k) for k in covering)


def _operators(model: ir.Model, kind: str) -> Iterator[tuple[str, ...]]:
    """The names of the nodes that make up each operator of one kind."""
    for node in model.graph.all_nodes():
        name, operator, own = node.name or "", node.op_type, domain_of(node) == DOMAIN
        if (
            (kind == "attention" and operator == "Attention" and not domain_of(node))
            or (kind == "rope" and operator == "RotaryEmbedding")
            or (kind == "norm" and (operator in NORMS or (own and "Norm" in operator)))
            or (kind == "swiglu" and own and operator.startswith(("SwiGLU", "GeGLU")))
        ):
            yield (name,)
        elif kind == "swiglu" and operator in GATES and not domain_of(node):
            yield from _spelled_gate(node)


def _spelled_gate(node: ir.Node) -> Iterator[tuple[str, ...]]:
    """Swish(gate) * up, or gate * Sigmoid(gate) * up, from its activation."""
    products = [reader for reader, _ in node.outputs[0].uses() if reader.op_type == "Mul"]
    if node.op_type == "Sigmoid" and products:
        inner = products[0]
        later = [reader for reader, _ in inner.outputs[0].uses() if reader.op_type == "Mul"]
        if node.inputs[0] in inner.inputs and later:
            yield tuple(str(n.name) for n in (node, inner, later[0]))
    elif products and node.op_type != "Sigmoid":
        yield tuple(str(n.name) for n in (node, products[0]))
