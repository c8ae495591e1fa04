"""The shipped text and the windows cut from it."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from blockforge.core.errors import UsageError
from blockforge.export.calibration.feeds import calibration_text, token_feeds
from blockforge.validate.inputs import shipped_text


def words_of(text):
    return [w.strip(".,;:!?\"'()").lower() for w in text.split()]


@pytest.fixture(scope="module")
def tokenizer():
    """One token a word, over the shipped text's own vocabulary; <s> starts a text."""
    vocabulary = {"<s>": 0, "<unk>": 1}
    for word in calibration_text().split():
        vocabulary.setdefault(word, len(vocabulary))
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def with_start(tokenizer):
    made = Tokenizer.from_str(tokenizer.to_str())
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    return made


def test_the_text_is_no_part_of_the_one_that_judges():
    ours, theirs = words_of(calibration_text()), words_of(shipped_text())
    assert 1400 < len(ours) < 1900
    runs = {tuple(theirs[i : i + 6]) for i in range(len(theirs) - 5)}
    assert not [ours[i : i + 6] for i in range(len(ours) - 5) if tuple(ours[i : i + 6]) in runs]


def test_windows_are_the_text_in_order(tokenizer):
    feeds = token_feeds(tokenizer, length=100)
    ids = torch.cat([feed["input_ids"][0] for feed in feeds])
    assert ids.tolist() == tokenizer.encode(calibration_text()).ids
    assert {feed["input_ids"].shape for feed in feeds[:-1]} == {(1, 100)}
    assert feeds[0]["input_ids"].dtype == torch.int64


def test_every_window_starts_as_the_tokenizer_starts_a_text(tokenizer):
    feeds = token_feeds(with_start(tokenizer), length=100, name="ids")
    assert all(feed["ids"][0, 0] == 0 and feed["ids"].shape[1] <= 100 for feed in feeds)
    rest = [i for feed in feeds for i in feed["ids"][0, 1:].tolist()]
    assert rest == tokenizer.encode(calibration_text()).ids


def test_count_and_text(tokenizer):
    (feed,) = token_feeds(tokenizer, length=3, count=1, text="The baker on Mill Lane")
    assert feed["input_ids"].tolist() == [tokenizer.encode("The baker on").ids]


@pytest.mark.parametrize("wrong", [{"length": 0}, {"count": 0}, {"text": ""}, {"vocab_size": 5}])
def test_what_cannot_be_fed_is_refused(tokenizer, wrong):
    with pytest.raises(UsageError):
        token_feeds(tokenizer, **wrong)
