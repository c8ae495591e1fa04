"""Hugging Face's config.json -> ModelConfig and the dialect of its weights, by the architecture that it names."""

from collections.abc import Callable

from ...core.errors import UsageError
from ..config import ModelConfig
from ..fields import Fields
from .dialect import Dialect
from .hf_early import bert, gpt2, masked_bert, t5, t5_encoder
from .hf_gemma import deepseek_v3, gemma_2, gemma_3
from .hf_llama import llama, mistral, phi3, qwen2, qwen3
from .quirks import (
    HF,
    HF_BERT,
    HF_DEEPSEEK,
    HF_DEEPSEEK_HALVES,
    HF_GEMMA,
    HF_GPT2,
    HF_T5,
    HF_T5_ENCODER,
    for_model,
)

ARCHITECTURES: dict[str, tuple[Callable[[Fields], ModelConfig], Dialect]] = {
    "LlamaForCausalLM": (llama, HF),  # Llama 1 to 3.2, Yi, SmolLM2, TinyLlama
    "MistralForCausalLM": (mistral, HF),
    "Qwen2ForCausalLM": (qwen2, HF),
    "Qwen3ForCausalLM": (qwen3, HF),
    "Phi3ForCausalLM": (phi3, HF),
    "Gemma2ForCausalLM": (gemma_2, HF_GEMMA),
    "Gemma3ForCausalLM": (gemma_3, HF_GEMMA),
    "DeepseekV3ForCausalLM": (deepseek_v3, HF_DEEPSEEK),
    "GPT2LMHeadModel": (gpt2, HF_GPT2),
    "BertModel": (bert, HF_BERT),
    "BertForMaskedLM": (masked_bert, HF_BERT),
    "T5ForConditionalGeneration": (t5, HF_T5),
    "T5EncoderModel": (t5_encoder, HF_T5_ENCODER),
}


def config_from_hf(fields: Fields) -> tuple[ModelConfig, Dialect]:
    """The configuration that a config.json describes, and how its weights are spelled.

    Raises UsageError for an architecture, option or value that is not supported, naming it.
    """
    names = fields.array("architectures", [])
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        found = f"architectures {names}" if names else "no architectures"
        raise UsageError(fields.source, found=found, fix=f"Supported: {known}")
    fields.require("quantization_config", None, absent=None, why="Not supported yet")
    read, dialect = ARCHITECTURES[names[0]]
    config = read(fields)
    if dialect is HF_DEEPSEEK and not fields.flag("rope_interleave", True):
        dialect = HF_DEEPSEEK_HALVES
    return config, for_model(dialect, config)
