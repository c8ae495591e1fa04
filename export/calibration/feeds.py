"""Token feeds to calibrate with, from the shipped text or another one.

text -> tokenizer -> windows of consecutive tokens -> {"input_ids": int64 [1, length]}, ...

The shipped text was written for this purpose: prose, dialogue, letters, recipes, code, tables and sums in English.
It shares no sentence with the text that validate judges by.
"""

from importlib import resources

import torch
from tokenizers import Tokenizer

from ...core.errors import UsageError

SHIPPED = "blockforge miscellany"  # how records name the shipped text
LENGTH = 512  # tokens of a window

Feed = dict[str, torch.Tensor]


def calibration_text() -> str:
    """The English miscellany that comes with the package: about 1,500 words."""
    found = resources.files(__package__) / "texts" / "miscellany.txt"
    return found.read_text(encoding="utf-8")


def token_feeds(
    tokenizer: Tokenizer,
    *,
    length: int = LENGTH,
    count: int | None = None,
    text: str | None = None,
    name: str = "input_ids",
    vocab_size: int | None = None,
) -> list[Feed]:
    """Windows of `length` tokens of `text` (None: the shipped one), at most `count` of them, under the input `name`.

    Every window starts as the tokenizer starts a text (a start token, where it has one); the last one may be
    shorter. Raises UsageError for a text without tokens, and for ids beyond `vocab_size`.
    """
    if length < 1 or (count is not None and count < 1):
        raise UsageError(
            f"{count} windows of {length} tokens", found="less than one", fix="Use 1 or more"
        )
    encoding = tokenizer.encode(calibration_text() if text is None else text)
    plain = tokenizer.encode("", add_special_tokens=True).ids
    start = plain if encoding.ids[: len(plain)] == plain else []
    ids = encoding.ids[len(start) :]
    if not ids:
        raise UsageError("calibration text", found="it has no token", fix="Give a longer text")
    if vocab_size is not None and max(*ids, *start, 0) >= vocab_size:
        raise UsageError(
            "tokens of the calibration text",
            found=f"id {max(*ids, *start)}, but the model has {vocab_size} tokens",
            fix="Use the tokenizer that belongs to the model",
        )
    step = max(1, length - len(start))
    windows = [start + ids[at : at + step] for at in range(0, len(ids), step)]
    return [{name: torch.tensor([window], dtype=torch.int64)} for window in windows[:count]]
