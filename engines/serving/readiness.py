"""The last check before a replica answers: it runs the golden inputs and compares with the golden outputs.

The bundle was judged where it was built; here the question is whether this machine runs the same thing. An engine with other
weights, or for another graph, misses by orders of magnitude, so the allowance is wide: TOLERANCE times the rms error that the
verdict recorded (PyTorch's own in the same type, times the recorded ratio), and never less than the type's resolution.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...core.dtypes import DType, dtype_from_name
from ...core.errors import ArtefactError
from ...core.manifest import VariantRecord
from .golden import Rows, Sample

TOLERANCE = 10.0
RESOLUTION = {DType.FP64: 2.0**-23, DType.FP32: 2.0**-23, DType.FP16: 2.0**-10, DType.BF16: 2.0**-7}


@dataclass(frozen=True, slots=True)
class Check:
    """One output of one golden case: its rms error and the most that was allowed."""

    case: str
    output: str
    rms: float
    allowed: float


def check_ready(
    run: Callable[[dict[str, np.ndarray]], Mapping[str, np.ndarray]],
    variant: VariantRecord,
    samples: Sequence[Sample],
    asked: str,
) -> tuple[Check, ...]:
    """Run every sample; ArtefactError naming the first output that is not what the bundle says."""
    checks = []
    for sample in samples:
        outputs = run(sample.feeds_for(variant.inputs))
        for name, rows in sample.outputs.items():
            rms = _rms(rows.pick(outputs[name]) - rows.truth)
            checks.append(Check(sample.name, name, rms, _allowed(variant, sample, name, rows)))
            if not rms <= checks[-1].allowed:
                raise ArtefactError(
                    asked,
                    found=f"output {name!r} of golden case {sample.name!r} is off by {rms:.3g} (rms), "
                    f"at most {checks[-1].allowed:.3g} is allowed: this is not what was judged",
                    fix="Build the bundle again, or compile its engine on this machine",
                )
    return tuple(checks)


def _allowed(variant: VariantRecord, sample: Sample, output: str, rows: Rows) -> float:
    record = [
        (error.ratio, verdict.floor_dtype)
        for verdict in variant.verdicts
        for error in verdict.outputs
        if error.output == output and error.case in ("", sample.name)
    ]
    ratio = max((r for r, _ in record if math.isfinite(r)), default=1.0)
    kinds = [kind for _, kind in record if kind] or [variant.computes]
    floors = [sample.floors.get(kind, {}).get(output, 0.0) for kind in kinds]
    floor = max((f for f in floors if math.isfinite(f)), default=0.0)
    least = RESOLUTION[dtype_from_name(variant.computes)] * _rms(rows.truth)
    return TOLERANCE * max(floor * max(ratio, 1.0), least)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0
