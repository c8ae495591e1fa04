"""Error over floor on inputs of several seeds: the ratio of all of them together, and how far it depends on the draw.

(spread, floor) of each seed -> sqrt(sum e^2 / sum floor e^2), with a bootstrap interval over the seeds
"""

from collections.abc import Mapping, Sequence

from ..core.evidence import SeedsRecord
from .resample import ratio_interval
from .spread import Spread, error_ratio, pool


def seeds_records(
    spreads: Sequence[Mapping[str, Spread]], floors: Sequence[Mapping[str, Spread]]
) -> tuple[SeedsRecord, ...]:
    """One record for each output that every seed has; none for fewer than two seeds.

    spreads, floors: by seed, output -> spread; equal sizes.
    """
    if len(spreads) < 2:
        return ()
    shared = [name for name in spreads[0] if all(name in by_output for by_output in spreads)]
    records = []
    for name in shared:
        pairs = [(s[name], f[name]) for s, f in zip(spreads, floors, strict=True)]
        records.append(
            SeedsRecord(
                output=name,
                seeds=len(pairs),
                ratio=error_ratio(pool(s for s, _ in pairs), pool(f for _, f in pairs)),
                interval=ratio_interval(
                    [s.square_sum for s, _ in pairs], [f.square_sum for _, f in pairs]
                ),
            )
        )
    return tuple(records)
