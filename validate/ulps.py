"""Single elements of one output, added up case by case: a histogram of their errors in ulps, and the worst of them.

    ulps = |actual - truth| / (distance between numbers of the dtype around the truth)

Walked in chunks, so memory stays small beside the tensors.
"""

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import torch

from ..core.dtypes import DType
from ..core.evidence import ElementRecord, ElementsRecord
from .measures import ulp_histogram, ulp_of
from .spread import CHUNK

WORST = 8  # elements that are listed


class ElementTally:
    """One output's elements; dtype: whose ulps count. Counts nothing that is no number on one of the two sides."""

    def __init__(self, dtype: DType, *, worst: int = WORST) -> None:
        self._dtype, self._keep = dtype, worst
        self._ulps: Counter[str] = Counter()
        self._worst: list[ElementRecord] = []

    @property
    def ulps(self) -> dict[str, int]:
        """Upper edge -> elements; empty where nothing was counted."""
        return dict(self._ulps)

    def add(self, case: str, truth: torch.Tensor, actual: torch.Tensor) -> None:
        """Count one case; equal shapes, floats."""
        for start, t, a in _chunks(truth, actual):
            finite = np.isfinite(t) & np.isfinite(a)
            errors = np.full(len(t), np.inf)
            np.abs(np.subtract(a, t, out=errors, where=finite), out=errors)
            errors[(t == a) & ~finite] = 0.0  # a declared infinity
            normal = finite & ((np.abs(t) >= self._smallest) | (t == 0))
            units = errors / ulp_of(np.where(finite, t, 1.0), self._dtype.torch)
            for edge, count in ulp_histogram(units[normal]).items():
                self._ulps[edge] += count
            self._note_worst(
                case, truth.shape, start, (t, a, errors, np.where(normal, units, np.nan))
            )

    def record(self, output: str, floor_ulps: dict[str, int]) -> ElementsRecord:
        """What the manifest keeps."""
        return ElementsRecord(
            output=output,
            dtype=self._dtype.value,
            ulps=self.ulps,
            floor_ulps=floor_ulps,
            worst=tuple(self._worst),
        )

    @property
    def _smallest(self) -> float:
        return float(torch.finfo(self._dtype.torch).smallest_normal)

    def _note_worst(
        self, case: str, shape: torch.Size, start: int, numbers: tuple[np.ndarray, ...]
    ) -> None:
        """Keep the largest errors so far; of equal ones the first."""
        if not self._keep:
            return
        t, a, errors, units = numbers
        least = self._worst[-1].error if len(self._worst) == self._keep else 0.0
        rivals = np.flatnonzero(errors > least)
        if len(rivals) > self._keep:
            order = np.argsort(-errors[rivals], kind="stable")
            rivals = rivals[order[: self._keep]]
        for at in rivals:
            index = np.unravel_index(start + int(at), tuple(shape))
            ulps = float(units[at])
            self._worst.append(
                ElementRecord(
                    case=case,
                    index=tuple(int(i) for i in index),
                    actual=float(a[at]),
                    expected=float(t[at]),
                    error=float(errors[at]),
                    ulps=None if math.isnan(ulps) else ulps,
                )
            )
        if len(rivals):
            self._worst.sort(key=lambda element: -element.error)
            del self._worst[self._keep :]


def _chunks(
    truth: torch.Tensor, actual: torch.Tensor
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Both as float64, CHUNK elements at a time, with the number of the first."""
    flat_t, flat_a = truth.reshape(-1), actual.reshape(-1)
    for start in range(0, flat_t.numel(), CHUNK):
        span = slice(start, start + CHUNK)
        yield start, flat_t[span].double().numpy(), flat_a[span].double().numpy()
