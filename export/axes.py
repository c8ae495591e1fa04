"""Dynamic axes: which sizes they must serve, which to trace at, which to verify at."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch

from ..core.errors import UsageError

Sizes = dict[str, int]  # axis name -> size
Draw = Callable[[tuple[int, ...], torch.Generator], torch.Tensor]  # shape -> values
_PRIMES = (
    3,
    5,
    7,
    11,
    13,
    17,
    19,
    23,
    29,
    31,
)  # no two axes alike, none equal to a product of others


@dataclass(frozen=True, slots=True)
class Axis:
    """A dynamic axis by name, and the sizes it must serve; max None: no upper bound."""

    name: str
    min: int = 1
    max: int | None = None

    def __post_init__(self) -> None:
        """A range below two sizes is no dynamic axis."""
        top = "" if self.max is None else self.max
        if self.min < 1 or (self.max is not None and self.max <= max(self.min, 1)):
            raise UsageError(
                f"axis {self.name!r} of sizes {self.min}..{top}",
                found="not a range of two sizes or more, from 1 upwards",
                fix="Leave a static axis out of the dynamic axes",
            )

    def serves(self, size: int) -> bool:
        """Is `size` in the range?"""
        return self.min <= size and (self.max is None or size <= self.max)

    def near(self, size: int) -> int:
        """`size` where it is served, else the size-th of the range, else the range's end."""
        size = size if size >= self.min else self.min - 1 + size
        return size if self.max is None else min(size, self.max)


@dataclass(frozen=True, slots=True)
class Input:
    """One input of the module: its name in the graph, an example, and its dynamic axes by position.

    draw: makes values of any shape, for an input that cannot hold just any of the example's elements at any place
    (a mask).
    """

    name: str
    example: torch.Tensor
    axes: Mapping[int, Axis] = field(default_factory=dict)
    draw: Draw | None = None

    def __post_init__(self) -> None:
        """An example without elements says nothing, and a position must be one that it has."""
        for position, axis in self.axes.items():
            if not 0 <= position < self.example.ndim:
                raise UsageError(
                    f"axis {axis.name!r} of input {self.name!r}",
                    found=f"position {position}, and the example has {self.example.ndim} axes",
                )
        if not self.example.numel():
            raise UsageError(
                f"example of input {self.name!r}",
                found="no elements",
                fix="Give one of size 2 or more",
            )

    def sized(self, sizes: Sizes) -> tuple[int, ...]:
        """The input's shape at `sizes`."""
        return tuple(
            sizes[self.axes[i].name] if i in self.axes else size
            for i, size in enumerate(self.example.shape)
        )

    def sample(self, sizes: Sizes, generator: torch.Generator) -> torch.Tensor:
        """Random values at `sizes`: drawn from the example's own elements, which the module is known to take.

        With `draw`, what that gives instead. A float example whose elements are all alike would hide what moved: its place takes N(0, 1).
        """
        shape, pool = self.sized(sizes), self.example.flatten()
        if self.draw is not None:
            return self.draw(shape, generator)
        if pool.dtype.is_floating_point and (pool == pool[0]).all():
            return torch.randn(shape, generator=generator).to(pool.dtype)
        return pool[torch.randint(pool.numel(), shape, generator=generator)]


def named_axes(inputs: Iterable[Input]) -> dict[str, Axis]:
    """Every dynamic axis of the inputs by name.

    Raises UsageError for one name with two ranges.
    """
    axes: dict[str, Axis] = {}
    for entry in inputs:
        for axis in entry.axes.values():
            if axes.setdefault(axis.name, axis) != axis:
                raise UsageError(
                    f"axis {axis.name!r} of input {entry.name!r}",
                    found="it has another range at another input",
                    fix="One axis name has one range",
                )
    return axes


def axis_positions(inputs: Iterable[Input], name: str) -> str:
    """Where an axis is found, for error texts: `input 'x' axis 1, input 'kv' axis 1`."""
    places = [
        f"input {i.name!r} axis {p}" for i in inputs for p, a in i.axes.items() if a.name == name
    ]
    return ", ".join(places)


def trace_sizes(inputs: Iterable[Input]) -> Sizes:
    """Sizes to trace at: the example's own where they tell nothing, else primes.

    A size of 1, one that two axes share, one at the edge of its range, or one that a static axis has too, lets
    the tracer take it for a constant or for another axis.
    """
    inputs = tuple(inputs)
    axes = named_axes(inputs)
    taken = {s for i in inputs for p, s in enumerate(i.example.shape) if p not in i.axes}
    own = {a.name: i.example.shape[p] for i in inputs for p, a in i.axes.items()}
    sizes: Sizes = {}
    for name, axis in axes.items():
        edges = {axis.min, axis.max}
        candidates = (own[name], *_PRIMES)
        inner = [s for s in candidates if s >= 2 and axis.serves(s) and s not in taken | edges]
        sizes[name] = inner[0] if inner else axis.near(2)
        taken.add(sizes[name])
    return sizes


def verify_sizes(axes: Collection[Axis], *, upper: bool = True) -> list[Sizes]:
    """Sizes to verify at: 1x1, 1x2, 2x3, 3x7 and, with `upper`, the largest.

    A size below an axis's range counts from the range's start instead. An axis without an upper bound takes
    17 for its largest, more than any other row has.
    """
    rows = [(1, 1, 1), (1, 2, 2), (2, 3, 5), (3, 7, 11)]  # first, second, any further axis
    chosen = [{a.name: a.near(row[min(i, 2)]) for i, a in enumerate(axes)} for row in rows]
    if upper:
        chosen.append({a.name: a.near(17) if a.max is None else a.max for a in axes})
    return [sizes for n, sizes in enumerate(chosen) if sizes not in chosen[:n]]
