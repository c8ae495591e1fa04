"""calibration.json: what is written is read again, and what does not fit is refused."""

import json

import pytest

from blockforge.core.errors import ArtefactError
from blockforge.export.calibration.record import CalibrationRecord, ValueRecord, load_calibration

RECORD = CalibrationRecord(
    source="a text",
    seed=3,
    tokens=7,
    values={"layers.0.norm": ValueRecord(amax=1.5, scale=1.5 / 448, observer="amax")},
)


def test_it_reads_what_it_writes(tmp_path):
    RECORD.save(tmp_path / "calibration.json")
    assert load_calibration(tmp_path / "calibration.json") == RECORD


@pytest.mark.parametrize(
    ("field", "value"), [("scale", 0), ("scale", float("inf")), ("amax", -1), ("extra", 1)]
)
def test_a_scale_that_cannot_be_is_refused(tmp_path, field, value):
    plain = json.loads(RECORD.model_dump_json())
    plain["values"]["layers.0.norm"][field] = value
    (tmp_path / "c.json").write_text(json.dumps(plain))
    with pytest.raises(ArtefactError, match=f"layers.0.norm.{field}"):
        load_calibration(tmp_path / "c.json")


def test_no_file(tmp_path):
    with pytest.raises(ArtefactError, match="cannot read"):
        load_calibration(tmp_path / "absent.json")
