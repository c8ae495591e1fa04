"""What cannot be asked for, or would be asked for in vain, is refused."""

import pytest

from blockforge.core.errors import UsageError
from blockforge.export.quantize.options import QuantizeOptions


@pytest.mark.parametrize(
    "wrong",
    [
        {"format": "fp9"}, {"observer": "mean"}, {"rounding": "up"}, {"format": "int8-weights", "attention": True},
        {"format": "int8-weights", "observer": "mse"},
    ],
)  # fmt: skip
def test_options_that_do_not_exist_or_are_not_read_are_refused(wrong):
    with pytest.raises(UsageError):
        QuantizeOptions(**wrong)


def test_an_observer_is_for_activations_and_caches():
    assert QuantizeOptions().observes == "mse" and QuantizeOptions("int8-weights").observes is None
    assert QuantizeOptions("int8-weights", observer="amax", kv_cache=True).observes == "amax"
