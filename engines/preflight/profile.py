"""Does the optimisation profile fit the inputs? Every mistake, where core/shapes raises the first."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ...core.errors import UsageError
from ...core.shapes import (
    Dim,
    Profile,
    Shape,
    ShapeRange,
    check_profile,
    format_shapes,
    parse_shapes,
)
from .finding import Finding

HAPPENS = (
    "TensorRT takes the sizes without a word, and then fails with an error about something else"
)
Shapes = dict[str, Shape]
Texts = tuple[str | None, str | None, str | None]  # min, opt, max


def texts_of(profile: Profile) -> Texts:
    """A profile's min, opt and max as trtexec spells them."""
    return (
        format_shapes({name: sizes.min for name, sizes in profile.items()}),
        format_shapes({name: sizes.opt for name, sizes in profile.items()}),
        format_shapes({name: sizes.max for name, sizes in profile.items()}),
    )


def profiles_findings(
    profiles: Sequence[Texts], inputs: Mapping[str, tuple[Dim, ...]]
) -> Iterator[Finding]:
    """The findings of every profile; where there are several, each says which. Raises UsageError as profile_findings."""
    if len(profiles) == 1:
        yield from profile_findings(*profiles[0], inputs)
        return
    parsed = [[parse_shapes(text or "") for text in texts] for texts in profiles]
    for number, texts in enumerate(profiles):
        for finding in profile_findings(*texts, inputs):
            yield replace(finding, found=f"profile {number}: {finding.found}")
        if parsed[number] in parsed[:number]:
            yield Finding(
                "profile.twice", f"profile {number}", "refused",
                f"the same sizes as profile {parsed.index(parsed[number])}",
                "compile refuses it: the engine would hold the same kernels again", "Leave one out",
            )  # fmt: skip


def profile_findings(
    minimum: str | None,
    optimum: str | None,
    maximum: str | None,
    inputs: Mapping[str, tuple[Dim, ...]],
) -> Iterator[Finding]:
    """Findings on the shapes as trtexec spells them; an absent one takes the place of its neighbour, as there.

    Raises UsageError for text that is no shapes.
    """
    given = [parse_shapes(t) if t is not None else None for t in (minimum, optimum, maximum)]
    dynamic = {n: dims for n, dims in inputs.items() if any(isinstance(d, str) for d in dims)}
    if not any(g is not None for g in given):
        if dynamic:
            yield Finding(
                "profile.absent", ", ".join(dynamic), "note", "dynamic axes, and no profile to check",
                "An engine needs min, opt and max sizes", "Give --min, --opt and --max",
            )  # fmt: skip
        return
    low, best, high = given
    best = best if best is not None else (high if high is not None else low)
    assert best is not None
    low, high = low if low is not None else best, high if high is not None else best
    yield from _of_profile({"min": low, "opt": best, "max": high}, inputs)


def _of_profile(
    shapes: Mapping[str, Shapes], inputs: Mapping[str, tuple[Dim, ...]]
) -> Iterator[Finding]:
    unknown = sorted({n for given in shapes.values() for n in given} - inputs.keys())
    for name in unknown:
        yield _finding(
            "profile.name", name, "no input has this name", f"The inputs are {', '.join(inputs)}"
        )
    profile: Profile = {}
    for name, dims in inputs.items():
        static = tuple(d for d in dims if isinstance(d, int))
        sizes = {
            k: given.get(name, static if len(static) == len(dims) else None)
            for k, given in shapes.items()
        }
        missing = [k for k, size in sizes.items() if size is None]
        if missing:
            axes = ", ".join(map(str, dims))
            yield _finding(
                "profile.missing",
                name,
                f"no {', '.join(missing)} sizes",
                f"Give it sizes: its axes are {axes}",
            )
            continue
        profile[name] = ShapeRange(*(sizes[k] or () for k in ("min", "opt", "max")))
        yield from _raised("profile.range", name, partial(profile[name].check, name, dims))
    whole = not unknown and len(profile) == len(inputs)
    if whole:
        yield from _raised("profile.axis", "profile", partial(check_profile, profile, inputs))


def _raised(rule: str, node: str, check: Callable[[], None]) -> Iterator[Finding]:
    try:
        check()
    except UsageError as error:
        yield _finding(rule, node, f"{error.asked}: {error.found}", error.fix)


def _finding(rule: str, node: str, found: str, fix: str) -> Finding:
    return Finding(rule, node, "refused", found, HAPPENS, fix)
