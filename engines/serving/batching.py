"""How many requests one run may join: the first axis of every input and output, where it is the batch.

Rows of the axis called `batch` do not look at each other. No other axis is joined along: positions of one sequence do.
Several profiles may hold different batches at different inner sizes, those of all other axes:

    batch 1..4, sequence 1..2048 and batch 1..64, sequence 1 -> 64 rows of one token, 4 of more
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ...core.errors import UsageError
from ...core.manifest import TensorRecord
from ...core.shapes import Profile, Shape

BATCH = "batch"  # the name that the exporter gives the axis
Box = Mapping[str, tuple[Shape, Shape]]  # input -> least and largest sizes without the batch


@dataclass(frozen=True, slots=True)
class Batching:
    """Rows of one run: `limit` at most (0: requests are not joined, and `reason` says why), `usual` as tuned for.

    joined: rows that may be joined whatever the inner sizes are, `limit` unless profiles differ; room_for says it for given
    sizes. usual: one size for each profile, the first one's first.
    """

    limit: int
    usual: tuple[int, ...] = (1,)
    joined: int = 0
    reason: str = ""
    inputs: tuple[TensorRecord, ...] = ()
    profiles: tuple[Profile, ...] = ()

    def room_for(self, shapes: Mapping[str, Shape]) -> int:
        """Rows up to which requests with the inner sizes of `shapes` (with their batch) may be joined; 0 for none."""
        if not self.profiles:
            return self.limit
        box = {r.name: (shapes[r.name][1:],) * 2 for r in self.inputs}
        return min(self.limit, _reach(box, self.profiles))


def batching_of(
    inputs: Sequence[TensorRecord],
    outputs: Sequence[TensorRecord],
    profiles: Sequence[Profile],
    most: int | None = None,
) -> Batching:
    """What the signature and the profiles allow; `most` caps it.

    Raises UsageError for a `most` below 1 or beyond every profile.
    """
    if most is not None and most < 1:
        raise UsageError("largest batch", found=str(most), fix="Give 1 or more")
    for record in (*inputs, *outputs):
        if not record.dims or record.dims[0] != BATCH or BATCH in record.dims[1:]:
            axes = ", ".join(map(str, record.dims)) or "none"
            return Batching(
                0, reason=f"{record.name} is not batched on axis 0 (its axes are {axes})"
            )
    if not profiles:
        if most is None:
            return Batching(0, reason="no profile says how many rows fit")
        return Batching(most, (most,), most)
    name = inputs[0].name
    several = len(profiles) if len(profiles) > 1 else 0
    low = min(profile[name].min[0] for profile in profiles)
    if low > 1:
        which = f"the lowest of {several} profiles" if several else "the profile"
        return Batching(0, reason=f"{which} starts at a batch of {low}")
    high = max(profile[name].max[0] for profile in profiles)
    if most is not None and most > high:
        which = f"the widest of {several} profiles" if several else "the profile"
        raise UsageError(
            f"largest batch of {most}",
            found=f"{which} ends at {high}",
            fix=f"Give at most {high}, or build with a wider profile",
        )
    limit = high if most is None else most
    everywhere = min(_reach(_inner(profile), profiles) for profile in profiles)
    usual = dict.fromkeys(min(profile[name].opt[0], limit) for profile in profiles)
    return Batching(limit, tuple(usual), min(limit, everywhere), "", tuple(inputs), tuple(profiles))


def _inner(profile: Profile) -> Box:
    return {name: (sizes.min[1:], sizes.max[1:]) for name, sizes in profile.items()}


def _reach(box: Box, profiles: Sequence[Profile]) -> int:
    """The largest n for which profiles that hold all inner sizes in `box` hold every batch from 1 to n."""
    ranges = sorted(
        next((sizes.min[0], sizes.max[0]) for sizes in profile.values())
        for profile in profiles
        if _holds(profile, box)
    )
    reach = 0
    for low, high in ranges:
        if low > reach + 1:
            break
        reach = max(reach, high)
    return reach


def _holds(profile: Profile, box: Box) -> bool:
    return all(
        least <= low and high <= largest
        for name, (lows, highs) in box.items()
        for least, low, high, largest in zip(
            profile[name].min[1:], lows, highs, profile[name].max[1:], strict=True
        )
    )
