"""Why a value diverged: causes are tried in order, and the first that is confirmed by a repair is given."""

from collections.abc import Callable, Iterator

from .arithmetic import arithmetic, not_finite
from .attention import head_mapping, mask_values, masks, unrotated
from .attributes import activations, attributes
from .case import Case, Cause
from .operands import bias, elsewhere, missing, swapped
from .patterns import angles, channels, factor, input_row, places, positions, unchanged
from .quantised import quantised
from .weights import compare_weights, thetas, weights

__all__ = ["Case", "Cause", "compare_weights", "diagnose"]

Search = Callable[[Case], Iterator[Cause]]
# A cause that says more stands before one that says less: a missing mask is also an error at some positions.
SEARCHES: tuple[Search, ...] = (
    arithmetic,
    mask_values,
    positions,
    weights,
    thetas,
    masks,
    attributes,
    swapped,
    unrotated,
    elsewhere,
    head_mapping,
    activations,
    quantised,
    bias,
    missing,
    unchanged,
    factor,
    angles,
    channels,
    not_finite,
    input_row,
    places,
)


# A region that reads more matrices spans layers: a side showed nothing inside. Repairs, of which each runs the region
# anew, would take longer than the comparison; what the numbers alone say is said.
MATRICES = 8
BY_NUMBERS: tuple[Search, ...] = (positions, factor, not_finite, places)


def spans_layers(case: Case) -> bool:
    """Whether the region is too wide to try repairs in."""
    matrices = [w for w in case.region.weights if w.shape is not None and len(w.shape) >= 2]
    return len(matrices) > MATRICES


def diagnose(case: Case) -> Cause:
    """The first confirmed cause; else the first pattern; else an honest "unexplained" with the numbers."""
    floating = case.evidence.expected.is_floating_point()
    wide = spans_layers(case)
    guess: Cause | None = None
    for search in BY_NUMBERS if wide else SEARCHES:
        if not floating and search not in (mask_values, positions, swapped, elsewhere, attributes):
            continue
        for cause in search(case):
            if cause.confirmed:
                return cause
            guess = guess or cause
    if guess is not None:
        return guess
    error = case.evidence.error
    text = (
        f"no known cause fits: relative error {error.relative:.3g} against a noise of {error.noise:.2g}, "
        f"{error.over:.3g} times what is allowed"
    )
    if wide:
        text += f"; no value is shown between it and the {len(case.region.nodes)} operators that it comes from"
    return Cause("unexplained", text, {"relative": error.relative, "noise": error.noise}, False)
