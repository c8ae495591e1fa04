"""Shapes as trtexec and Polygraphy spell them: `input_ids:1x128,mask:1x1x128x128`."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from .errors import UsageError

Shape = tuple[int, ...]
Dim = int | str  # a size, or the name of a dynamic axis


def parse_shapes(text: str) -> dict[str, Shape]:
    """Read `name:1x2x3,other:4x5`; sizes are whole numbers of 0 or more, `name:` is a scalar.

    Raises UsageError naming the part that does not fit.
    """
    shapes: dict[str, Shape] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, colon, sizes = part.rpartition(":")
        if not colon or not name:
            raise UsageError(f"shape {part!r}", found="no 'name:' in it", fix="Write name:1x2x3")
        if name in shapes:
            raise UsageError(
                f"shapes {text!r}", found=f"{name!r} twice", fix="Name each input once"
            )
        try:
            shape = tuple(int(s) for s in sizes.split("x")) if sizes else ()
        except ValueError:
            shape = (-1,)
        if any(s < 0 for s in shape):
            raise UsageError(
                f"shape {part!r}", found=f"sizes {sizes!r}", fix="Write sizes as 1x2x3, 0 or more"
            )
        shapes[name] = shape
    return shapes


def format_shapes(shapes: Mapping[str, Shape]) -> str:
    """Write shapes the way parse_shapes reads them."""
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """The sizes that one input may have: TensorRT's optimisation profile for it."""

    min: Shape
    opt: Shape
    max: Shape

    def check(self, name: str, dims: tuple[Dim, ...]) -> None:
        """Raise UsageError naming the input, axis and rule when the range cannot serve `dims`."""
        asked = f"profile of input {name!r}"
        for label, shape in (("min", self.min), ("opt", self.opt), ("max", self.max)):
            if len(shape) != len(dims):
                raise UsageError(
                    asked,
                    found=f"{label} {format_shapes({name: shape})} has rank {len(shape)}",
                    fix=f"The input has {len(dims)} axes: {', '.join(map(str, dims))}",
                )
        for axis, (dim, low, opt, high) in enumerate(
            zip(dims, self.min, self.opt, self.max, strict=True)
        ):
            if isinstance(dim, int) and not low == opt == high == dim:
                raise UsageError(
                    asked,
                    found=f"axis {axis} is {low}..{opt}..{high}, but static with size {dim}",
                    fix=f"Give {dim} for min, opt and max",
                )
            if not low <= opt <= high:
                raise UsageError(
                    asked,
                    found=f"axis {axis} ({dim}) has min {low}, opt {opt}, max {high}",
                    fix="Keep min <= opt <= max",
                )
            if isinstance(dim, str) and low < 1:
                raise UsageError(
                    asked,
                    found=f"axis {axis} ({dim}) starts at {low}",
                    fix="Start at 1 or more: an empty input computes nothing",
                )


Profile = dict[str, ShapeRange]


def profile_from_text(
    minimum: str, optimum: str, maximum: str, inputs: Mapping[str, tuple[Dim, ...]]
) -> Profile:
    """Build and check the profile of `inputs` (name -> dimensions) from three shape texts.

    Raises UsageError for a missing or unknown input, a wrong rank or order, a static axis
    given another size, and one dynamic axis name with two ranges.
    """
    texts = {"min": minimum, "opt": optimum, "max": maximum}
    parsed = {label: parse_shapes(text) for label, text in texts.items()}
    for label, shapes in parsed.items():
        unknown, missing = shapes.keys() - inputs.keys(), inputs.keys() - shapes.keys()
        if unknown or missing:
            raise UsageError(
                f"{label} shapes {texts[label]!r}",
                found=_names(("unknown input", unknown), ("no shape for", missing)),
                fix=f"The inputs are {', '.join(inputs)}",
            )
    profile = {
        name: ShapeRange(*(parsed[label][name] for label in ("min", "opt", "max")))
        for name in inputs
    }
    check_profile(profile, inputs)
    return profile


def check_profile(profile: Profile, inputs: Mapping[str, tuple[Dim, ...]]) -> None:
    """Raise UsageError naming input, axis and rule unless `profile` gives each input sizes it can have.

    One dynamic axis name has one range over all inputs.
    """
    unknown, missing = profile.keys() - inputs.keys(), inputs.keys() - profile.keys()
    if unknown or missing:
        raise UsageError(
            "profile",
            found=_names(("unknown input", unknown), ("no sizes for", missing)),
            fix=f"The inputs are {', '.join(inputs)}",
        )
    seen: dict[str, tuple[str, Shape]] = {}
    for name, dims in inputs.items():
        profile[name].check(name, dims)
        shapes_of = profile[name]
        for axis, dim in enumerate(dims):
            if not isinstance(dim, str):
                continue
            sizes = (shapes_of.min[axis], shapes_of.opt[axis], shapes_of.max[axis])
            other, known = seen.setdefault(dim, (name, sizes))
            if known != sizes:
                raise UsageError(
                    f"profile of axis {dim!r}",
                    found=f"{other} has {known}, {name} has {sizes}",
                    fix="One axis name has one min, opt and max",
                )


def check_profiles(profiles: Sequence[Profile], inputs: Mapping[str, tuple[Dim, ...]]) -> None:
    """Raise UsageError unless every profile fits (check_profile) and none stands there twice; they may overlap."""
    for number, profile in enumerate(profiles):
        try:
            check_profile(profile, inputs)
        except UsageError as error:
            if len(profiles) == 1:
                raise
            raise UsageError(
                f"{error.asked} (profile {number})", found=error.found, fix=error.fix
            ) from None
        if profile in profiles[:number]:
            raise UsageError(
                f"profile {number}",
                found=f"the same sizes as profile {profiles.index(profile)}",
                fix="Leave one out: it would hold the same kernels again",
            )


def _names(*parts: tuple[str, Collection[str]]) -> str:
    return "; ".join(f"{what} {', '.join(sorted(names))}" for what, names in parts if names)
