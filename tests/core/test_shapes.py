"""Shapes and profiles: what trtexec spells is read, each mistake is named before anything is built."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockforge.core.errors import UsageError
from blockforge.core.shapes import ShapeRange, format_shapes, parse_shapes, profile_from_text

NAMES = st.text("abcdefgh_./:0123456789", min_size=1).filter(lambda n: not n.startswith(":"))
SHAPES = st.dictionaries(NAMES, st.lists(st.integers(0, 10**6), max_size=5).map(tuple))


@given(SHAPES)
def test_parse_reads_what_format_writes(shapes):
    assert parse_shapes(format_shapes(shapes)) == shapes


@given(st.text())
def test_any_text_is_read_or_refused_in_one_sentence(text):
    try:
        parse_shapes(text)
    except UsageError as error:
        assert error.asked and error.found


@pytest.mark.parametrize(
    "text", ["x", "x:1x-2", "x:1xx2", "x:axb", ":1x2", "x:1,x:2", "x:1 2", "x:1.5"]
)
def test_a_wrong_spelling_is_refused(text):
    with pytest.raises(UsageError):
        parse_shapes(text)


INPUTS = {"x": ("b", "s", 64), "past": ("b", "p", 64)}
MIN, OPT, MAX = "x:1x1x64,past:1x1x64", "x:2x16x64,past:2x64x64", "x:4x128x64,past:4x512x64"


def test_a_right_profile_is_built():
    profile = profile_from_text(MIN, OPT, MAX, INPUTS)
    assert profile["x"] == ShapeRange((1, 1, 64), (2, 16, 64), (4, 128, 64))


# name -> (min, opt, max, what the message must name)
MISTAKES = {
    "missing input": ("x:1x1x64", OPT, MAX, ["past"]),
    "unknown input": (MIN, OPT, MAX + ",post:1x1x64", ["post", "x, past"]),
    "min above opt": ("x:3x1x64,past:3x1x64", OPT, MAX, ["'x'", "axis 0", "min 3, opt 2"]),
    "opt above max": (MIN, "x:2x300x64,past:2x64x64", MAX, ["'x'", "axis 1", "opt 300, max 128"]),
    "static axis": ("x:1x1x32,past:1x1x64", OPT, MAX, ["'x'", "axis 2", "static", "64"]),
    "wrong rank": ("x:1x64,past:1x1x64", OPT, MAX, ["'x'", "rank 2", "3 axes"]),
    "batch disagrees": (
        "x:1x1x64,past:2x1x64",
        OPT,
        MAX,
        ["'b'", "x has (1, 2, 4)", "past has (2, 2, 4)"],
    ),
    "empty axis": ("x:1x1x64,past:1x0x64", OPT, MAX, ["'past'", "axis 1", "starts at 0"]),
}


@pytest.mark.parametrize(("low", "opt", "high", "words"), MISTAKES.values(), ids=MISTAKES)
def test_each_profile_mistake_names_input_axis_and_rule(low, opt, high, words):
    with pytest.raises(UsageError) as caught:
        profile_from_text(low, opt, high, INPUTS)
    for word in words:
        assert word in str(caught.value)
