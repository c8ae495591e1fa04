"""The config.json files that the models were published with, in their own spelling, are our presets."""

import pytest

from blockforge.core.errors import UsageError
from blockforge.model.checkpoints.hf_config import config_from_hf
from blockforge.model.config import (
    LinearScaling,
    LongRopeScaling,
    RopeConfig,
    YarnScaling,
)
from blockforge.model.fields import Fields
from blockforge.model.presets import PRESETS


def llama_like(architecture, vocab, hidden, inner, layers, heads, kv_heads, context, **more):
    return {
        "architectures": [architecture],
        "hidden_act": "silu",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
    } | more


GEMMA_2 = llama_like(
    "Gemma2ForCausalLM", 256000, 2304, 9216, 26, 8, 4, 8192,
    head_dim=256, hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh",
    rms_norm_eps=1e-6, rope_theta=10000.0, sliding_window=4096, query_pre_attn_scalar=256,
    attn_logit_softcapping=50.0, final_logit_softcapping=30.0, attention_bias=False,
)  # fmt: skip
del GEMMA_2["tie_word_embeddings"]  # absent in the file: Gemma ties
GEMMA_3 = llama_like(
    "Gemma3ForCausalLM", 262144, 1152, 6912, 26, 4, 1, 32768,
    head_dim=256, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, rope_theta=1000000,
    rope_local_base_freq=10000, rope_scaling=None, sliding_window=512, sliding_window_pattern=6,
    query_pre_attn_scalar=256, attn_logit_softcapping=None, final_logit_softcapping=None,
    attention_bias=False,
)  # fmt: skip
del GEMMA_3["tie_word_embeddings"]
DEEPSEEK = llama_like(
    "DeepseekV3ForCausalLM", 129280, 7168, 18432, 61, 128, 128, 163840,
    attention_bias=False, first_k_dense_replace=3, kv_lora_rank=512, moe_intermediate_size=2048,
    moe_layer_freq=1, n_group=8, n_routed_experts=256, n_shared_experts=1, norm_topk_prob=True,
    num_experts_per_tok=8, num_nextn_predict_layers=1, q_lora_rank=1536, qk_nope_head_dim=128,
    qk_rope_head_dim=64, rms_norm_eps=1e-6, rope_theta=10000, routed_scaling_factor=2.5,
    scoring_func="sigmoid", topk_group=4, topk_method="noaux_tc", v_head_dim=128,
    rope_scaling={
        "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096, "type": "yarn",
    },
)  # fmt: skip
PHI_3 = llama_like(
    "Phi3ForCausalLM", 32064, 3072, 8192, 32, 32, 32, 4096,
    rms_norm_eps=1e-5, rope_scaling=None, rope_theta=10000.0, sliding_window=2047,
    original_max_position_embeddings=4096,
)  # fmt: skip
QWEN_2 = llama_like(
    "Qwen2ForCausalLM", 152064, 3584, 18944, 28, 28, 4, 32768,
    max_window_layers=28, rms_norm_eps=1e-6, rope_theta=1000000.0, sliding_window=131072,
    use_sliding_window=False,
)  # fmt: skip
PUBLISHED = {
    "deepseek-v3": DEEPSEEK,
    "gemma-2-2b": GEMMA_2,
    "gemma-3-1b": GEMMA_3,
    "phi-3-mini-4k": PHI_3,
    "qwen2.5-7b": QWEN_2,
    "qwen3-8b": llama_like(
        "Qwen3ForCausalLM", 151936, 4096, 12288, 36, 32, 8, 40960,
        attention_bias=False, head_dim=128, max_window_layers=36, rms_norm_eps=1e-6,
        rope_scaling=None, rope_theta=1000000, sliding_window=None, use_sliding_window=False,
    ),
    "mistral-7b": llama_like(
        "MistralForCausalLM", 32000, 4096, 14336, 32, 32, 8, 32768,
        rms_norm_eps=1e-5, rope_theta=10000.0, sliding_window=4096,
    ),
    "yi-6b": llama_like(
        "LlamaForCausalLM", 64000, 4096, 11008, 32, 32, 4, 4096,
        rms_norm_eps=1e-5, rope_scaling=None, rope_theta=5000000.0,
    ),
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
        "n_positions": 1024, "vocab_size": 50257,
    },
    "bert-base": {
        "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2,
        "vocab_size": 30522,
    },
    "t5-v1.1-base": {
        "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 768,
        "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-6, "num_decoder_layers": 12,
        "num_heads": 12, "num_layers": 12, "relative_attention_num_buckets": 32,
        "tie_word_embeddings": False, "vocab_size": 32128,
    },
}  # fmt: skip


def parsed(values):
    return config_from_hf(Fields("config.json", values))[0]


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_file_is_the_preset(name):
    assert parsed(PUBLISHED[name]) == PRESETS[name]


def test_scaling_of_gemma_3_is_for_the_layers_without_window():
    config = parsed(GEMMA_3 | {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}})
    assert config.attention_of(0).rope == RopeConfig(10000.0)
    assert config.attention_of(5).rope == RopeConfig(1000000.0, LinearScaling(8.0))


def test_yarn_as_qwen_states_it():
    """Beyond 32768 tokens: the model card's lines."""
    scaling = {"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}
    config = parsed(QWEN_2 | {"rope_scaling": scaling})
    found = config.attention.rope.scaling
    assert isinstance(found, YarnScaling)
    assert (found.factor, found.original_max_position_embeddings) == (4.0, 32768)
    assert found.attention_factor == pytest.approx(0.1 * 1.3862943611198906 + 1, rel=1e-14)


def test_longrope_as_phi_3_states_it():
    """The original context stands beside it; sharpening follows from how far it is stretched: 131072 / 4096 = 2^5."""
    factors = [1.0 + i for i in range(48)]
    scaling = {"long_factor": factors, "short_factor": factors, "type": "longrope"}
    config = parsed(PHI_3 | {"rope_scaling": scaling, "max_position_embeddings": 131072})
    found = config.attention.rope.scaling
    assert isinstance(found, LongRopeScaling)
    assert found.original_max_position_embeddings == 4096
    assert found.attention_factor == pytest.approx((1 + 5 / 12) ** 0.5, rel=1e-14)


def test_absent_and_null_windows_of_mistral_differ():
    """transformers' MistralConfig makes 4096 of an absent key; v0.2 and later state null."""
    absent = {k: v for k, v in PUBLISHED["mistral-7b"].items() if k != "sliding_window"}
    assert parsed(absent).attention.window == 4096
    assert parsed(absent | {"sliding_window": None}).attention.window is None


REFUSED = {
    "hidden_act is 'gelu'": PHI_3 | {"hidden_act": "gelu"},
    "feed_forward_proj is 'gated-mish'.*gated-gelu": PUBLISHED["t5-v1.1-base"]
    | {"feed_forward_proj": "gated-mish"},
    "position_embedding_type is 'relative_key'": PUBLISHED["bert-base"]
    | {"position_embedding_type": "relative_key"},
    "scale_attn_by_inverse_layer_idx is True": PUBLISHED["gpt2"]
    | {"scale_attn_by_inverse_layer_idx": True},
    "layer_types": GEMMA_3 | {"layer_types": ["full_attention"]},
    "hidden_activation is 'mish'": GEMMA_2 | {"hidden_activation": "mish"},
    "quantization_config": DEEPSEEK | {"quantization_config": {"quant_method": "fp8"}},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_not_supported_is_named(words):
    with pytest.raises(UsageError, match=words):
        parsed(REFUSED[words])
