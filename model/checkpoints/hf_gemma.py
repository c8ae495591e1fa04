"""config.json of Gemma 2 and 3 and of DeepSeek-V3 -> ModelConfig; absent keys mean what transformers makes of them."""

from dataclasses import replace

from ...core.errors import UsageError
from ..config import (
    AttentionConfig,
    EmbeddingConfig,
    ExpertsConfig,
    FeedForwardConfig,
    HeadConfig,
    LatentConfig,
    LayerException,
    ModelConfig,
    NormConfig,
    RopeConfig,
)
from ..feed_forward_config import FeedForwardKind
from ..fields import Fields
from .hf_fields import UNSUPPORTED, exceptions_of, heads, windowed_layers
from .hf_rope import rope_fields, rope_from_hf, yarn_stretch

_GATES: dict[str, FeedForwardKind] = {
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu_new": "geglu_tanh",
    "gelu": "geglu",
    "silu": "swiglu",
    "relu": "reglu",
}


def gemma_2(fields: Fields) -> ModelConfig:
    """Gemma2ForCausalLM: softcaps, and a window in every second layer."""
    return _gemma(fields, every=2, caps=(50.0, 30.0), qk_norm=False)


def gemma_3(fields: Fields) -> ModelConfig:
    """Gemma3ForCausalLM: q/k norms, and five of six layers under a window with a RoPE of their own."""
    every = fields.whole("sliding_window_pattern", fields.whole("_sliding_window_pattern", 6))
    fields.require("use_bidirectional_attention", False, absent=False, why=UNSUPPORTED)
    return _gemma(fields, every=every, caps=(None, None), qk_norm=True)


def _gemma(
    fields: Fields, *, every: int, caps: tuple[float | None, float | None], qk_norm: bool
) -> ModelConfig:
    sizes = heads(fields)
    hidden_size, num_layers = fields.whole("hidden_size"), fields.whole("num_hidden_layers")
    norm, bias = (
        NormConfig(fields.number("rms_norm_eps", 1e-6)),
        fields.flag("attention_bias", False),
    )
    local_rope, rope = _ropes(fields, sizes[2], gemma_3=qk_norm)
    scalar = fields.number("query_pre_attn_scalar", 256)
    local = AttentionConfig(
        *sizes,
        local_rope,
        bias=bias,
        out_bias=bias,
        qk_norm=norm if qk_norm else None,
        scale=None if scalar == sizes[2] else scalar**-0.5,
        softcap=_cap(fields, "attn_logit_softcapping", caps[0]),
        window=fields.whole("sliding_window", 4096),
    )
    everything = replace(local, window=None, rope=rope)
    kinds = ["full_attention", "sliding_attention"]
    default = [kinds[bool((layer + 1) % every)] for layer in range(num_layers)]
    windowed = windowed_layers(fields, num_layers, default)
    attention, layers, other = exceptions_of(windowed, local, everything)
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        max_position_embeddings=fields.whole("max_position_embeddings", 8192),
        norm=norm,
        attention=attention,
        feed_forward=FeedForwardConfig(
            fields.whole("intermediate_size"), _gate(fields, "hidden_activation")
        ),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        placement="sandwich",
        embedding=EmbeddingConfig(scale=hidden_size**0.5),
        head=HeadConfig(softcap=_cap(fields, "final_logit_softcapping", caps[1])),
        exceptions=(LayerException(layers, other),) if layers else (),
    )


def _ropes(fields: Fields, head_dim: int, *, gemma_3: bool) -> tuple[RopeConfig, RopeConfig]:
    """The positions under a window, and without. Gemma 2 has one for both; Gemma 3 first stated the former's base alone."""
    stated, theta = rope_fields(fields), 1e6 if gemma_3 else 1e4
    kinds = ("sliding_attention", "full_attention")
    if stated is not None and any(kind in stated.values for kind in kinds):
        local, everything = (
            rope_from_hf(fields, head_dim, stated.fields(kind), theta=default)
            for kind, default in zip(kinds, (1e4, theta), strict=True)
        )
        return local, everything
    everything = rope_from_hf(fields, head_dim, theta=theta)
    local = RopeConfig(fields.number("rope_local_base_freq", 1e4)) if gemma_3 else everything
    return local, everything


def _cap(fields: Fields, key: str, absent: float | None) -> float | None:
    """A softcap: absent means the family's own, null means none."""
    if key not in fields.values:
        return absent
    return None if fields.values[key] is None else fields.number(key)


def _gate(fields: Fields, key: str) -> FeedForwardKind:
    name = fields.text(key, "gelu_pytorch_tanh")
    if name not in _GATES:
        raise UsageError(
            fields.source, found=f"{key} is {name!r}", fix=f"Supported: {', '.join(_GATES)}"
        )
    return _GATES[name]


def deepseek_v3(fields: Fields) -> ModelConfig:
    """DeepseekV3ForCausalLM; the layers beyond num_hidden_layers that predict further tokens are not read."""
    for key, value in (("hidden_act", "silu"), ("attention_bias", False)):
        fields.require(key, value, absent=value, why=UNSUPPORTED)
    num_heads = fields.whole("num_attention_heads")
    rope_dim, plain_dim = fields.whole("qk_rope_head_dim"), fields.whole("qk_nope_head_dim")
    head_dim, rope = rope_dim + plain_dim, rope_from_hf(fields, rope_dim)
    q_rank = fields.whole("q_lora_rank", 0)
    expert_size = fields.whole("moe_intermediate_size")
    dense = tuple(range(fields.whole("first_k_dense_replace", 3)))
    return ModelConfig(
        vocab_size=fields.whole("vocab_size"),
        hidden_size=fields.whole("hidden_size"),
        num_layers=fields.whole("num_hidden_layers"),
        max_position_embeddings=fields.whole("max_position_embeddings", 4096),
        norm=NormConfig(fields.number("rms_norm_eps", 1e-6)),
        attention=AttentionConfig(
            num_heads,
            num_heads,
            head_dim,
            rope,
            scale=head_dim**-0.5 * _sharpened(fields, rope.scaling is not None) ** 2,
            latent=LatentConfig(
                kv_lora_rank=fields.whole("kv_lora_rank"),
                rope_dim=rope_dim,
                value_dim=fields.whole("v_head_dim"),
                q_lora_rank=q_rank or None,
            ),
        ),
        feed_forward=FeedForwardConfig(expert_size, experts=_experts(fields, expert_size)),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        exceptions=(
            LayerException(
                dense, feed_forward=FeedForwardConfig(fields.whole("intermediate_size"))
            ),
        ),
    )


def _sharpened(fields: Fields, scaled: bool) -> float:
    """YaRN's mscale_all_dim multiplies the scores twice, once for q and once for k."""
    rope = rope_fields(fields)
    everywhere = 0.0 if rope is None or not scaled else rope.number("mscale_all_dim", 0.0)
    return yarn_stretch(rope.number("factor"), everywhere) if rope and everywhere else 1.0


def _experts(fields: Fields, expert_size: int) -> ExpertsConfig:
    return ExpertsConfig(
        num_experts=fields.whole("n_routed_experts", fields.whole("num_local_experts", 0)),
        num_active=fields.whole("num_experts_per_tok"),
        score="sigmoid",
        normalise=fields.flag("norm_topk_prob", True),
        scaling=fields.number("routed_scaling_factor", 1.0),
        shared_size=expert_size * fields.whole("n_shared_experts", 1),
        correction_bias=True,
        num_groups=fields.whole("n_group", 1),
        num_active_groups=fields.whole("topk_group", 1),
    )
