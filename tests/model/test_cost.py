"""The account of a forward pass against torch's own counters, for every preset and every kind of part."""

import dataclasses
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.model.build import build_module, signature
from blockforge.model.config import (
    AttentionConfig,
    EmbeddingConfig,
    ExpertsConfig,
    FeedForwardConfig,
    HeadConfig,
    LatentConfig,
    LayerException,
    ModelConfig,
    NormConfig,
    RelativeBiasConfig,
    RopeConfig,
)
from blockforge.model.cost import SubLayer, cost
from blockforge.model.presets import PRESETS

ROPE = RopeConfig(10000.0)
HEADS = AttentionConfig(4, 2, 16, ROPE)
BASE = ModelConfig(
    vocab_size=97,
    hidden_size=48,
    num_layers=3,
    max_position_embeddings=64,
    norm=NormConfig(1e-5),
    attention=HEADS,
    feed_forward=FeedForwardConfig(80),
)


def variant(attention=None, **changes):
    """BASE with some parts exchanged."""
    if attention:
        changes["attention"] = dataclasses.replace(HEADS, **attention)
    return dataclasses.replace(BASE, **changes)


LATENT = AttentionConfig(4, 4, 24, ROPE, latent=LatentConfig(20, 8, 12, q_lora_rank=28))
ENCODER = variant({"causal": False}, padding_mask=True)
EXPERTS = FeedForwardConfig(40, experts=ExpertsConfig(8, 2, shared_size=24))
KINDS = {
    "tied": variant(tie_word_embeddings=True),
    "packed with biases": variant(
        {"packed": True, "bias": True, "out_bias": True},
        feed_forward=FeedForwardConfig(80, packed=True),
    ),
    "gelu with biases": variant(feed_forward=FeedForwardConfig(80, kind="gelu", bias=True)),
    "query-key norms": variant({"qk_norm": NormConfig(1e-6)}),
    "softcap": variant({"softcap": 30.0}),
    "window": variant({"window": 4}),
    "latent": dataclasses.replace(BASE, attention=LATENT),
    "experts": variant(
        feed_forward=EXPERTS,
        exceptions=(LayerException((0,), feed_forward=FeedForwardConfig(64)),),
    ),
    "parallel": variant(placement="parallel"),
    "sandwich": variant(placement="sandwich"),
    "relative bias": variant({"rope": None, "relative_bias": RelativeBiasConfig()}),
    "learned positions": variant({"rope": None}, embedding=EmbeddingConfig(positions="learned")),
    "masked head": variant(
        {"causal": False},
        placement="post",
        final_norm=False,
        padding_mask=True,
        head=HeadConfig("masked_lm"),
        embedding=EmbeddingConfig(positions="learned", num_types=2, norm=True),
        tie_word_embeddings=True,
    ),
    "pooled head": variant({"causal": False}, padding_mask=True, head=HeadConfig("pooled")),
    "no head": variant({"causal": False}, head=HeadConfig("hidden"), tie_word_embeddings=True),
    "encoder and decoder": variant(
        {"rope": None},
        encoder=ENCODER,
        cross_attention=AttentionConfig(4, 4, 16, None, causal=False),
    ),
}


def torch_flops(config, batch, sequence):
    """torch's counter over the module's own forward, on the meta device."""
    inputs, _ = signature(config, None, DType.FP32)
    ids = [torch.zeros(batch, sequence, dtype=torch.int64, device="meta") for _ in inputs]
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        build_module(config)(*ids)
    return counter.get_total_flops()


def shallow(config):
    """The same model with at most 2 layers; the tiny presets show each family's mixture of layers whole."""
    encoder = config.encoder and shallow(config.encoder)
    return dataclasses.replace(config, num_layers=min(config.num_layers, 2), encoder=encoder)


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_are_the_modules(name):
    module = build_module(PRESETS[name])
    assert cost(PRESETS[name]).parameters == sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", PRESETS)
def test_flops_are_torchs(name):
    config = shallow(PRESETS[name])
    assert cost(config, batch=2, sequence=5).flops == torch_flops(config, 2, 5)


@pytest.mark.parametrize("name", KINDS)
def test_flops_and_parameters_of_every_kind_of_part(name):
    config = KINDS[name]
    counted = cost(config, batch=2, sequence=9)
    assert counted.flops == torch_flops(config, 2, 9)
    assert counted.parameters == sum(p.numel() for p in build_module(config).parameters())


def test_decoding_attends_to_the_cache_as_torch_counts_it():
    counted = cost(BASE, batch=2, sequence=33, mode="decode").row(SubLayer.ATTENTION)
    heads, kv_heads, dim = HEADS.num_heads, HEADS.num_kv_heads, HEADS.head_dim
    q, k = (torch.empty(2, n, s, dim, device="meta") for n, s in ((heads, 1), (kv_heads, 33)))
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True)
    assert counted.flops == counter.get_total_flops() * BASE.num_layers


def test_decoding_multiplies_as_a_prefill_of_one_token_does():
    """Everything but attention sees one token per sequence, whatever the context."""
    one, step = cost(BASE, batch=3, sequence=1), cost(BASE, batch=3, sequence=50, mode="decode")
    for row in one.rows:
        same = step.row(row.name).flops == row.flops
        assert same == (row.name is not SubLayer.ATTENTION)


@pytest.mark.parametrize("window", [None, 1, 4, 9, 20])
def test_visible_pairs_are_what_the_mask_leaves(window):
    sequence = 9
    query, key = torch.arange(sequence)[:, None], torch.arange(sequence)
    seen = (key <= query) & (key > query - (window or sequence))
    row = cost(variant({"window": window}), sequence=sequence).row(SubLayer.ATTENTION)
    per_pair = 2 * HEADS.num_heads * 2 * HEADS.head_dim * BASE.num_layers
    assert row.needed_flops == int(seen.sum()) * per_pair
    assert row.flops == sequence**2 * per_pair


def test_a_window_bounds_the_cache_and_no_window_does_not():
    per_token = 2 * HEADS.num_kv_heads * HEADS.head_dim * BASE.num_layers * 2
    free, bounded = (cost(variant({"window": w}), batch=3, sequence=20) for w in (None, 8))
    assert free.kv_cache_bytes_per_token == bounded.kv_cache_bytes_per_token == per_token
    assert (free.kv_cache_bytes, bounded.kv_cache_bytes) == (60 * per_token, 24 * per_token)


def test_grouped_queries_shrink_the_cache_and_nothing_else_of_attention():
    grouped, full = BASE, variant({"num_kv_heads": 4})
    assert cost(full).kv_cache_bytes_per_token == 2 * cost(grouped).kv_cache_bytes_per_token
    rows = [cost(c).row(SubLayer.ATTENTION).flops for c in (grouped, full)]
    assert rows[0] == rows[1]


def test_latent_attention_caches_the_latent_and_decodes_in_it():
    latent, config = LATENT.latent, KINDS["latent"]
    step = cost(config, sequence=50, mode="decode")
    assert step.kv_cache_bytes_per_token == 2 * 3 * (latent.kv_lora_rank + latent.rope_dim)
    width = latent.kv_lora_rank + latent.rope_dim + latent.kv_lora_rank
    assert step.row(SubLayer.ATTENTION).flops == 3 * 50 * 2 * LATENT.num_heads * width


def test_idle_experts_are_neither_needed_nor_read():
    config = KINDS["experts"]
    one = cost(config, sequence=10, mode="decode").row(SubLayer.FEED_FORWARD)
    expert, router = 3 * 48 * 40, 8 * 48
    dense, shared = 3 * 48 * 64, 3 * 48 * 24
    per_layer = 2 * expert + shared + router
    assert one.needed_flops == 2 * (dense + 2 * per_layer)
    assert one.read_weight_bytes == 2 * (dense + 2 * per_layer)
    assert one.flops == 2 * (dense + 2 * (8 * expert + shared + router))
    many = cost(config, batch=1000, sequence=10, mode="decode").row(SubLayer.FEED_FORWARD)
    assert many.read_weight_bytes == many.weight_bytes


def test_a_decoder_with_an_encoder_reads_the_source_once():
    config = KINDS["encoder and decoder"]
    prefill, step = (cost(config, sequence=20, mode=mode) for mode in ("prefill", "decode"))
    hidden, heads = 48, 4 * 16
    own = hidden * (heads + 2 * 32) + hidden * heads  # q, k, v; cross-attention's q
    assert step.row(SubLayer.QKV).flops == 2 * 3 * own
    cached = 2 * (2 * 16) + 2 * heads  # own keys and values, and the source's
    assert prefill.kv_cache_bytes == 2 * 3 * 20 * cached
    assert prefill.kv_cache_bytes_per_token == 2 * 3 * 2 * (2 * 16)


def test_a_tied_table_is_stored_once_and_read_by_the_head():
    tied, untied = cost(KINDS["tied"], mode="decode"), cost(BASE, mode="decode")
    table = 2 * 97 * 48
    assert untied.weight_bytes - tied.weight_bytes == table
    assert tied.row(SubLayer.HEAD).weight_bytes == 0
    assert tied.row(SubLayer.HEAD).read_weight_bytes == table
    assert tied.row(SubLayer.HEAD) == dataclasses.replace(
        untied.row(SubLayer.HEAD), parameters=0, weight_bytes=0
    )


def test_traffic_of_a_block_by_hand():
    """One layer, one token, 16 bit; the kernels of TensorRT's plan, each input and output once."""
    config = dataclasses.replace(BASE, num_layers=1, final_norm=False)
    step = cost(config, sequence=7, mode="decode")
    hidden, queries, keys, middle = 48, 64, 32, 80
    elements = {
        SubLayer.EMBEDDING: 2 * hidden,
        SubLayer.NORM: 2 * 2 * hidden,
        SubLayer.QKV: hidden + queries + 2 * keys,
        SubLayer.ROPE: 2 * (queries + keys),
        SubLayer.ATTENTION: 2 * queries,
        SubLayer.OUTPUT_PROJECTION: queries + 2 * hidden,
        SubLayer.FEED_FORWARD: hidden + 2 * middle + 3 * middle + middle + 2 * hidden,
        SubLayer.HEAD: hidden + 97,
    }
    assert {row.name: row.activation_bytes // 2 for row in step.rows} == elements
    assert step.row(SubLayer.ATTENTION).kv_cache_bytes == 2 * (7 + 1) * 2 * keys


def test_traffic_of_feed_forwards_by_hand():
    """A plain activation rides along with its matrix; experts write one output each, which are then summed."""
    hidden, middle, tokens = 48, 80, 5
    plain = cost(KINDS["gelu with biases"], sequence=tokens).row(SubLayer.FEED_FORWARD)
    per_token = hidden + middle + middle + 2 * hidden
    assert plain.activation_bytes == 2 * 3 * tokens * per_token
    config = dataclasses.replace(KINDS["experts"], exceptions=())
    experts = cost(config, sequence=tokens).row(SubLayer.FEED_FORWARD)
    one = hidden + 2 * 40 + 3 * 40 + 40 + hidden
    shared = hidden + 2 * 24 + 3 * 24 + 24 + hidden
    summed = (3 + 1) * hidden + hidden  # three outputs read, the sum written, the residual read
    per_token = 2 * one + shared + (hidden + 8) + summed
    assert experts.activation_bytes == 2 * 3 * tokens * per_token


def test_fp8_covers_the_blocks_matrices_only():
    eight, sixteen = cost(BASE, dtype="fp8_e4m3"), cost(BASE)
    halved = {SubLayer.QKV, SubLayer.OUTPUT_PROJECTION, SubLayer.FEED_FORWARD}
    for row in sixteen.rows:
        divisor = 2 if row.name in halved else 1
        assert eight.row(row.name).weight_bytes * divisor == row.weight_bytes
        faster = eight.row(row.name).peak / row.peak
        assert math.isclose(faster, divisor, rel_tol=1e-3)  # data sheets round to a tenth
    assert eight.kv_cache_bytes == sixteen.kv_cache_bytes


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"batch": 0}, "out of range"),
        ({"sequence": -1}, "out of range"),
        ({"dtype": "int4"}, "Known: fp32, tf32"),
        ({"gpu": "h101"}, "h100-sxm"),
        ({"dtype": "fp8_e4m3", "gpu": "a100-80"}, "sm80 tensor cores"),
        ({"mode": "train"}, "no such mode"),
    ],
)
def test_wrong_requests_say_what_exists(changes, found):
    with pytest.raises(UsageError, match=found):
        cost(BASE, **changes)


def test_an_encoder_does_not_decode():
    assert cost(ENCODER).kv_cache_bytes == 0
    with pytest.raises(UsageError, match="is an encoder"):
        cost(ENCODER, mode="decode")
