"""SentencePiece vocabularies of GGUF files: pieces small enough to merge by hand, and bytes that come back whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockforge.core.errors import ArtefactError, UsageError
from blockforge.model.fields import Fields
from blockforge.model.tokenizer import tokenizer_from_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
PIECES = {
    "<unk>": (0.0, UNKNOWN),
    "<bos>": (0.0, CONTROL),
    "<turn>": (0.0, USER_DEFINED),
    **{f"<0x{i:02X}>": (0.0, BYTE) for i in range(256)},
    "a": (-10.0, NORMAL),
    "b": (-11.0, NORMAL),
    "c": (-12.0, NORMAL),
    "▁": (-13.0, NORMAL),
    "bc": (-2.0, NORMAL),
    "ab": (-1.0, NORMAL),
    "▁a": (-3.0, NORMAL),
    "abc": (-4.0, NORMAL),
}


def fields(**changes) -> Fields:
    pairs = {
        "model": "llama",
        "tokens": list(PIECES),
        "scores": [score for score, _ in PIECES.values()],
        "token_type": [kind for _, kind in PIECES.values()],
        "bos_token_id": 1,
        "unknown_token_id": 0,
        "add_space_prefix": False,
    } | changes
    named = {f"tokenizer.ggml.{k}": v for k, v in pairs.items() if v is not None}
    return Fields("file.gguf", named)


def pieces(text: str, **changes) -> list[str]:
    return tokenizer_from_gguf(fields(**changes)).encode(text).tokens


def test_the_best_scored_piece_is_merged_first():
    """Of ab and bc, ab; then ab and c, as that is a piece too."""
    assert pieces("abc") == ["<bos>", "abc"]
    assert pieces("bcab") == ["<bos>", "bc", "ab"]
    scores = [-5.0 if piece == "ab" else score for piece, (score, _) in PIECES.items()]
    assert pieces("abcb", scores=scores) == ["<bos>", "abc", "b"]  # a and bc now, before ab


def test_spaces_become_a_sign_and_may_be_put_in_front():
    assert pieces("b a") == ["<bos>", "b", "▁a"]
    assert pieces("a", add_space_prefix=True) == ["<bos>", "▁a"]
    assert pieces("a") == ["<bos>", "a"]


def test_no_start_where_the_file_says_so():
    assert pieces("a", add_bos_token=False) == ["a"]


def test_user_defined_pieces_are_never_cut():
    assert pieces("a<turn>b") == ["<bos>", "a", "<turn>", "b"]


@pytest.mark.parametrize("prefix", [True, False])
@given(text=st.text())
def test_every_text_comes_back(prefix, text):
    tokenizer = tokenizer_from_gguf(fields(add_space_prefix=prefix))
    back = tokenizer.decode(tokenizer.encode(text).ids)
    spelled = text.replace("▁", " ")  # the sign itself is a space to SentencePiece
    assert back in (spelled, spelled.replace("<bos>", ""))


WRONG = {
    "no scores": ({"scores": None}, UsageError, "no tokenizer.ggml.scores"),
    "too few scores": ({"scores": [0.0]}, ArtefactError, "267 tokens, 1 scores"),
    "start": ({"bos_token_id": 10**6}, ArtefactError, "bos_token_id is 1000000"),
    "scores of words": ({"scores": ["a"] * len(PIECES)}, ArtefactError, "damaged tokenizer"),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_metadata_is_one_clear_error(fault):
    changes, kind, words = WRONG[fault]
    with pytest.raises(kind, match=words):
        tokenizer_from_gguf(fields(**changes))
