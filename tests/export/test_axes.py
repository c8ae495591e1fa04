"""Which sizes are traced and which are verified."""

import pytest
import torch

from blockforge.core.errors import UsageError
from blockforge.export.axes import Axis, Input, named_axes, trace_sizes, verify_sizes


def one(shape: tuple[int, ...], **axes: Axis) -> Input:
    return Input("x", torch.zeros(shape), {int(k[1:]): a for k, a in axes.items()})


@pytest.mark.parametrize(
    ("entry", "sizes"),
    [
        (one((2, 5, 8), _0=Axis("b", 1, 8), _1=Axis("s", 1, 64)), {"b": 2, "s": 5}),
        (one((1, 5, 8), _0=Axis("b", 1, 8), _1=Axis("s", 1, 64)), {"b": 3, "s": 5}),
        (one((4, 4, 8), _0=Axis("b", 1, 8), _1=Axis("s", 1, 64)), {"b": 4, "s": 3}),
        (one((8, 2, 8), _0=Axis("b", 1, 9), _1=Axis("s", 2, 64)), {"b": 3, "s": 5}),
        (one((5, 3), _0=Axis("b", 1, 5)), {"b": 7 - 5}),
        (one((1,), _0=Axis("b", 1, 2)), {"b": 2}),
    ],
    ids=["own", "one", "shared", "static neighbour, lower bound", "upper bound", "two sizes"],
)
def test_traced_sizes_tell_the_tracer_nothing(entry: Input, sizes: dict[str, int]):
    assert trace_sizes([entry]) == sizes


def test_verified_sizes():
    def pairs(*axes: Axis, upper: bool = True) -> list[tuple[int, ...]]:
        return [tuple(s.values()) for s in verify_sizes(axes, upper=upper)]

    assert pairs(Axis("b", 1, 8), Axis("s", 1, 64)) == [(1, 1), (1, 2), (2, 3), (3, 7), (8, 64)]
    assert pairs(Axis("b"), Axis("s"), upper=False) == [(1, 1), (1, 2), (2, 3), (3, 7)]
    assert pairs(Axis("b", 1, 2), Axis("s", 8, 32)) == [(1, 8), (1, 9), (2, 10), (2, 14), (2, 32)]
    assert pairs(Axis("b"))[-1] == (17,)
    assert verify_sizes(()) == [{}]


@pytest.mark.parametrize(("low", "high"), [(0, 4), (3, 3), (5, 4)])
def test_a_range_of_fewer_than_two_sizes_is_no_axis(low: int, high: int):
    with pytest.raises(UsageError, match="axis 'b'"):
        Axis("b", low, high)


def test_examples_and_axes_must_fit_each_other():
    with pytest.raises(UsageError, match="position 2"):
        one((2, 5), _2=Axis("s"))
    with pytest.raises(UsageError, match="no elements"):
        one((0, 5), _0=Axis("b"))
    with pytest.raises(UsageError, match="another range"):
        named_axes([one((2,), _0=Axis("b", 1, 4)), one((2,), _0=Axis("b", 1, 5))])


def test_samples_come_from_the_example_unless_it_is_constant():
    generator = torch.Generator().manual_seed(0)
    ids = Input("ids", torch.tensor([3, 5, 7]), {0: Axis("n")})
    drawn = ids.sample({"n": 500}, generator)
    assert drawn.shape == (500,) and set(drawn.tolist()) == {3, 5, 7}
    assert one((2, 3), _0=Axis("n")).sample({"n": 100}, generator).std() > 0.5
