"""Check what a caller feeds before a runtime sees it: names, element types, sizes, and the profile."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..core.dtypes import dtype_from_name
from ..core.errors import UsageError
from ..core.manifest import TensorRecord
from ..core.shapes import Profile


def check_feeds(
    feeds: Mapping[str, np.ndarray], inputs: Sequence[TensorRecord], profile: Profile | None
) -> dict[str, np.ndarray]:
    """Return `feeds` as contiguous arrays, in the order of `inputs`.

    Raises UsageError naming the input and what is wrong with it; axes that share a name must have one size.
    """
    names = [record.name for record in inputs]
    unknown, missing = set(feeds) - set(names), set(names) - set(feeds)
    if unknown or missing:
        parts = (("unknown input", unknown), ("nothing for", missing))
        raise UsageError(
            "run",
            found="; ".join(f"{what} {', '.join(sorted(n))}" for what, n in parts if n),
            fix=f"The inputs are {', '.join(names)}",
        )
    sizes: dict[str, tuple[str, int]] = {}
    checked = {}
    for record in inputs:
        array = np.asarray(feeds[record.name])
        _check_type(record, array)
        _check_sizes(record, array, sizes)
        if profile is not None and record.name in profile:
            _check_range(record, array, profile)
        checked[record.name] = np.ascontiguousarray(array).reshape(array.shape)
    return checked


def _check_type(record: TensorRecord, array: np.ndarray) -> None:
    expected = dtype_from_name(record.dtype).numpy
    if array.dtype != expected:
        raise UsageError(
            f"input {record.name!r}",
            found=f"{array.dtype} elements",
            fix=f"Give {expected}: nothing is converted without being asked",
        )


def _check_sizes(
    record: TensorRecord, array: np.ndarray, sizes: dict[str, tuple[str, int]]
) -> None:
    asked, wants = f"input {record.name!r}", f"Its axes are {_dims(record)}"
    if array.ndim != len(record.dims):
        raise UsageError(asked, found=f"shape {_text(array.shape)}", fix=wants)
    for axis, (dim, size) in enumerate(zip(record.dims, array.shape, strict=True)):
        if isinstance(dim, int):
            if size != dim:
                raise UsageError(asked, found=f"axis {axis} has {size}, not {dim}", fix=wants)
            continue
        other, known = sizes.setdefault(dim, (record.name, size))
        if size != known:
            raise UsageError(
                asked,
                found=f"axis {axis} ({dim}) has {size}, {other} has {known}",
                fix=f"Every {dim!r} axis has one size",
            )


def _check_range(record: TensorRecord, array: np.ndarray, profile: Profile) -> None:
    allowed = profile[record.name]
    for axis, (low, size, high) in enumerate(
        zip(allowed.min, array.shape, allowed.max, strict=True)
    ):
        if not low <= size <= high:
            raise UsageError(
                f"input {record.name!r}",
                found=f"axis {axis} ({record.dims[axis]}) has {size}, outside the profile's {low}..{high}",
                fix="Feed a size inside, or build with a wider profile",
            )


def _dims(record: TensorRecord) -> str:
    return ", ".join(map(str, record.dims)) or "none (a scalar)"


def _text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"
