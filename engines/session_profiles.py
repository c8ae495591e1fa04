"""Which of an engine's optimisation profiles serves given sizes.

Of the profiles whose ranges hold every input, the one with the smallest maximum: fewest elements over all inputs at max,
since a profile is tuned for sizes near its own. Of equals, the first.
"""

import math
from collections.abc import Mapping, Sequence

from ..core.errors import UsageError
from ..core.manifest import TensorRecord
from ..core.shapes import Profile, Shape, format_shapes


def pick_profile(
    shapes: Mapping[str, Shape], profiles: Sequence[Profile], inputs: Sequence[TensorRecord]
) -> int:
    """The index of the profile to run `shapes` with; 0 where there are no profiles.

    Raises UsageError where none fits: for one profile it names input and axis, for several it lists them all, each with
    the axis that it fails on.
    """
    misfits: list[tuple[str, str]] = []
    fitting: list[tuple[int, int]] = []
    for index, profile in enumerate(profiles):
        misfit = _misfit(shapes, profile, inputs)
        if misfit is None:
            fitting.append((_volume(profile), index))
        else:
            misfits.append(misfit)
    if fitting:
        return min(fitting)[1]
    if not profiles:
        return 0
    if len(profiles) == 1:
        name, found = misfits[0]
        raise UsageError(
            f"input {name!r}",
            found=found,
            fix="Feed a size inside, or build with a wider profile",
        )
    listed = "; ".join(
        f"profile {index} ({_text(profile)}): {name}, {found}"
        for index, (profile, (name, found)) in enumerate(zip(profiles, misfits, strict=True))
    )
    raise UsageError(
        f"run with {format_shapes(shapes)}",
        found=f"none of the {len(profiles)} profiles holds these sizes: {listed}",
        fix="Feed sizes inside one of them, or build with a wider profile",
    )


def _misfit(
    shapes: Mapping[str, Shape], profile: Profile, inputs: Sequence[TensorRecord]
) -> tuple[str, str] | None:
    """(input, what of it lies outside) for the first that does; None where the profile fits."""
    for record in inputs:
        allowed = profile.get(record.name)
        if allowed is None:
            continue
        sizes = zip(allowed.min, shapes[record.name], allowed.max, strict=True)
        for axis, (low, size, high) in enumerate(sizes):
            if not low <= size <= high:
                where = f"axis {axis} ({record.dims[axis]})"
                return record.name, f"{where} has {size}, outside the profile's {low}..{high}"
    return None


def _volume(profile: Profile) -> int:
    return sum(math.prod(sizes.max) for sizes in profile.values())


def _text(profile: Profile) -> str:
    low = format_shapes({name: sizes.min for name, sizes in profile.items()})
    high = format_shapes({name: sizes.max for name, sizes in profile.items()})
    return f"{low} to {high}"
