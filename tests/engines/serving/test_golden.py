"""The numpy reader of golden files: the same cases as the reader that judges bundles, and a damaged file is an error."""

import numpy as np
import pytest
from serving_bundles import CASES, make_bundle

from blockforge.core.errors import ArtefactError
from blockforge.engines.serving.golden import samples_of
from blockforge.validate.golden import read_golden


def test_both_readers_see_the_same(bundle):
    ours, theirs = samples_of(bundle), read_golden(bundle.path / "golden.safetensors")
    assert [s.name for s in ours] == [c.name for c in theirs] == list(CASES)
    for sample, case in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(sample.feeds["hidden_states"], case.inputs["hidden_states"])
        rows = case.outputs["output"]
        np.testing.assert_array_equal(sample.outputs["output"].at, rows.at)
        np.testing.assert_array_equal(sample.outputs["output"].truth, rows.rows)
        assert sample.floors == case.floors


def test_an_exported_bundle_has_none(tmp_path):
    assert samples_of(make_bundle(tmp_path / "b", golden=False)) == ()


@pytest.mark.parametrize("content", [b"", b"\x00" * 64, b"\x02\x00\x00\x00\x00\x00\x00\x00{}"])
def test_a_damaged_file_is_one_error(tmp_path, content):
    made = make_bundle(tmp_path / "b")
    (made.path / "golden.safetensors").write_bytes(content)
    with pytest.raises(ArtefactError, match=r"golden\.safetensors"):
        samples_of(made)
