"""How many requests one run may join: the first axis of every input and output, where it is the batch.

Rows of the axis called `batch` do not look at each other. No other axis is joined along: positions of one sequence do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ...core.errors import UsageError
from ...core.manifest import TensorRecord
from ...core.shapes import Profile

BATCH = "batch"  # the name that the exporter gives the axis


@dataclass(frozen=True, slots=True)
class Batching:
    """Rows of one run: `limit` at most (0: requests are not joined, and `reason` says why), `usual` as tuned for."""

    limit: int
    usual: int = 1
    reason: str = ""


def batching_of(
    inputs: Sequence[TensorRecord],
    outputs: Sequence[TensorRecord],
    profile: Profile | None,
    most: int | None = None,
) -> Batching:
    """What the signature and the profile allow; `most` caps it.

    Raises UsageError for a `most` below 1 or beyond the profile.
    """
    if most is not None and most < 1:
        raise UsageError("largest batch", found=str(most), fix="Give 1 or more")
    for record in (*inputs, *outputs):
        if not record.dims or record.dims[0] != BATCH or BATCH in record.dims[1:]:
            axes = ", ".join(map(str, record.dims)) or "none"
            return Batching(
                0, reason=f"{record.name} is not batched on axis 0 (its axes are {axes})"
            )
    if profile is None:
        if most is None:
            return Batching(0, reason="no profile says how many rows fit")
        return Batching(most, most)
    ranges = [
        (profile[r.name].min[0], profile[r.name].opt[0], profile[r.name].max[0]) for r in inputs
    ]
    low, usual, high = ranges[0]
    if low > 1:
        return Batching(0, reason=f"the profile starts at a batch of {low}")
    if most is not None and most > high:
        raise UsageError(
            f"largest batch of {most}",
            found=f"the profile ends at {high}",
            fix=f"Give at most {high}, or build with a wider profile",
        )
    limit = high if most is None else most
    return Batching(limit, min(usual, limit))
