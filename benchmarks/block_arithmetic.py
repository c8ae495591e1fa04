"""The worked numbers of docs/transformer-block.md, one table per argument, all when there is none.

python benchmarks/block_arithmetic.py [parts] [flops] [parameters] [batches]
"""

import sys

from blockforge.model.config import (
    AttentionConfig,
    FeedForwardConfig,
    ModelConfig,
    NormConfig,
    RopeConfig,
)
from blockforge.model.cost import SubLayer, cost, cost_report
from blockforge.model.gpus import GPUS
from blockforge.model.presets import PRESETS

WIDTH, CONTEXT = 4096, 2048
FAMILIES = (
    "transformer-base",
    "bert-base",
    "gpt2",
    "t5-v1.1-base",
    "palm-8b",
    "llama-7b",
    "llama-2-7b",
    "llama-3-8b",
    "llama-3.2-1b",
    "mistral-7b",
    "yi-34b",
    "qwen2.5-7b",
    "qwen3-8b",
    "phi-3-mini-4k",
    "gemma-2-9b",
    "gemma-3-1b",
    "grok-1",
    "deepseek-v3",
)
MATRICES = (SubLayer.QKV, SubLayer.OUTPUT_PROJECTION, SubLayer.FEED_FORWARD, SubLayer.HEAD)


def part_table() -> None:
    """Who uses what, read from the presets."""
    columns = (
        "preset",
        "norm",
        "placement",
        "feed-forward",
        "width / d",
        "biases",
        "positions",
        "heads",
        "tied",
    )
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for name in FAMILIES:
        config = PRESETS[name]
        attention, feed_forward = config.attention, config.feed_forward
        positions = config.embedding.positions
        if attention.rope is not None:
            positions = "RoPE"
        elif attention.relative_bias is not None:
            positions = "relative bias"
        places = {
            "q, k, v": attention.bias,
            "out": attention.out_bias,
            "feed-forward": feed_forward.bias,
        }
        heads = f"{attention.num_heads} / {attention.num_kv_heads}"
        experts = feed_forward.experts
        cells = (
            f"`{name}`",
            config.norm.kind,
            config.placement,
            feed_forward.kind
            + (f", {experts.num_active} of {experts.num_experts}" if experts else ""),
            f"{feed_forward.intermediate_size / config.hidden_size:.2f}",
            ", ".join(place for place, there in places.items() if there) or "none",
            positions,
            heads + (", latent" if attention.latent else ""),
            "yes" if config.tie_word_embeddings else "no",
        )
        print("| " + " | ".join(cells) + " |")


def flop_table() -> None:
    """One block of the texts: multi-head attention, 4 d wide feed-forward, prefill of CONTEXT tokens."""
    config = ModelConfig(
        vocab_size=2,
        hidden_size=WIDTH,
        num_layers=1,
        max_position_embeddings=CONTEXT,
        norm=NormConfig(1e-5),
        attention=AttentionConfig(32, 32, WIDTH // 32, RopeConfig(10000.0)),
        feed_forward=FeedForwardConfig(4 * WIDTH, kind="gelu"),
    )
    counted = cost(config, sequence=CONTEXT)
    print(f"FLOPs per token of one block, d = {WIDTH}, T = {CONTEXT}")
    print(f"{'sub-layer':20}{'all pairs':>14}{'in d^2':>8}{'in T d':>8}{'under the mask':>16}")
    for name in (
        SubLayer.QKV,
        SubLayer.ATTENTION,
        SubLayer.OUTPUT_PROJECTION,
        SubLayer.FEED_FORWARD,
    ):
        row = counted.row(name)
        every, needed = row.flops / CONTEXT, row.needed_flops / CONTEXT
        square, area = every / WIDTH**2, every / (WIDTH * CONTEXT)
        units = (
            (f"{square:8.0f}", f"{'-':>8}")
            if name is not SubLayer.ATTENTION
            else (f"{'-':>8}", f"{area:8.0f}")
        )
        print(f"{name.value:20}{every:14.0f}{units[0]}{units[1]}{needed:16.0f}")


def ledger(preset: str) -> None:
    """Parameters of one preset, beside the estimate 12 d^2 per block."""
    config, counted = PRESETS[preset], cost(PRESETS[preset])
    square = config.hidden_size**2
    print(f"Parameters of {preset}, d = {config.hidden_size}")
    for row in counted.rows:
        if row.parameters:
            per_block = row.parameters / config.num_layers / square
            print(
                f"{row.name.value:20}{row.parameters / 1e9:10.3f} G{per_block:10.3f} d^2 per block"
            )
    print(f"{'all':20}{counted.parameters / 1e9:10.3f} G")
    estimate = config.num_layers * 12 * square
    print(f"{'blocks at 12 d^2':20}{estimate / 1e9:10.3f} G")


def ridges(preset: str, sequence: int) -> None:
    """The smallest batch at which decoding each sub-layer is bound by compute, in bf16."""
    print(f"{preset}, bf16, decoding at {sequence} positions: compute-bound from batch")
    print(
        f"{'gpu':14}{'FLOP/byte':>10}"
        + "".join(f"{n.value:>19}" for n in (*MATRICES, SubLayer.ATTENTION))
    )
    for name, gpu in GPUS.items():
        found = cost_report(preset, sequence=sequence, gpu=name).compute_bound_batch
        batches = "".join(f"{found[n] or 'never':>19}" for n in (*MATRICES, SubLayer.ATTENTION))
        print(f"{name:14}{gpu.peaks['bf16'] / gpu.bandwidth:10.0f}{batches}")


TABLES = {
    "parts": part_table,
    "flops": flop_table,
    "parameters": lambda: ledger("llama-3-70b"),
    "batches": lambda: ridges("llama-3-8b", 4096),
}


if __name__ == "__main__":
    for asked in sys.argv[1:] or TABLES:
        TABLES[asked]()
