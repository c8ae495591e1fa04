"""Every family that transformers has, at a size that it builds at once: random models, and how to call them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from .conftest import precision

SIZES = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
GENERATOR = torch.Generator().manual_seed(1)
IDS = torch.randint(1, 97, (2, 90), generator=GENERATOR)
TARGET = torch.randint(1, 97, (2, 40), generator=GENERATOR)
TYPES = torch.randint(0, 2, (2, 90), generator=GENERATOR)
MASK = (torch.arange(90) < torch.tensor([[90], [55]])).long()


@dataclass(frozen=True)
class Family:
    """A transformers model class with its configuration; inputs in the order of our forward, by their names."""

    model: str
    config: str
    options: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] = field(default_factory=lambda: SIZES)
    inputs: dict[str, torch.Tensor] = field(default_factory=lambda: {"input_ids": IDS})
    outputs: tuple[str, ...] = ("logits",)
    own_norms: Callable[[str], bool] = lambda name: False

    def build(self, dtype: torch.dtype) -> torch.nn.Module:
        """The model with weights that all matter: no bias is zero and no norm is one."""
        torch.manual_seed(0)
        with precision(dtype):
            config = getattr(transformers, self.config)(
                **self.sizes | self.options, attn_implementation="eager"
            )
            config._experts_implementation = "eager"
            model = getattr(transformers, self.model)(config).eval()
        torch.manual_seed(0)  # making the model drew as its types needed
        with torch.no_grad():
            for name, weight in model.named_parameters():
                _randomise(name, weight, 0.0 if self.own_norms(name) else 1.0)
            for name, buffer in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    _randomise(name, buffer, 1.0)
        return model.to(dtype)

    def run(self, model: torch.nn.Module) -> tuple[torch.Tensor, ...]:
        """The outputs that we have too."""
        with precision(model.dtype), torch.no_grad():
            result = model(**self.inputs)
        return tuple(getattr(result, name) for name in self.outputs)


def _randomise(name: str, weight: torch.Tensor, one: float) -> None:
    """Drawn in float32 whatever the weight's type, so that a float64 model has the same numbers."""
    values = torch.empty(weight.shape)
    if weight.ndim == 1 and name.endswith("bias"):
        values.normal_(std=0.2)
    elif weight.ndim == 1:
        values.uniform_(one - 0.5, one + 0.5)
    else:
        wide = weight.shape[0] if "c_" in name else weight.shape[-1]  # Conv1D has [in, out]
        values.normal_(std=1.0 if weight.shape[0] == 32 else wide**-0.5)  # 32: T5's buckets
    weight.copy_(values)


def _gemma_norm(name: str) -> bool:
    return "norm" in name


BERT = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
T5 = {
    "vocab_size": 97,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 112,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "feed_forward_proj": "gated-gelu",
    "relative_attention_max_distance": 50,
    "tie_word_embeddings": False,
    "decoder_start_token_id": 0,
}
DEEPSEEK = {
    "moe_intermediate_size": 24,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 2,
    "routed_scaling_factor": 2.5,
    "kv_lora_rank": 24,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "first_k_dense_replace": 1,
}
BERT_INPUTS = {"input_ids": IDS, "attention_mask": MASK, "token_type_ids": TYPES}
FAMILIES = {
    "llama biases": Family(
        "LlamaForCausalLM", "LlamaConfig", {"attention_bias": True, "mlp_bias": True}
    ),
    "llama yarn": Family("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": YARN}),
    "mistral": Family("MistralForCausalLM", "MistralConfig", {"sliding_window": 20}),
    "mistral without window": Family(
        "MistralForCausalLM", "MistralConfig", {"sliding_window": None}
    ),
    "qwen2": Family("Qwen2ForCausalLM", "Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2 windows yarn": Family(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {
            "use_sliding_window": True,
            "sliding_window": 20,
            "max_window_layers": 2,
            "rope_parameters": YARN,
        },
    ),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 24}),
    "phi3": Family("Phi3ForCausalLM", "Phi3Config", {"sliding_window": 20}),
    "phi3 longrope, short": Family(
        "Phi3ForCausalLM",
        "Phi3Config",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0 + i / 8 for i in range(8)],
                "long_factor": [2.0 + i for i in range(8)],
                "original_max_position_embeddings": 90,
            },
            "original_max_position_embeddings": 90,
        },
    ),
    "phi3 longrope, long": Family(
        "Phi3ForCausalLM",
        "Phi3Config",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0 + i / 8 for i in range(8)],
                "long_factor": [2.0 + i for i in range(8)],
                "original_max_position_embeddings": 89,
            },
            "original_max_position_embeddings": 89,
        },
    ),
    "phi4 partial rotation": Family(
        "Phi3ForCausalLM",
        "Phi3Config",
        {
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
            },
        },
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {
            "head_dim": 24,
            "sliding_window": 20,
            "query_pre_attn_scalar": 30,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
        own_norms=_gemma_norm,
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            "head_dim": 24,
            "sliding_window": 20,
            "query_pre_attn_scalar": 30,
            "num_hidden_layers": 7,
        },
        own_norms=_gemma_norm,
    ),
    "deepseek v3": Family("DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK),
    "deepseek v3 yarn": Family(
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        DEEPSEEK
        | {
            "q_lora_rank": None,
            "norm_topk_prob": False,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
        },
    ),
    "deepseek v3 halves": Family(
        "DeepseekV3ForCausalLM", "DeepseekV3Config", DEEPSEEK | {"rope_interleave": False}
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        sizes={"vocab_size": 97, "n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 128},
    ),
    "bert": Family(
        "BertModel",
        "BertConfig",
        sizes=BERT,
        inputs=BERT_INPUTS,
        outputs=("last_hidden_state", "pooler_output"),
    ),
    "bert masked": Family("BertForMaskedLM", "BertConfig", sizes=BERT, inputs=BERT_INPUTS),
    "t5 encoder": Family(
        "T5EncoderModel",
        "T5Config",
        sizes=T5,
        inputs={"input_ids": IDS, "attention_mask": MASK},
        outputs=("last_hidden_state",),
    ),
    "t5": Family(
        "T5ForConditionalGeneration",
        "T5Config",
        sizes=T5,
        inputs={"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": TARGET},
    ),
}
