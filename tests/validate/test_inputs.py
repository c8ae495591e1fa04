"""Inputs: in range, exact in every 16-bit type, the same in every run, at sizes the profile allows."""

import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from blockforge.core.errors import UsageError
from blockforge.core.manifest import TensorRecord
from blockforge.core.shapes import ShapeRange
from blockforge.validate.inputs import (
    InputPlan,
    axis_ranges,
    build_cases,
    seeded_inputs,
    shipped_text,
    text_tokens,
)

IDS = (TensorRecord(name="input_ids", dtype="int64", dims=("batch", "sequence")),)
HIDDEN = (TensorRecord(name="hidden_states", dtype="fp64", dims=("batch", "sequence", 48)),)


def profile(name, low, opt, high):
    return {name: ShapeRange(low, opt, high)}


def test_token_ids_cover_the_vocabulary_and_stay_inside():
    ids = seeded_inputs(IDS, {"batch": 40, "sequence": 50}, vocab_size=7, seed=0)["input_ids"]
    assert ids.dtype == torch.int64 and ids.shape == (40, 50)
    assert sorted(set(ids.reshape(-1).tolist())) == list(range(7))


def test_hidden_states_are_normal_and_exact_in_16_bits():
    sizes = {"batch": 4, "sequence": 200}
    hidden = seeded_inputs(HIDDEN, sizes, vocab_size=7, seed=0)["hidden_states"]
    assert hidden.dtype == torch.float64
    for narrow in (torch.float16, torch.bfloat16, torch.float32):
        assert torch.equal(hidden.to(narrow).double(), hidden)
    # 38,400 numbers: the mean is within 4/sqrt(n) = 0.02 of 0, the deviation within 0.02 of 1
    assert abs(hidden.mean()) < 0.02 and abs(hidden.std() - 1) < 0.02


def test_the_rarest_draw_is_exact_too(monkeypatch):
    monkeypatch.setattr(torch, "randn", lambda shape, **_: torch.full(shape, -9.72).double())
    hidden = seeded_inputs(HIDDEN, {"batch": 1, "sequence": 1}, vocab_size=7, seed=0)[
        "hidden_states"
    ]
    assert torch.equal(hidden.to(torch.bfloat16).double(), hidden)


def test_the_seed_decides():
    def draw(seed, sequence=8):
        sizes = {"batch": 1, "sequence": sequence}
        return seeded_inputs(HIDDEN, sizes, vocab_size=7, seed=seed)["hidden_states"]

    assert torch.equal(draw(1), draw(1))
    assert not torch.equal(draw(1), draw(2))
    assert not torch.equal(draw(1)[0, :4], draw(1, sequence=4)[0])
    code = (
        "from blockforge.core.manifest import TensorRecord\n"
        "from blockforge.validate.inputs import seeded_inputs\n"
        "record = TensorRecord(name='hidden_states', dtype='fp64', dims=('batch', 'sequence', 48))\n"
        "sizes = {'batch': 1, 'sequence': 8}\n"
        "print(seeded_inputs([record], sizes, vocab_size=7, seed=1)['hidden_states'].sum().item())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == draw(1).sum().item()


def test_inputs_that_cannot_be_made():
    with pytest.raises(UsageError, match="no size for axis sequence"):
        seeded_inputs(IDS, {"batch": 1}, vocab_size=7, seed=0)
    flags = [TensorRecord(name="flags", dtype="bool", dims=(2,))]
    with pytest.raises(UsageError, match="dtype bool"):
        seeded_inputs(flags, {}, vocab_size=7, seed=0)


def test_a_block_is_judged_at_opt_odd_and_smallest_sizes():
    shapes = profile("hidden_states", (1, 1, 48), (1, 128, 48), (8, 2048, 48))
    assert axis_ranges(HIDDEN, shapes) == {"batch": (1, 1, 8), "sequence": (1, 128, 2048)}
    cases = build_cases(HIDDEN, shapes, InputPlan(), vocab_size=7)
    assert {c.name: tuple(c.feeds["hidden_states"].shape) for c in cases} == {
        "seeded opt": (1, 128, 48),
        "seeded odd": (2, 17, 48),
        "seeded smallest": (1, 1, 48),
    }
    fixed = profile("hidden_states", (1, 8, 48), (1, 8, 48), (1, 8, 48))
    assert len(build_cases(HIDDEN, fixed, InputPlan(), vocab_size=7)) == 1  # equal sizes once


def test_text_windows_use_every_token_they_can():
    shapes = profile("input_ids", (1, 1), (1, 32), (4, 64))
    tokens = torch.arange(100)

    def windows(tokens, plan, shapes=shapes):
        cases = build_cases(IDS, shapes, plan, vocab_size=100, tokens=tokens)
        return [c.feeds["input_ids"] for c in cases if c.text], [c.name for c in cases]

    ids, names = windows(tokens, InputPlan(window=64))
    assert [tuple(i.shape) for i in ids] == [(1, 50), (1, 50)]
    assert torch.cat(ids, dim=1).reshape(-1).tolist() == list(range(100))
    assert names == ["text tokens 0-49", "text tokens 50-99", "seeded odd", "seeded smallest"]
    ids, _ = windows(tokens, InputPlan(window=512))  # the profile ends at 64
    assert [tuple(i.shape) for i in ids] == [(1, 50), (1, 50)]
    pairs = profile("input_ids", (2, 1), (2, 32), (4, 64))
    ids, _ = windows(tokens, InputPlan(window=64), pairs)
    assert [tuple(i.shape) for i in ids] == [(2, 50)]
    long = profile("input_ids", (1, 60), (1, 60), (4, 64))
    ids, _ = windows(tokens, InputPlan(), long)  # two windows of 50 would be too short
    assert [tuple(i.shape) for i in ids] == [(1, 64)]
    assert windows(tokens[:59], InputPlan(), long)[0] == []
    assert windows(torch.arange(1), InputPlan())[0] == []  # one token predicts nothing
    assert "seeded opt" in windows(torch.arange(1), InputPlan())[1]


def test_a_plan_that_predicts_nothing():
    with pytest.raises(UsageError, match="windows of 1"):
        InputPlan(window=1)


def test_the_shipped_text_is_long_plain_and_does_not_repeat():
    words = shipped_text().split()
    assert len(words) > 1500
    assert shipped_text().isascii()
    eights = [tuple(words[i : i + 8]) for i in range(len(words) - 8)]
    assert len(set(eights)) == len(eights)


def test_tokens_belong_to_the_model():
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 9}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    ids = text_tokens(tokenizer, "a b a a", count=3, vocab_size=10)
    assert ids.tolist() == [0, 9, 0] and ids.dtype == torch.int64
    with pytest.raises(UsageError, match="id 9"):
        text_tokens(tokenizer, "a b a a", count=3, vocab_size=9)


def test_whole_numbers_follow_their_record():
    """A mask with a token in every row, types below their number, ids below the vocabulary."""
    axes = ("batch", "sequence")
    records = [
        TensorRecord(name="attention_mask", dtype="int64", dims=axes, below=2),
        TensorRecord(name="token_type_ids", dtype="int64", dims=axes, below=3),
        TensorRecord(name="input_ids", dtype="int64", dims=axes),
    ]
    feeds = seeded_inputs(records, {"batch": 50, "sequence": 9}, vocab_size=1000, seed=0)
    mask = feeds["attention_mask"]
    assert (mask[:, 0] == 1).all()
    assert (mask.diff(dim=1) <= 0).all()
    assert len(set(mask.sum(1).tolist())) > 1
    assert set(feeds["token_type_ids"].flatten().tolist()) == {0, 1, 2}
    assert feeds["input_ids"].max() > 3
