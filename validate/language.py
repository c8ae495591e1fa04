"""What a decoder's logits mean for text: perplexity, KL divergence of the next token, greedy agreement.

    perplexity = exp(mean over positions of -log softmax(logits[s])[ids[s + 1]])
    KL         = sum over tokens of p (log p - log q),  p from the truth, q from the candidate, in nats

Shapes: B batch, S sequence, V vocabulary. All sums in float64, a few positions at a time.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from .resample import Interval, mean_interval

ROWS = 32  # positions at a time: 12 MiB per float64 temporary at 49,152 tokens
TOP = 5  # likeliest tokens that top_overlap compares


def next_token_nll(logits_BSV: torch.Tensor, ids_BS: torch.Tensor) -> torch.Tensor:
    """-log probability of each next token, float64 [B, S - 1]; NaN logits give NaN."""
    targets = ids_BS[:, 1:].reshape(-1).long()
    rows = logits_BSV[:, :-1].reshape(-1, logits_BSV.shape[-1])
    parts = []
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS].double()
        chosen = part.gather(1, targets[start : start + ROWS, None]).squeeze(1)
        parts.append(part.logsumexp(dim=1) - chosen)
    return torch.cat(parts).reshape(ids_BS.shape[0], -1)


def perplexity(nll: torch.Tensor) -> float:
    """exp of the mean; infinite where it overflows, NaN for no token or a NaN."""
    return _exp(float(nll.double().mean()))


def _exp(x: float) -> float:
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def kl_divergence(truth: torch.Tensor, candidate: torch.Tensor) -> torch.Tensor:
    """KL(truth || candidate) of softmax over the last axis, float64 [positions]; both [..., V].

    A token that the truth excludes (logit -inf) contributes nothing; one that only the candidate
    excludes makes the divergence infinite.
    """
    parts = []
    for t, c in _rows(truth, candidate):
        log_p, log_q = t.double().log_softmax(dim=1), c.double().log_softmax(dim=1)
        p = log_p.exp()
        kl = (p * (log_p - log_q)).sum(dim=1)
        if not kl.isfinite().all():  # 0 * inf: a token that the truth excludes
            kl = (p * (log_p - log_q)).where((p > 0) | log_p.isnan(), 0.0).sum(dim=1)
        parts.append(kl)
    return torch.cat(parts)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Greedy tokens of two sets of logits, position by position: positions = same + tied + changed.

    same: one token, or exactly equal logits on one side. tied: the truth's logits of the two tokens lie
    within the gap that noise explains. changed: they do not. worst: the changed or tied position where
    the candidate's token lies furthest below the truth's.
    """

    positions: int
    same: int
    tied: int
    changed: int
    worst_margin: float = 0.0
    worst_position: tuple[int, ...] = ()
    first: "Departure | None" = None

    @property
    def share(self) -> float:
        """Share of positions with the same greedy token."""
        return self.same / self.positions


@dataclass(frozen=True, slots=True)
class Departure:
    """One position with another greedy token; margin infinite where a number there is none."""

    position: tuple[int, ...]
    expected: int
    actual: int
    margin: float


def greedy_agreement(truth: torch.Tensor, candidate: torch.Tensor, *, gap: float) -> Agreement:
    """Compare the largest logits of each position; both [..., V].

    A row with a NaN or an infinite maximum has changed; -inf elsewhere is a token that is ruled out.
    """
    margins = []
    for t, c in _rows(truth, candidate):
        mine, theirs = t.argmax(dim=1, keepdim=True), c.argmax(dim=1, keepdim=True)
        margin = (t.gather(1, mine) - t.gather(1, theirs)).double()
        equal = (mine == theirs) | (c.gather(1, mine) == c.gather(1, theirs))
        margin = margin.where(~equal, 0.0)
        # argmax takes a NaN for the largest, so the two maxima tell of every NaN and +inf in the rows
        finite = c.gather(1, theirs).isfinite() & t.gather(1, mine).isfinite()
        margins.append(margin.where(finite, math.inf).squeeze(1))
    flat = torch.cat(margins)
    worst = int(flat.argmax())
    same, changed = int((flat <= 0).sum()), int((flat > gap).sum())
    return Agreement(
        positions=len(flat),
        same=same,
        tied=len(flat) - same - changed,
        changed=changed,
        worst_margin=float(flat[worst]),
        worst_position=_position(worst, truth),
        first=_first(flat, truth, candidate) if same < len(flat) else None,
    )


def _first(flat: torch.Tensor, truth: torch.Tensor, candidate: torch.Tensor) -> Departure:
    """The first position whose margin is not zero. flat: margins of all positions."""
    at = int((~(flat <= 0)).int().argmax())
    position = _position(at, truth)
    mine, theirs = int(truth[position].argmax()), int(candidate[position].argmax())
    return Departure(position, mine, theirs, float(flat[at]))


def _position(at: int, logits: torch.Tensor) -> tuple[int, ...]:
    """The coordinates of position number `at` of logits [..., V]."""
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(at), logits.shape[:-1]))


def _rows(
    truth: torch.Tensor, candidate: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Walk two tensors of equal shape [..., V] as blocks of rows [n, V]."""
    assert truth.shape == candidate.shape, (truth.shape, candidate.shape)
    one = truth.reshape(-1, truth.shape[-1])
    other = candidate.reshape(-1, candidate.shape[-1])
    for start in range(0, len(one), ROWS):
        yield one[start : start + ROWS], other[start : start + ROWS]


def top_overlap(truth: torch.Tensor, candidate: torch.Tensor, *, count: int = TOP) -> float:
    """Share of the truth's `count` likeliest tokens that are among the candidate's, over all positions; [..., V]."""
    count = min(count, truth.shape[-1])
    shared = positions = 0
    for t, c in _rows(truth, candidate):
        mine, theirs = t.topk(count, dim=1).indices, c.topk(count, dim=1).indices
        shared += int((mine[:, :, None] == theirs[:, None, :]).sum())
        positions += len(t)
    return shared / (positions * count)


@dataclass(frozen=True, slots=True)
class LanguageScore:
    """Language measures over several cases.

    perplexity, and its ratio to the truth's, are None where no case is a text. Intervals hold the middle
    95 % of a bootstrap over positions. top: share of the truth's five likeliest tokens among the
    candidate's. first: where greedy tokens part, and in which case; None where they never do.
    """

    perplexity: float | None
    kl_divergence: float
    kl_interval: Interval
    agreement: float
    top: float
    perplexity_ratio: float | None = None
    ratio_interval: Interval | None = None
    first: tuple[str, Departure] | None = None


class LanguageTally:
    """Adds up language measures case by case, so that no two cases' logits are held at once."""

    def __init__(self) -> None:
        self._nll: list[torch.Tensor] = []
        self._rise: list[torch.Tensor] = []  # nll over the truth's
        self._kl: list[torch.Tensor] = []
        self._same = self._positions = 0
        self._top = 0.0
        self._first: tuple[str, Departure] | None = None

    def add(
        self,
        truth: torch.Tensor,
        logits: torch.Tensor,
        ids: torch.Tensor | None,
        *,
        case: str = "",
    ) -> None:
        """Count one case of that name: logits [B, S, V] beside the truth's; ids [B, S] where they are a text."""
        if ids is not None:
            nll = next_token_nll(logits, ids).reshape(-1)
            self._nll.append(nll)
            self._rise.append(nll - next_token_nll(truth, ids).reshape(-1))
        self._kl.append(kl_divergence(truth, logits))
        greedy = greedy_agreement(truth, logits, gap=0.0)
        self._same += greedy.same
        self._positions += greedy.positions
        if self._first is None and greedy.first is not None:
            self._first = case, greedy.first
        self._top += top_overlap(truth, logits) * greedy.positions

    def score(self) -> LanguageScore | None:
        """The measures over everything counted; None when nothing was."""
        if not self._positions:
            return None
        kl = torch.cat(self._kl)
        score = LanguageScore(
            perplexity=None,
            kl_divergence=float(kl.mean()),
            kl_interval=mean_interval(kl),
            agreement=self._same / self._positions,
            top=self._top / self._positions,
            first=self._first,
        )
        if not self._nll:
            return score
        rise = torch.cat(self._rise)
        low, high = mean_interval(rise)
        return replace(
            score,
            perplexity=perplexity(torch.cat(self._nll)),
            perplexity_ratio=perplexity(rise),
            ratio_interval=(_exp(low), _exp(high)),
        )
