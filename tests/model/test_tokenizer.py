"""Tokenizers from GGUF metadata: vocabularies small enough to merge by hand, and bytes that come back whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from blockforge.core.errors import ArtefactError, UsageError
from blockforge.model.fields import Fields
from blockforge.model.tokenizer import tokenizer_from_gguf

NORMAL, CONTROL = 1, 3
SPECIAL = ["<|endoftext|>", "<|im_start|>"]
MERGES = ["Ġ t", "h e", "Ġt he", "1 2", "1 23", "2 3"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "Ġt", "he", "Ġthe", "12", "23", "123"]


def fields(**changes) -> Fields:
    pairs = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": TOKENS,
        "merges": MERGES,
        "token_type": [CONTROL] * 2 + [NORMAL] * (len(TOKENS) - 2),
        "bos_token_id": 1,
        "add_bos_token": False,
    } | changes
    named = {f"tokenizer.ggml.{k}": v for k, v in pairs.items() if v is not None}
    return Fields("file.gguf", named)


def tokens(text: str, **changes) -> list[str]:
    return tokenizer_from_gguf(fields(**changes)).encode(text).tokens


def test_merges_are_applied_in_order_and_a_space_belongs_to_the_word():
    assert tokens("the the") == ["t", "he", "Ġthe"]


def test_smollm_cuts_every_digit_and_gpt2_does_not():
    assert tokens("123") == ["1", "2", "3"]
    assert tokens("123", pre="gpt-2") == ["12", "3"]


def test_llama_3_takes_whole_words_before_merging_and_three_digits_at_once():
    assert tokens("123", pre="llama-bpe") == ["123"]
    assert tokens("12312", pre="llama-bpe") == ["123", "12"]


def test_special_tokens_are_never_cut():
    assert tokens("<|im_start|>the") == ["<|im_start|>", "t", "he"]
    plain = tokens("<|im_start|>", token_type=[NORMAL] * len(TOKENS))
    assert len(plain) == len("<|im_start|>")


def test_the_start_token_is_added_where_the_file_asks_for_it():
    assert tokens("the", add_bos_token=True) == ["<|im_start|>", "t", "he"]


def test_ids_are_the_positions_in_the_file():
    tokenizer = tokenizer_from_gguf(fields())
    assert [tokenizer.token_to_id(t) for t in TOKENS] == list(range(len(TOKENS)))
    assert tokenizer.get_vocab_size() == len(TOKENS)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text):
    tokenizer = tokenizer_from_gguf(fields(token_type=[]))
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_no_metadata_is_no_tokenizer():
    assert tokenizer_from_gguf(Fields("file.gguf", {})) is None


WRONG = {
    "model": ({"model": "t5"}, UsageError, "model 't5'.*gpt2"),
    "split": ({"pre": "other"}, UsageError, "pre 'other'.*gpt-2, smollm, llama-bpe"),
    "no tokens": ({"tokens": None}, UsageError, "no tokenizer.ggml.tokens"),
    "merge of three": ({"merges": ["a b c"]}, ArtefactError, "damaged tokenizer"),
    "merge of unknown": ({"merges": ["zz yy"]}, ArtefactError, "damaged tokenizer"),
    "start": (
        {"add_bos_token": True, "bos_token_id": 10**6},
        ArtefactError,
        "bos_token_id is 1000000",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_metadata_is_one_clear_error(fault):
    changes, kind, words = WRONG[fault]
    with pytest.raises(kind, match=words):
        tokenizer_from_gguf(fields(**changes))
