"""How numbers and the recipe look on the page."""

import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockforge.validate.report.numbers import exact, number, short
from blockforge.validate.report.toml import toml_from_dict

LEAVES = st.one_of(
    st.text(), st.booleans(), st.integers(-(2**62), 2**62), st.floats(allow_nan=False)
)
TABLES = st.recursive(
    st.dictionaries(st.text(max_size=8), LEAVES | st.lists(LEAVES, max_size=3), max_size=4),
    lambda inner: st.dictionaries(st.text(max_size=8), LEAVES | inner, max_size=4),
    max_leaves=6,
)


@given(TABLES)
def test_toml_reads_back(data):
    assert tomllib.loads(toml_from_dict(data)) == data


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (0.000412817, "sci", "4.13e−4"),
        (0.0, "sci", "0"),
        (1.0213, "ratio", "1.02×"),
        (123456.0, "ratio", "1.23e5×"),
        (0.994141, "share", "99.41 %"),
        (271400212, "bytes", "271 MB"),
        (999, "bytes", "999 B"),
        (14.231, "seconds", "14.2 s"),
        (75.4, "seconds", "1 min 15 s"),
        (1804, "count", "1,804"),
        (1.00017, "gate", "1.00017"),
        (-12.5, "general", "−12.5"),
        (38754.2, "general", "38,754"),
        (2.5e7, "general", "2.50e7"),
        (math.nan, "general", "NaN"),
        (-math.inf, "sci", "−∞"),
    ],
)
def test_numbers_for_the_eye(value, kind, text):
    assert short(value, kind) == text
    assert str(number(value, kind)) == f'<data value="{exact(value)}">{text}</data>'
