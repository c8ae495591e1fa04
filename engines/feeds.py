"""Check what a caller hands over before a runtime sees it: names, element types, sizes, the profile, and known ranges."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.manifest import TensorRecord
from ..core.shapes import Profile, Shape
from .session_profiles import pick_profile
from .views import Place, View, view_of

Sizes = dict[str, tuple[str, int]]  # axis name -> (the tensor that set it, its size)
HOST = Place("check")


def check_feeds(
    feeds: Mapping[str, Any], inputs: Sequence[TensorRecord], profiles: Sequence[Profile]
) -> dict[str, np.ndarray]:
    """Return `feeds`, all in host memory, as contiguous arrays in the order of `inputs`.

    profiles: one of which must hold all sizes, where there are any. Raises UsageError naming the input and what is wrong
    with it; axes that share a name must have one size.
    """
    check_names(feeds, inputs)
    views = {record.name: view_of(feeds[record.name], record, HOST) for record in inputs}
    shapes = {name: view.shape for name, view in views.items()}
    check_sizes(inputs, shapes)
    pick_profile(shapes, profiles, inputs)
    check_numbers(views, inputs)
    return {name: view.array for name, view in views.items() if view.array is not None}


def check_names(
    given: Collection[str], records: Iterable[TensorRecord], *, asked: str = "run"
) -> None:
    """Raise UsageError unless `given` are exactly the names of `records`."""
    names = [record.name for record in records]
    unknown, missing = set(given) - set(names), set(names) - set(given)
    if unknown or missing:
        parts = (("unknown input", unknown), ("nothing for", missing))
        raise UsageError(
            asked,
            found="; ".join(f"{what} {', '.join(sorted(n))}" for what, n in parts if n),
            fix=f"The inputs are {', '.join(names)}",
        )


def check_sizes(
    records: Iterable[TensorRecord],
    shapes: Mapping[str, Shape],
    sizes: Sizes | None = None,
    *,
    what: str = "input",
) -> Sizes:
    """The size of every named axis, of which each has one; `sizes` are known before.

    Raises UsageError naming the tensor and the axis that does not fit. Tensors without a shape are left out.
    """
    found: Sizes = dict(sizes or {})
    for record in records:
        if record.name in shapes:
            _check_shape(record, shapes[record.name], found, f"{what} {record.name!r}")
    return found


def check_numbers(views: Mapping[str, View], records: Iterable[TensorRecord]) -> None:
    """Raise UsageError for a number outside [0, below) where the record knows `below`, e.g. a token that no vocabulary has.

    Numbers in GPU memory are not looked at.
    """
    for record in records:
        array = views[record.name].array
        if record.below is None or array is None or not array.size:
            continue
        if array.min() >= 0 and array.max() < record.below:
            continue
        at = np.argwhere((array < 0) | (array >= record.below))[0].tolist()
        raise UsageError(
            f"input {record.name!r}",
            found=f"{array[tuple(at)]} at {at}",
            fix=f"Give whole numbers from 0 to {record.below - 1}",
        )


def check_outputs(
    outputs: Mapping[str, View], records: Sequence[TensorRecord], sizes: Sizes
) -> None:
    """Raise UsageError for an output of the caller's whose shape cannot be right; `sizes` are those of the inputs."""
    shapes = {name: view.shape for name, view in outputs.items()}
    check_sizes(records, shapes, sizes, what="output")


def check_output_names(given: Collection[str], records: Sequence[TensorRecord]) -> None:
    """Raise UsageError for an output that does not exist; any of those that do may be left out."""
    names = [record.name for record in records]
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise UsageError(
            "outputs",
            found=f"unknown output {', '.join(unknown)}",
            fix=f"The outputs are {', '.join(names)}",
        )


def _check_shape(record: TensorRecord, shape: Shape, sizes: Sizes, asked: str) -> None:
    wants = f"Its axes are {', '.join(map(str, record.dims)) or 'none (a scalar)'}"
    if len(shape) != len(record.dims):
        text = "x".join(map(str, shape)) or "scalar"
        raise UsageError(asked, found=f"shape {text}", fix=wants)
    for axis, (dim, size) in enumerate(zip(record.dims, shape, strict=True)):
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
