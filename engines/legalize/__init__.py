"""Put a graph into forms that one runtime accepts; the bundle's own graph stays as it is.

    legalize(model, target) -> (a legal copy, one line for each thing that was changed)

One rule a file; a rule changes the copy in place and says what it did. Weights are shared with the original, never
copied. Rules run in this order because each may leave work for the next: a function may hold an Attention, a shape
that the graph leaves out decides whether a rule holds, a cache turns into a mask, a mask decides whether the fused
kernel can be kept.
"""

from collections.abc import Callable

import onnx_ir as ir

from ...core.errors import BuildError
from ...graph.collector import collector_paused
from ...graph.rules import nodes_of
from ...graph.shape_inference import infer_shapes
from ..target import Target
from .attention_cache import spell_out_cache
from .attention_decomposable import allow_decomposition
from .attention_mask import merge_masks
from .attention_mask_type import cast_masks
from .attention_softcap import spell_out_attention
from .attention_softmax import drop_softmax_precision
from .cache_scatter import spell_out_scatter
from .inline_functions import inline_functions
from .loop_condition import give_loops_conditions
from .rotary_batch import expand_rotary_caches
from .unread_outputs import drop_unread_outputs

Rule = Callable[[ir.Model], list[str]]


def _told_shapes(model: ir.Model) -> list[str]:
    """Shapes change no graph: nothing to report."""
    infer_shapes(model)
    return []


TENSORRT: tuple[Rule, ...] = (
    inline_functions,
    _told_shapes,
    drop_unread_outputs,
    give_loops_conditions,
    expand_rotary_caches,
    cast_masks,
    spell_out_scatter,
    spell_out_cache,
    merge_masks,
    spell_out_attention,
    drop_softmax_precision,
    allow_decomposition,
)
RULES: dict[str, tuple[Rule, ...]] = {
    "tensorrt": TENSORRT,
    "tensorrt-rtx": TENSORRT,
    "onnxruntime": (),
}
CONCERNED = frozenset(
    {"Attention", "LayerNormalization", "Loop", "RotaryEmbedding", "TensorScatter"}
)
"""The operators that the rules look at."""


def is_concerned(model: ir.Model) -> bool:
    """Whether a rule may find something to change: without functions and CONCERNED operators none does."""
    return bool(model.functions) or any(node.op_type in CONCERNED for node in nodes_of(model.graph))


def legalize(model: ir.Model, target: Target) -> tuple[ir.Model, tuple[str, ...]]:
    """Return a copy of `model` that `target` accepts, and what was changed.

    Numbers stay equal up to rounding; node names keep their prefix, so planned kernels can be traced to the graph.
    Raises BuildError when a rule meets a form it must change and cannot.
    """
    changed: list[str] = []
    with collector_paused():
        legal = _copy(model)
        for rule in RULES[target.runtime]:
            changed += rule(legal)
    return legal, tuple(changed)


def _copy(model: ir.Model) -> ir.Model:
    """A copy with its nodes sorted: a graph that is not cannot be copied, so that `model` itself is sorted first."""
    try:
        return model.clone()
    except RuntimeError:
        pass
    try:
        model.graph.sort()
        return model.clone()
    except (ValueError, RuntimeError):
        raise BuildError(
            f"legalise graph {model.graph.name or 'without a name'}",
            found="its nodes stand in a circle, or read values that nothing computes",
            fix="blockforge preflight names them",
        ) from None
