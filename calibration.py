"""What a recipe's FP32 graph reads while ranges and scales are taken."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .core.dtypes import DType
from .core.errors import UsageError
from .core.shapes import Profile
from .recipe import Recipe

if TYPE_CHECKING:
    import torch

    from .model.checkpoints import Checkpoint

    Feeds = Sequence[Mapping[str, torch.Tensor]]

SEEDED_FEEDS, SEEDED_TRIALS = 4, 2  # sets of seeded inputs where there is no text


@dataclass(frozen=True, slots=True)
class Calibration:
    """What the FP32 graph reads while its ranges are taken. trial: what a search measures by; source: for the record."""

    feeds: "Feeds"
    trial: "Feeds"
    source: str
    tokens: int


def calibration_feeds(recipe: Recipe, checkpoint: "Checkpoint", profile: Profile) -> Calibration:
    """Windows of the recipe's calibration text; for a block the hidden states that it gives rise to.

    A model without a tokenizer, or with more inputs than these, gets seeded numbers at the profile's opt sizes.
    """
    from .export.calibration.feeds import SHIPPED, token_feeds
    from .model.build import signature
    from .model.hidden_states import block_inputs
    from .validate.inputs import axis_ranges, seeded_inputs

    wanted, config = recipe.calibration, checkpoint.config
    inputs, _ = signature(config, recipe.layer, DType.FP32)
    tokenizer = checkpoint.tokenizer()
    text = read_text(wanted.text)
    if text is not None and (tokenizer is None or len(inputs) != 1):
        raise UsageError(
            f"calibration text {wanted.text}",
            found="the checkpoint has no tokenizer"
            if tokenizer is None
            else "the model takes more than token ids or hidden states",
            fix="Leave it out: seeded inputs are used then",
        )
    if tokenizer is not None and len(inputs) == 1:
        window = min(wanted.window, profile[inputs[0].name].max[1])
        count, more = -(-wanted.tokens // window), -(-_trial_tokens(recipe) // window)
        found = token_feeds(
            tokenizer,
            length=window,
            count=count + more,
            text=text,
            vocab_size=config.vocab_size,
        )
        ids = [feed["input_ids"] for feed in found]
        if more and len(ids) <= count:
            raise UsageError(
                "calibration text",
                found=f"{len(ids)} windows of {window} tokens, and none is left to search by",
                fix=f"Give a longer text, or less than {wanted.tokens} calibration.tokens",
            )
        source = Path(wanted.text).name if wanted.text else SHIPPED
        tokens = sum(part.numel() for part in ids[:count])
        name, parts = inputs[0].name, ids
        if recipe.layer is not None:
            parts = block_inputs(checkpoint, recipe.layer, ids) or []
            source = f"hidden states of {source}"
        if parts:
            feeds = [{name: part} for part in parts]
            return Calibration(feeds[:count], feeds[count:], source, tokens)
    sizes = {axis: opt for axis, (_, opt, _) in axis_ranges(inputs, profile).items()}
    first = 1 + max(wanted.seed, recipe.validate_.seed)  # none that is judged by
    seeds = list(range(first, first + SEEDED_FEEDS + SEEDED_TRIALS))
    drawn = [seeded_inputs(inputs, sizes, vocab_size=config.vocab_size, seed=s) for s in seeds]
    source = f"seeded inputs {seeds[:SEEDED_FEEDS]}"
    return Calibration(drawn[:SEEDED_FEEDS], drawn[SEEDED_FEEDS:], source, 0)


def _trial_tokens(recipe: Recipe) -> int:
    return recipe.quantize.search.tokens if recipe.quantize.search else 0


def read_text(path: str | None) -> str | None:
    """The text in a file of a recipe; UsageError when it is no UTF-8 file."""
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"text {path}", found=str(error), fix="Name a UTF-8 text file") from None
