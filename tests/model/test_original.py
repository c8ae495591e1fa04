"""The original Transformer against torch.nn's own layers, with copied weights, in float64; DeepNorm beside it."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from blockforge.model.build import load_module
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.model.checkpoints.preset import RandomCheckpoint
from blockforge.model.config import DeepNormConfig
from blockforge.model.presets import PRESETS

from .test_decoder import relative

GENERATOR = torch.Generator().manual_seed(1)
SOURCE = torch.randint(0, 256, (3, 21), generator=GENERATOR)
TARGET = torch.randint(0, 256, (3, 13), generator=GENERATOR)
LENGTHS = torch.tensor([[21], [14], [1]])
MASK = (torch.arange(21) < LENGTHS).long()
OPTIONS = {
    "d_model": 64,
    "nhead": 4,
    "dim_feedforward": 256,
    "dropout": 0.0,
    "batch_first": True,
    "dtype": torch.float64,
}


def weights(preset: str) -> dict[str, torch.Tensor]:
    checkpoint = preset_checkpoint(preset)
    return {name: checkpoint.read(name, torch.float64) for name in checkpoint.names()}


def copied(layer: nn.Module, ours: dict[str, torch.Tensor], prefix: str) -> nn.Module:
    """`layer` with our weights of one block; torch packs q, k and v and numbers its norms."""

    def projections(name: str) -> dict[str, torch.Tensor]:
        parts = [
            {kind: ours[f"{prefix}{name}.{p}_proj.{kind}"] for kind in ("weight", "bias")}
            for p in "qkv"
        ]
        return {f"in_proj_{kind}": torch.cat([p[kind] for p in parts]) for kind in parts[0]}

    names = {"self_attn.out_proj": "self_attn.o_proj", "linear1": "mlp.up_proj"}
    names |= {"linear2": "mlp.down_proj", "norm1": "post_attention_layernorm"}
    state = {f"self_attn.{k}": v for k, v in projections("self_attn").items()}
    if isinstance(layer, nn.TransformerDecoderLayer):
        state |= {f"multihead_attn.{k}": v for k, v in projections("cross_attn").items()}
        names |= {"multihead_attn.out_proj": "cross_attn.o_proj"}
        names |= {"norm2": "post_cross_attention_layernorm", "norm3": "post_feedforward_layernorm"}
    else:
        names |= {"norm2": "post_feedforward_layernorm"}
    for theirs, mine in names.items():
        state |= {f"{theirs}.{k}": ours[f"{prefix}{mine}.{k}"] for k in ("weight", "bias")}
    layer.load_state_dict(state)
    return layer.eval()


def embedded(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """sqrt(d) times the token, plus sines at even and cosines at odd elements, one number at a time."""
    width = table.shape[1]
    x = table[ids] * math.sqrt(width)
    for s in range(ids.shape[1]):
        for i in range(width):
            angle = s / 10000.0 ** ((i - i % 2) / width)
            x[:, s, i] += math.cos(angle) if i % 2 else math.sin(angle)
    return x


def test_a_block_is_torchs_encoder_layer():
    ours = load_module(preset_checkpoint("transformer-tiny-encoder"), layer=1, dtype=torch.float64)
    layer = copied(
        nn.TransformerEncoderLayer(**OPTIONS), weights("transformer-tiny-encoder"), "layers.1."
    )
    x = torch.randn(3, 21, 64, dtype=torch.float64, generator=GENERATOR)
    expected = layer(x, src_key_padding_mask=MASK == 0)
    assert relative(ours(x, MASK), expected) < 1e-12
    assert relative(ours(x, torch.ones_like(MASK)), layer(x)) < 1e-12


def test_the_encoder_is_a_stack_of_them():
    ours = load_module(preset_checkpoint("transformer-tiny-encoder"), dtype=torch.float64)
    state = weights("transformer-tiny-encoder")
    x = embedded(state["embed_tokens.weight"], SOURCE)
    for i in range(2):
        layer = copied(nn.TransformerEncoderLayer(**OPTIONS), state, f"layers.{i}.")
        x = layer(x, src_key_padding_mask=MASK == 0)
    kept = MASK.bool()
    assert relative(ours(SOURCE, MASK)[kept], x[kept]) < 1e-12


def test_padding_changes_nothing_for_the_tokens():
    """Row by row at its own length: the same numbers, whatever stands behind."""
    ours = load_module(preset_checkpoint("transformer-tiny-encoder"), dtype=torch.float64)
    padded = ours(SOURCE, MASK)
    for row, length in enumerate(LENGTHS[:, 0].tolist()):
        alone = ours(SOURCE[row : row + 1, :length], torch.ones(1, length, dtype=torch.int64))
        assert relative(padded[row : row + 1, :length], alone) < 1e-12
    assert relative(ours(SOURCE, torch.ones_like(MASK))[1:, :1], padded[1:, :1]) > 1e-3


def test_encoder_and_decoder_together():
    ours = load_module(preset_checkpoint("transformer-tiny"), dtype=torch.float64)
    state = weights("transformer-tiny")
    x, y = (embedded(state["embed_tokens.weight"], ids) for ids in (SOURCE, TARGET))
    for i in range(2):
        layer = copied(nn.TransformerEncoderLayer(**OPTIONS), state, f"encoder.layers.{i}.")
        x = layer(x, src_key_padding_mask=MASK == 0)
    later = nn.Transformer.generate_square_subsequent_mask(13, dtype=torch.float64)
    for i in range(2):
        layer = copied(nn.TransformerDecoderLayer(**OPTIONS), state, f"layers.{i}.")
        hidden = (MASK == 0).double().masked_fill(MASK == 0, -torch.inf)
        y = layer(y, x, tgt_mask=later, memory_key_padding_mask=hidden)
    expected = y @ state["embed_tokens.weight"].T
    assert relative(ours(SOURCE, MASK, TARGET), expected) < 1e-12


def test_a_decoders_block_alone_takes_the_encoders_states():
    ours = load_module(preset_checkpoint("transformer-tiny"), layer=0, dtype=torch.float64)
    layer = copied(nn.TransformerDecoderLayer(**OPTIONS), weights("transformer-tiny"), "layers.0.")
    y = torch.randn(3, 13, 64, dtype=torch.float64, generator=GENERATOR)
    x = torch.randn(3, 21, 64, dtype=torch.float64, generator=GENERATOR)
    later = nn.Transformer.generate_square_subsequent_mask(13, dtype=torch.float64)
    hidden = (MASK == 0).double().masked_fill(MASK == 0, -torch.inf)
    expected = layer(y, x, tgt_mask=later, memory_key_padding_mask=hidden)
    assert relative(ours(y, x, MASK), expected) < 1e-12


def test_decoder_only_use_is_the_same_layer_under_a_causal_mask():
    ours = load_module(preset_checkpoint("transformer-tiny-decoder"), dtype=torch.float64)
    state = weights("transformer-tiny-decoder")
    x = embedded(state["embed_tokens.weight"], SOURCE)
    later = nn.Transformer.generate_square_subsequent_mask(21, dtype=torch.float64)
    for i in range(2):
        layer = copied(nn.TransformerEncoderLayer(**OPTIONS), state, f"layers.{i}.")
        x = layer(x, src_mask=later)
    assert relative(ours(SOURCE), x @ state["embed_tokens.weight"].T) < 1e-12


@pytest.mark.parametrize("layers", [2, 18, 100])
def test_deepnorm_constants_are_the_papers(layers):
    """alpha = (2N)^(1/4), beta = (8N)^(-1/4) for one stack: arXiv 2203.00555, figure 2."""
    found = DeepNormConfig.for_layers(layers)
    assert found.alpha**4 == pytest.approx(2 * layers, rel=1e-14)
    assert found.beta**-4 == pytest.approx(8 * layers, rel=1e-14)


def test_deepnorm_is_post_norm_with_a_longer_residual():
    """With alpha 1 it is post-norm; with alpha 3 and x / 3 in the place of x, the residual is x again."""
    post = replace(PRESETS["deepnorm-tiny"], placement="post", deepnorm=None)
    one = replace(PRESETS["deepnorm-tiny"], deepnorm=DeepNormConfig(1.0, 1.0))
    three = replace(one, deepnorm=DeepNormConfig(3.0, 1.0))
    same, first, longer = (
        load_module(RandomCheckpoint("same weights", config, 0), layer=0, dtype=torch.float64)
        for config in (post, one, three)
    )
    x = torch.randn(2, 9, 64, dtype=torch.float64, generator=GENERATOR)
    assert torch.equal(first(x), same(x))
    assert relative(longer(x), same(x)) > 1e-2
    block = longer.layers["0"]
    context = longer.context(x)
    h = block.post_attention_layernorm(3 * x + block.self_attn(x, context))
    y = block.post_feedforward_layernorm(3 * h + block.mlp(h))
    assert relative(longer(x), y) < 1e-14


def test_deepnorm_shrinks_the_weights_it_names():
    plain = replace(PRESETS["deepnorm-tiny"], placement="post", deepnorm=None)
    name = "layers.0.{}.weight"
    small = preset_checkpoint("deepnorm-tiny")
    large = RandomCheckpoint("preset:deepnorm-tiny", plain, 0)
    beta = PRESETS["deepnorm-tiny"].deepnorm.beta
    for part in ("self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"):
        expected = large.read(name.format(part), torch.float64) * beta
        torch.testing.assert_close(
            small.read(name.format(part), torch.float64), expected, rtol=1e-6, atol=0
        )
    for part in ("self_attn.q_proj", "self_attn.k_proj", "post_attention_layernorm"):
        assert torch.equal(small.read(name.format(part)), large.read(name.format(part)))
