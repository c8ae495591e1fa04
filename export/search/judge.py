"""What a budget asks of the quantised graph's outputs on the trial.

measure      at most the limit                                                                     linears ranked by
kl           KL divergence of next tokens, in nats (measures.py)                                   itself
error        relative error of the outputs (measures.py)                                           itself
perplexity   perplexity over the unquantised graph's: exp(mean of log p_unquantised - log p)       kl
floor        || outputs - exact || / || unquantised outputs - exact ||, over all outputs           error

p: of the trial's own next token. exact: the outputs of the unquantised graph in float64, where nothing is rounded but the
weights that it stores; so the floor is the error that its 16-bit arithmetic makes by itself.

One rounded linear moves perplexity and the error over the floor either way, so neither says what a linear is worth.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from ...core.errors import UsageError
from ...graph.evaluator import TypedEvaluator
from .measures import ROWS, Measure, Outputs, distance, logits_name
from .rounded import Feeds, Switchboard

BudgetMeasure = Literal["kl", "error", "perplexity", "floor"]
LABELS: dict[BudgetMeasure, str] = {
    "kl": "KL divergence",
    "error": "relative error",
    "perplexity": "perplexity ratio",
    "floor": "error over noise floor",
}
RANKED_BY: dict[BudgetMeasure, Measure] = {
    "kl": "kl",
    "error": "error",
    "perplexity": "kl",
    "floor": "error",
}
TOKENS = ("decoder_input_ids", "input_ids")  # the first that a graph has: what its logits follow
BLOCK = 16  # neighbouring tokens go wrong together, so standard errors come from means of so many


@dataclass(frozen=True, slots=True)
class Reading:
    """value: by the budget's measure; ranked: by the one that linears are ranked by.

    standard_error: of a perplexity's ratio, None for another measure.
    """

    value: float
    ranked: float
    standard_error: float | None = None


class Judge:
    """Reads outputs on `trial` by `measure`. reference: the unquantised graph's outputs, one set for each feed.

    Raises UsageError for perplexity where the trial has no token ids or the graph does not give logits
    [batch, sequence, vocabulary] for them, and for floor where the unquantised graph has no finite error.
    """

    def __init__(self, board: Switchboard, trial: Feeds, measure: BudgetMeasure) -> None:
        self.trial, self.measure, self.ranked_by = trial, measure, RANKED_BY[measure]
        self.reference: list[dict[str, torch.Tensor]] = board.outputs(trial, None)
        if measure == "perplexity":
            self._plain = self._log_likelihoods(self.reference)
        elif measure == "floor":
            wide = TypedEvaluator(board.model, exact=True)
            self._exact = [wide.run(feed).outputs for feed in trial]
            self._floor = distance("error", self._exact, self.reference)
            if not 0 < self._floor < float("inf"):
                raise UsageError(
                    f"search by {LABELS[measure]}",
                    found=f"the unquantised graph's error against float64 is {self._floor:g} on the trial",
                    fix="Search by relative error",
                )

    def read(self, outputs: Sequence[Outputs]) -> Reading:
        """What the outputs of a quantised graph on the trial amount to."""
        ranked = distance(self.ranked_by, self.reference, outputs)
        if self.measure == "perplexity":
            return _perplexity_ratio(self._plain - self._log_likelihoods(outputs), ranked)
        if self.measure == "floor":
            return Reading(distance("error", self._exact, outputs) / self._floor, ranked)
        return Reading(ranked, ranked)

    def _log_likelihoods(self, outputs: Sequence[Outputs]) -> torch.Tensor:
        """log p of every next token of the trial, in float64, [tokens]."""
        found = []
        for feed, got in zip(self.trial, outputs, strict=True):
            name = next((n for n in TOKENS if n in feed), None)
            if name is None or feed[name].is_floating_point():
                raise _no_perplexity(
                    f"no token ids ({' or '.join(TOKENS)}) among {', '.join(feed)}"
                )
            ids, logits = feed[name], got[logits_name(got)]
            if ids.ndim != 2 or logits.ndim != 3 or logits.shape[:2] != ids.shape:
                raise _no_perplexity(f"outputs {list(logits.shape)} for {name} {list(ids.shape)}")
            if not 0 <= int(ids.min()) <= int(ids.max()) < logits.shape[2]:
                raise _no_perplexity(
                    f"token ids {int(ids.min())} to {int(ids.max())}, but {logits.shape[2]} logits"
                )
            rows, targets = logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten().long()
            for start in range(0, len(rows), ROWS):
                part, target = rows[start : start + ROWS], targets[start : start + ROWS]
                found.append(-torch.nn.functional.cross_entropy(part.double(), target, reduction="none"))  # fmt: skip
        if sum(map(len, found)) < 2:
            raise _no_perplexity("less than two next tokens in the trial")
        return torch.cat(found)


def _perplexity_ratio(lost: torch.Tensor, ranked: float) -> Reading:
    """From each token's loss of log p; the standard error by means of blocks of neighbours and the delta method."""
    ratio = float(lost.mean().exp())
    size = max(1, min(BLOCK, len(lost) // 4))
    means = lost[: len(lost) // size * size].reshape(-1, size).mean(1)
    return Reading(ratio, ranked, ratio * float(means.std()) / len(means) ** 0.5)


def _no_perplexity(found: str) -> UsageError:
    return UsageError(
        "perplexity of next tokens",
        found=found,
        fix="Search a decoder that gives logits for every token id, or by KL divergence or error",
    )
