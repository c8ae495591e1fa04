"""Tokenizers stored with checkpoints -> tokenizers.Tokenizer.

tokenizer.json of a Hugging Face folder is read as it is. GGUF stores the vocabulary and merges of a
byte-level BPE, and the name of the rule that cuts text into words first; SPLITS holds the rules that the
models' own tokenizer.json files carry. SentencePiece vocabularies: tokenizer_sentencepiece.py.
"""

from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from ..core.errors import ArtefactError, UsageError
from .fields import Fields
from .tokenizer_sentencepiece import sentencepiece_from_gguf

_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types that are never cut or merged
_LLAMA_3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> pre_tokenizers.PreTokenizer:
    """GPT-2's words: contractions, letters, digits, other; a leading space belongs to the word."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    """GPT-2's words, but every digit alone."""
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


def _llama_3() -> pre_tokenizers.PreTokenizer:
    """Llama 3's words: digits in groups of up to three."""
    words = pre_tokenizers.Split(Regex(_LLAMA_3_WORDS), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([words, to_bytes])


SPLITS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _llama_3,
}


def tokenizer_from_json(file: Path) -> Tokenizer:
    """Read a tokenizer.json; ArtefactError when it is damaged."""
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises Exception itself
        raise ArtefactError(str(file), found=f"not a tokenizer ({error})") from None


def tokenizer_from_gguf(fields: Fields) -> Tokenizer | None:
    """Build the tokenizer that GGUF metadata describes; None where it describes none.

    Raises UsageError for a model or split that is not supported, ArtefactError for damaged vocabulary.
    """
    if "tokenizer.ggml.model" not in fields.values:
        return None
    model = fields.text("tokenizer.ggml.model")
    if model not in _MODELS:
        raise _unsupported(fields, "tokenizer.ggml.model", model, list(_MODELS))
    tokenizer = _MODELS[model](fields)
    _add_start(tokenizer, fields, absent=model == "llama")
    return tokenizer


def _byte_level(fields: Fields) -> Tokenizer:
    """A byte-level BPE, whose merges the file lists."""
    split = fields.text("tokenizer.ggml.pre", "gpt-2")
    if split not in SPLITS:
        raise _unsupported(fields, "tokenizer.ggml.pre", split, list(SPLITS))
    tokens = fields.array("tokenizer.ggml.tokens")
    tokenizer = Tokenizer(_bpe(fields, tokens, whole_words=split == "llama-bpe"))
    tokenizer.pre_tokenizer = SPLITS[split]()
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields.array("tokenizer.ggml.token_type", [])
    for token, kind in zip(tokens, kinds, strict=False):
        if kind in (_CONTROL, _USER_DEFINED):
            added = AddedToken(token, special=kind == _CONTROL, normalized=False)
            tokenizer.add_special_tokens([added]) if added.special else tokenizer.add_tokens(
                [added]
            )
    return tokenizer


def _add_start(tokenizer: Tokenizer, fields: Fields, *, absent: bool) -> None:
    """Begin every text with the start token where the file wants it; absent: what its silence means."""
    if not fields.flag("tokenizer.ggml.add_bos_token", absent):
        return
    tokens, start = (
        fields.array("tokenizer.ggml.tokens"),
        fields.whole("tokenizer.ggml.bos_token_id"),
    )
    if not 0 <= start < len(tokens):
        raise ArtefactError(fields.source, found=f"tokenizer.ggml.bos_token_id is {start}")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{tokens[start]} $A", special_tokens=[(tokens[start], start)]
    )


_MODELS: dict[str, Callable[[Fields], Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": sentencepiece_from_gguf,
}


def _bpe(fields: Fields, tokens: list[object], *, whole_words: bool) -> models.BPE:
    """The merges over the vocabulary; whole_words: a word that is a token is not merged."""
    try:
        vocabulary = {str(token): index for index, token in enumerate(tokens)}
        pairs = [str(merge).split(" ") for merge in fields.array("tokenizer.ggml.merges")]
        merges = [(left, right) for left, right in pairs]
        return models.BPE(vocab=vocabulary, merges=merges, ignore_merges=whole_words)
    except UsageError:
        raise
    except Exception as error:  # the library raises Exception itself
        raise ArtefactError(fields.source, found=f"a damaged tokenizer ({error})") from None


def _unsupported(fields: Fields, key: str, value: str, known: list[str]) -> UsageError:
    return UsageError(fields.source, found=f"{key} {value!r}", fix=f"Supported: {', '.join(known)}")
