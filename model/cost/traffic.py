"""Elements per token that each sub-layer moves to and from memory, one kernel per line of the plan.

Kernels as TensorRT plans a block: norm; QKV; RoPE; attention; output projection + residual; norm; gate and up;
activation; down + residual. Each reads its inputs and writes its outputs once. In elements per token, H hidden:

    embedding           H per table, + H
    norm                2 * (width of what it normalises)
    qkv                 H + outputs;  a low-rank second stage: its input + its output
    rope                2 * (rotated elements)
    attention           queries + outputs, + keys and values in a prefill; the cache is counted apart
    output projection   input + H (residual) + H
    feed-forward        per expert H + (first outputs) + (last input) + H, twice the middle where a gate is a kernel of
                        its own; + H (residual); several experts: their outputs once more, and the sum
    head                H + vocabulary, with the input and output of a dense layer before it
"""

from collections.abc import Sequence

from ..config import ModelConfig
from .heads import HeadShape
from .parts import Part, Role


def embedding_elements(config: ModelConfig) -> int:
    """One token of one stack: the rows it reads and the sum it writes."""
    tables = 1 + (config.embedding.positions == "learned") + bool(config.embedding.num_types)
    return config.hidden_size * (tables + 1)


def norm_elements(parts: Sequence[Part], heads: HeadShape | None) -> int:
    """Norms of one place; q_norm and k_norm share one weight among the heads of `heads`."""
    return sum(2 * _normalised(part, heads) for part in parts if part.role is Role.SCALE)


def _normalised(part: Part, heads: HeadShape | None) -> int:
    if heads and part.module == "q_norm":
        return part.numel * heads.num_heads
    if heads and part.module == "k_norm":
        return part.numel * heads.num_kv_heads
    return part.numel


def projected_elements(parts: Sequence[Part], hidden: int) -> int:
    """The matrices of one place in qkv, output projection or feed-forward."""
    first = sum(p.rows for p in parts if p.role is Role.FIRST)
    last = sum(p.columns for p in parts if p.role is Role.LAST)
    moved = sum(p.rows + p.columns for p in parts if p.role is Role.INNER)
    experts = sum(p.active for p in parts if p.role is Role.LAST)
    if first:
        moved += max(experts, 1) * hidden + first
    if last:
        moved += last + (experts + 1) * hidden
    if experts > 1:
        moved += (experts + 1) * hidden
    if first and last and first != last:  # gated: the activation is a kernel of its own
        moved += first + last
    return moved


def dense_elements(parts: Sequence[Part]) -> int:
    """The dense layer of a masked or pooled head, 0 where there is none."""
    return sum(p.rows + p.columns for p in parts if p.module == "dense" and p.is_matrix)
