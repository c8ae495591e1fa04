"""transformers as oracle: random small models, in float32 and in a float64 that is float64 throughout."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from transformers import LlamaConfig, LlamaForCausalLM


class Widen(TorchFunctionMode):
    """Turns every float32 that torch code asks for into float64.

    transformers upcasts to float32 inside its norms and rotary angles, also in a float64 model; without
    this the oracle would be wrong from the eighth digit on.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = {k: _wide(v) for k, v in (kwargs or {}).items()}
        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*(_wide(a) for a in args), **kwargs)


def _wide(value):
    return torch.float64 if value is torch.float32 else value


@contextlib.contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """Within: transformers computes everything in `dtype`, float32 or float64."""
    with Widen() if dtype == torch.float64 else contextlib.nullcontext():
        yield


CASES = {
    "gqa tied": {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "mha untied": {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
    "mqa": {"num_attention_heads": 3, "num_key_value_heads": 1, "hidden_size": 48},
    "own head_dim": {
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "hidden_size": 80,
        "head_dim": 24,
    },
    "llama3 scaling": {
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "linear scaling": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
    "large eps": {"num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 0.3},
}


def llama(case: str, dtype: torch.dtype = torch.float32, seed: int = 0) -> LlamaForCausalLM:
    """A random model of CASES whose weights, norms included, differ from their initial values."""
    sizes = {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 3,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(seed)
    with precision(dtype):
        model = LlamaForCausalLM(LlamaConfig(**(sizes | CASES[case]))).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.uniform_(0.5, 1.5)
            else:
                tied = "embed" in name and model.config.tie_word_embeddings
                weight.normal_(std=weight.shape[-1] ** -0.5 if tied or "embed" not in name else 1.0)
    return model.to(dtype)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    """Each of CASES in turn."""
    return request.param


@pytest.fixture
def hf_model():
    """The factory `llama`."""
    return llama


@pytest.fixture
def hf_logits():
    """(model, token ids) -> logits in the model's own precision."""

    def run(model: LlamaForCausalLM, ids_BS: torch.Tensor) -> torch.Tensor:
        with precision(model.dtype), torch.no_grad():
            return model(ids_BS).logits

    return run


@pytest.fixture
def saved(tmp_path: Path):
    """Save a model of CASES as a Hugging Face folder: (case, **save_pretrained's) -> (model, folder)."""

    def save(case: str, **options) -> tuple[LlamaForCausalLM, Path]:
        model = llama(case)
        model.save_pretrained(tmp_path / "hf", **options)
        return model, tmp_path / "hf"

    return save


BLOCK_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
ROOT_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def neighbours(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows of q or k as llama.cpp's converter orders them: rotary pairs side by side within each head."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: LlamaForCausalLM, edit=lambda writer, tensors: None) -> None:
    """Write `model` with the gguf package; edit(writer, tensors: stored name -> (values, type or None)) first."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    tensors = {}
    for name, weight in model.named_parameters():
        values = weight.detach().numpy()
        if ".q_proj." in name:
            values = neighbours(values, config.num_attention_heads)
        elif ".k_proj." in name:
            values = neighbours(values, config.num_key_value_heads)
        if name.startswith("model.layers."):
            _, _, layer, part = name.removesuffix(".weight").split(".", 3)
            tensors[f"blk.{layer}.{BLOCK_NAMES[part]}.weight"] = (values, None)
        else:
            tensors[ROOT_NAMES[name]] = (values, None)
    edit(writer, tensors)
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def written(tmp_path: Path):
    """Write a model of CASES as GGUF: (case, edit=...) -> (model, file)."""

    def write(case: str, **options) -> tuple[LlamaForCausalLM, Path]:
        model = llama(case)
        write_gguf(tmp_path / "model.gguf", model, **options)
        return model, tmp_path / "model.gguf"

    return write
