"""The SentencePiece vocabulary of a GGUF file (tokenizer.ggml.model "llama": Gemma, Llama 1 and 2) -> tokenizers.Tokenizer.

    text -> spaces become U+2581 -> user-defined pieces are cut out -> neighbours merge, the best-scored result first

The file states a score for each piece and no merges: every way to split a piece in two pieces is one, ranked by the score
of the piece. Bytes that no piece spells become byte pieces <0x0A>.
"""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from ..core.errors import ArtefactError, UsageError
from .fields import Fields

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6  # GGUF token types
_SPACE = "\u2581"


def sentencepiece_from_gguf(fields: Fields) -> Tokenizer:
    """Build the tokenizer; ArtefactError when the vocabulary is damaged."""
    tokens = [str(token) for token in fields.array("tokenizer.ggml.tokens")]
    scores = fields.array("tokenizer.ggml.scores")
    kinds = fields.array("tokenizer.ggml.token_type")
    if not len(tokens) == len(scores) == len(kinds):
        raise ArtefactError(
            fields.source,
            found=f"{len(tokens)} tokens, {len(scores)} scores and {len(kinds)} token types",
        )
    unknown = next((t for t, kind in zip(tokens, kinds, strict=True) if kind == _UNKNOWN), None)
    if unknown is None:
        at = fields.whole("tokenizer.ggml.unknown_token_id", 0)
        unknown = tokens[at] if 0 <= at < len(tokens) else None
    try:
        vocabulary = {token: index for index, token in enumerate(tokens)}
        model = models.BPE(
            vocab=vocabulary,
            merges=_merges(tokens, scores, kinds, vocabulary),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    except UsageError:
        raise
    except Exception as error:  # the library raises Exception itself
        raise ArtefactError(fields.source, found=f"a damaged tokenizer ({error})") from None
    tokenizer = Tokenizer(model)
    replace = normalizers.Replace(" ", _SPACE)
    prefixed = fields.flag("tokenizer.ggml.add_space_prefix", True)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if prefixed else replace
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        + ([decoders.Strip(" ", 1, 0)] if prefixed else [])
    )
    _add_whole_tokens(tokenizer, tokens, kinds)
    return tokenizer


def _merges(
    tokens: list[str], scores: list[float], kinds: list[int], vocabulary: dict[str, int]
) -> list[tuple[str, str]]:
    """Every pair of pieces that is a piece together, the best-scored piece first, among equals the lowest id."""
    pieces = [
        (-score, index)
        for index, (score, kind) in enumerate(zip(scores, kinds, strict=True))
        if kind not in (_UNKNOWN, _CONTROL, _UNUSED, _BYTE)
    ]
    merges = []
    for _, index in sorted(pieces):
        token = tokens[index]
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((left, right))
    return merges


def _add_whole_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    """Tokens that are never cut or merged; those spelled with the space sign are found after spaces became it."""
    special, plain = [], []
    for token, kind in zip(tokens, kinds, strict=True):
        if kind == _CONTROL:
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == _USER_DEFINED:
            plain.append(AddedToken(token, normalized=_SPACE in token))
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)
