"""Limits -> gates: each limit that the recipe sets becomes one comparison with a number; NaN passes none."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..core.manifest import ErrorRecord, GateRecord
from .limits import Limits
from .spread import Spread, error_ratio

Relation = Literal["<=", ">="]


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that was measured of one runner; None where it cannot be.

    layers: None for a runner that shows no inner values, empty when the graph names none of them.
    """

    findings: int
    spreads: dict[str, tuple[Spread, Spread]]  # output -> pooled spread and floor
    errors: Sequence[ErrorRecord]
    layers: dict[str, tuple[float, float]] | None = None  # layer -> relative error and floor
    perplexity: float | None = None
    reference_perplexity: float | None = None
    kl_divergence: float | None = None
    token_agreement: float | None = None
    overflows: int | None = None


def gate(name: str, value: float, relation: Relation, limit: float) -> GateRecord:
    """One gate. A value that is NaN or infinite never passes."""
    holds = value <= limit if relation == "<=" else value >= limit
    return GateRecord(
        name=name,
        value=value,
        relation=relation,
        limit=limit,
        passed=bool(holds and math.isfinite(value)),
    )


def judge_gates(measured: Measured, limits: Limits) -> tuple[GateRecord, ...]:
    """The gates of one runner: broken rules first (none allowed), then each limit that is set and applies."""
    gates = [gate("broken comparison rules", measured.findings, "<=", 0)]
    if limits.max_error_over_floor is not None:
        for name, (spread, floor) in measured.spreads.items():
            ratio = error_ratio(spread, floor)
            gates.append(
                gate(f"{name}: error over floor", ratio, "<=", limits.max_error_over_floor)
            )
    if limits.max_layer_error_over_floor is not None and measured.layers is not None:
        layer, ratio = _worst_layer(measured.layers)
        label = f"{layer}: error over floor (worst layer)"
        gates.append(gate(label, ratio, "<=", limits.max_layer_error_over_floor))
    if limits.min_cosine is not None and measured.errors:
        cosines = [record.cosine for record in measured.errors]
        worst = math.nan if any(map(math.isnan, cosines)) else min(cosines)
        gates.append(gate("cosine", worst, ">=", limits.min_cosine))
    if limits.max_perplexity_ratio is not None and measured.perplexity is not None:
        assert measured.reference_perplexity is not None
        ratio = measured.perplexity / measured.reference_perplexity
        gates.append(gate("perplexity over the truth's", ratio, "<=", limits.max_perplexity_ratio))
    for label, value, relation, limit in (
        ("KL divergence", measured.kl_divergence, "<=", limits.max_kl_divergence),
        ("greedy token agreement", measured.token_agreement, ">=", limits.min_token_agreement),
        ("values that overflow", measured.overflows, "<=", limits.max_overflows),
    ):
        if limit is not None and value is not None:
            gates.append(gate(label, value, "<=" if relation == "<=" else ">=", limit))
    return tuple(gates)


def _worst_layer(layers: dict[str, tuple[float, float]]) -> tuple[str, float]:
    """The layer with the largest error over its floor; one without a ratio (NaN) comes first."""
    if not layers:
        return "no layer found", math.nan
    ratios = {}
    for name, (error, floor) in layers.items():
        exact = 0.0 if error == 0 else math.inf
        ratios[name] = error / floor if floor != 0 else exact
    worst = max(ratios, key=lambda name: math.inf if math.isnan(ratios[name]) else ratios[name])
    return worst, ratios[worst]
