"""What each golden case may lose as language, for limits that the recipe sets on a text which may not be among them.

    allowed = the graph's own on the case + (the recipe's limit - the graph's own on the recipe's text) + margin

Golden cases are few positions, mostly of seeded token ids, where a model is less sure than on a text and loses more to
the same rounding: a limit for the text would fail right outputs there. So the bundle's own graph, which the recipe's
limit judged on the text, is run on the golden inputs too. Margin: two standard errors of the graph's own mean over the
case's positions, since other kernels round otherwise. A graph that misses the recipe's limit has none, and misses these.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...core.manifest import VerdictRecord
from ..inputs import Case
from ..language import greedy_agreement, kl_divergence, next_token_nll
from ..limits import Limits
from ..reference import Truth
from .checks import digest

ERRORS = 2.0  # standard errors of the mean over a case's positions
LANGUAGE = ("max_kl_divergence", "min_token_agreement", "max_perplexity_ratio")


def sets_language_limits(limits: Limits) -> bool:
    """Whether the recipe judges next tokens."""
    return any(getattr(limits, name) is not None for name in LANGUAGE)


def language_limits(
    truth: Truth,
    cases: Sequence[Case],
    limits: Limits,
    logits_of: Callable[[Case], torch.Tensor],
    verdict: VerdictRecord | None,
) -> dict[str, dict[str, Any]]:
    """SHA-256 of a case's float64 logits -> the case's name, its text's place among `cases`, what it may lose.

    logits_of: the bundle's graph on a case. verdict: the same graph on the cases that the recipe's limits count; None: on
    `cases`. A limit is None where the recipe sets none or where it says nothing: a perplexity without a text, a share of
    tokens that a single position cannot miss.
    """
    assert truth.vocabulary is not None
    expected = {case.name: truth.results[case.name][truth.vocabulary] for case in cases}
    own = {case.name: _own(expected[case.name], logits_of(case), case) for case in cases}
    known = _measured(verdict, truth) if verdict is not None else _pooled(own.values())
    return {
        digest(expected[case.name].numpy()): {
            "case": case.name,
            "text": number if case.text else None,
            **_allowed(own[case.name], known, limits),
        }
        for number, case in enumerate(cases)
    }


@dataclass(frozen=True, slots=True)
class _Own:
    """Of each position: divergence in nats, whether the greedy token is another, nll over the truth's (of a text)."""

    kl: torch.Tensor
    changed: torch.Tensor
    rise: torch.Tensor


def _own(expected: torch.Tensor, logits: torch.Tensor, case: Case) -> _Own:
    greedy = greedy_agreement(expected, logits, gap=0.0)
    changed = torch.zeros(greedy.positions, dtype=torch.float64)
    changed[greedy.same :] = 1.0  # how many there are, not which
    rise = torch.zeros(0, dtype=torch.float64)
    if case.text:
        (ids,) = case.feeds.values()
        rise = (next_token_nll(logits, ids) - next_token_nll(expected, ids)).reshape(-1)
    return _Own(kl_divergence(expected, logits), changed, rise)


Known = Mapping[str, float | None]


def _measured(verdict: VerdictRecord, truth: Truth) -> Known:
    """What `build` held against the recipe's limits."""
    share, ratio = verdict.token_agreement, None
    if verdict.perplexity is not None and truth.perplexity is not None:
        ratio = math.log(verdict.perplexity / truth.perplexity)
    return {
        "kl": verdict.kl_divergence,
        "changed": None if share is None else 1 - share,
        "rise": ratio,
    }


def _pooled(own: Any) -> Known:
    """The means over the golden cases."""
    parts = list(own)
    found: dict[str, float | None] = {}
    for name in ("kl", "changed", "rise"):
        values = torch.cat([getattr(part, name) for part in parts])
        found[name] = float(values.mean()) if len(values) else None
    return found


def _allowed(own: _Own, known: Known, limits: Limits) -> dict[str, float | None]:
    kl = agreement = ratio = None
    if limits.max_kl_divergence is not None:
        spread = max(_deviation(own.kl), float(own.kl.mean()))  # one position has no deviation
        kl = _limit(own.kl, known["kl"], limits.max_kl_divergence, spread)
    if limits.min_token_agreement is not None:
        loss = 1 - limits.min_token_agreement
        share = max(loss, float(own.changed.mean()))
        one = 1 / len(own.changed)  # shares of few positions come in steps
        found = _limit(
            own.changed, known["changed"], loss, math.sqrt(share * (1 - share)), step=one
        )
        agreement = 1 - found if found < 1 else None
    if limits.max_perplexity_ratio is not None and len(own.rise):
        found = _limit(
            own.rise, known["rise"], math.log(limits.max_perplexity_ratio), _deviation(own.rise)
        )
        ratio = math.exp(found)
    return {"max_kl": kl, "min_agreement": agreement, "max_perplexity_ratio": ratio}


def _limit(
    own: torch.Tensor, known: float | None, limit: float, deviation: float, *, step: float = 0.0
) -> float:
    """`limit` where the graph gives no number of its own."""
    mean = float(own.mean())
    if known is None or not (math.isfinite(mean) and math.isfinite(known)):
        return limit
    left = limit - known
    return mean + left + (ERRORS * deviation / math.sqrt(len(own)) + step if left >= 0 else 0.0)


def _deviation(values: torch.Tensor) -> float:
    return float(values.std(correction=0))
