"""Every true spelling fuses and computes the same; a spelling that is wrong in one place never fuses."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from . import spelling, spelling_attention
from .equal import fused, largest_difference
from .spelling import Speller

# Constants are float32 in the graph and float64 in the oracle: one rounding of an attribute or a folded product.
TOLERANCE = 1e-6

TRUE = {
    "rms": spelling.rms_norm,
    "ln": spelling.layer_norm,
    "glu": spelling.gate,
    "rope": spelling_attention.rope,
    "attn": spelling_attention.attention,
}
SPOILS = {
    "rms": ("cube", "other axis", "wrong count", "epsilon vector", "other tensor", "escape"),
    "ln": ("cube", "other axis", "wrong count", "epsilon vector", "other tensor", "escape"),
    "glu": ("other tensor", "shift"),
    "rope": ("one angle", "sign", "halves differ", "lanes swapped"),
    "attn": ("other axis", "no softmax", "weights changed", "escape"),
}
BUDGET = settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@pytest.mark.parametrize("pattern", TRUE)
@BUDGET
@given(data=st.data())
def test_every_true_spelling_fuses(pattern, data):
    opset = data.draw(st.sampled_from([17, 18, 20, 23, 24]))
    model = TRUE[pattern](Speller(data.draw, opset=opset))
    after, report = fused(model)
    assert report.counts[pattern] == 1, report.explain()
    assert largest_difference(model, after) < TOLERANCE


@pytest.mark.parametrize(
    ("pattern", "spoil"), [(p, s) for p, spoils in SPOILS.items() for s in spoils]
)
@settings(BUDGET, max_examples=12)
@given(data=st.data())
def test_no_spoiled_spelling_fuses(pattern, spoil, data):
    model = TRUE[pattern](Speller(data.draw, spoil=spoil))
    after, report = fused(model)
    assert report.counts[pattern] == 0, report.explain()
    assert largest_difference(model, after) < TOLERANCE
