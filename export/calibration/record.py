"""calibration.json: the ranges that calibration saw and the scales that follow, so that a build can be repeated.

{"schema_version": 1, "source": "blockforge miscellany", "seed": 0, "tokens": 2495,
 "values": {"layers.0.input_layernorm": {"amax": 1.29, "scale": 0.0037, "observer": "mse"}, ...}}
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...core.errors import ArtefactError

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ValueRecord(BaseModel):
    """One value: its largest magnitude, its scale, and the observer that chose it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    amax: _Positive
    scale: _Positive
    observer: str


class CalibrationRecord(BaseModel):
    """Every value that got a static scale. source: what the numbers come from; seed: where they are drawn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    source: str = ""
    seed: int | None = None
    tokens: int = 0
    values: dict[str, ValueRecord]

    def save(self, path: str | Path) -> None:
        """Write the record."""
        Path(path).write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")


def load_calibration(path: str | Path) -> CalibrationRecord:
    """Read calibration.json; ArtefactError says what does not fit (a scale that is zero, say)."""
    try:
        return CalibrationRecord.model_validate_json(Path(path).read_bytes())
    except OSError as error:
        raise ArtefactError(
            f"calibration {path}", found=f"cannot read it: {error.strerror}"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ArtefactError(
            f"calibration {path}", found=f"{where}: {first['msg']}", fix="Calibrate again"
        ) from None
