"""Build one tiny preset in one precision, for every target, and judge it.

preset -> graph -> engines with their kernels -> error over the noise floor -> Row
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blockforge.core.dtypes import DType
from blockforge.core.errors import BlockforgeError, BuildError
from blockforge.core.manifest import TensorRecord, VerdictRecord
from blockforge.core.shapes import Profile, ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.target import Target
from blockforge.export.export import Exported, export_variant
from blockforge.model.build import signature
from blockforge.model.checkpoints import Checkpoint, preset_checkpoint
from blockforge.validate.inputs import InputPlan
from blockforge.validate.judge import Variant, Way, judge_variant, truth_for
from blockforge.validate.limits import Limits
from blockforge.validate.reference import Truth
from blockforge.validate.runners import SessionRunner, TypedRunner

TARGETS = ("onnxruntime:cpu", "tensorrt-rtx:sm89", "tensorrt-rtx:sm120")
PRECISIONS = (DType.FP32, DType.FP16, DType.BF16)
SEED = 0
# The limit of the ready recipes. A graph that rounds where PyTorch rounds lies near 1.
LIMITS = Limits(max_error_over_floor=2.0, max_overflows=0)
SIZES = ((1, 1, 1), (2, 24, 20), (2, 64, 64))  # batch, sequence, source at min, opt, max
# What a runtime is known to refuse: (target, precision) -> its words. Anything else that fails is a failure.
KNOWN = {
    ("onnxruntime:cpu", "bf16"): (
        r"onnxruntime \S+ refuses it: \[ONNXRuntimeError\] : 9 : NOT_IMPLEMENTED : "
        r"Could not find an implementation for \w+\(\d+\)"
    )
}


@dataclass(frozen=True, slots=True)
class Built:
    """What one target made of the graph; refused: its words where it refused."""

    kernels: int | None = None
    per_block: float | None = None
    dtypes: dict[str, int] = field(default_factory=dict)
    legalized: tuple[str, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One preset in one precision. errors: runner -> worst output's rms error over PyTorch's in the same dtype."""

    preset: str
    precision: str
    operators: dict[str, int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    engines: dict[str, Built] = field(default_factory=dict)
    failures: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Row":
        """The row that to_json wrote."""
        engines = {
            target: Built(**{**built, "legalized": tuple(built["legalized"])})
            for target, built in data["engines"].items()
        }
        return cls(**{**data, "engines": engines, "failures": tuple(data["failures"])})


def profile_of(inputs: Sequence[TensorRecord]) -> Profile:
    """Sizes for every input, over windows and odd lengths."""
    sizes = [dict(zip(("batch", "sequence", "source"), size, strict=True)) for size in SIZES]
    return {
        record.name: ShapeRange(
            *(tuple(d if isinstance(d, int) else size[d] for d in record.dims) for size in sizes)
        )
        for record in inputs
    }


def run_preset(
    preset: str,
    folder: Path,
    precisions: Sequence[DType] = PRECISIONS,
    targets: Sequence[str] = TARGETS,
) -> Iterator[Row]:
    """One row for each precision, built under `folder`; what goes wrong is a failure of the row, never an exception."""
    checkpoint = preset_checkpoint(preset, SEED)
    inputs, _ = signature(checkpoint.config, None, DType.FP64)
    profile = profile_of(inputs)
    truth = truth_for(checkpoint, layer=None, profile=profile, plan=InputPlan(seed=SEED))
    for precision in precisions:
        job = _Job(checkpoint, truth, profile, precision, tuple(targets))
        yield _run(preset, job, folder / precision.value)


@dataclass(frozen=True, slots=True)
class _Job:
    checkpoint: Checkpoint
    truth: Truth
    profile: Profile
    precision: DType
    targets: tuple[str, ...]


def _run(preset: str, job: _Job, folder: Path) -> Row:
    name = job.precision.value
    try:
        exported = export_variant(
            job.checkpoint, layer=None, precision=job.precision, io=job.precision, folder=folder
        )
    except BlockforgeError as error:
        return Row(preset, name, failures=(f"export: {error}",))
    failures: list[str] = []
    engines = {target: _compile(job, exported, target, failures) for target in job.targets}
    errors = _judge(job, exported, engines, failures)
    operators = dict(sorted(exported.summary.operators.items()))
    return Row(preset, name, operators, errors, engines, tuple(failures))


def _compile(job: _Job, exported: Exported, target: str, failures: list[str]) -> Built:
    request = CompileRequest(
        model=exported.path,
        target=Target.parse(target),
        profile=job.profile,
        folder=exported.path.parent,
        num_blocks=job.checkpoint.config.num_layers,
    )
    try:
        record = compile_engine(request)
    except BuildError as error:
        known = KNOWN.get((target, job.precision.value))
        words = re.match(known, error.found) if known else None
        if words is None:
            failures.append(f"{target}: {error.found}")
        return Built(refused=words[0] if words else error.found)
    failures += [f"{target}: {violation}" for violation in record.violations]
    return Built(record.kernels, record.kernels_per_block, record.dtypes, record.legalized)


def _judge(
    job: _Job, exported: Exported, engines: dict[str, Built], failures: list[str]
) -> dict[str, float]:
    """Error over floor by the typed evaluator, and by ONNX Runtime where it takes the graph."""
    ways = [Way(TypedRunner.name, lambda: TypedRunner(exported.path))]
    runtime = engines.get(SessionRunner.name)
    if runtime is not None and not runtime.refused:
        ways.append(Way(SessionRunner.name, lambda: SessionRunner(exported.path)))
    summary = exported.summary
    variant = Variant(job.precision, exported.path, summary.inputs, summary.outputs)
    try:
        verdicts = judge_variant(job.truth, variant, LIMITS, ways=ways)
    except BlockforgeError as error:
        failures.append(f"verdict: {error}")
        return {}
    for verdict in verdicts:
        failures += [f"{verdict.runner}: {note}" for note in verdict.notes]
        failures += [
            f"{verdict.runner}: {gate.name} is {gate.value:.3g}, the limit is {gate.limit:g}"
            for gate in verdict.gates
            if not gate.passed
        ]
    return {verdict.runner: _over_floor(verdict) for verdict in verdicts}


def _over_floor(verdict: VerdictRecord) -> float:
    """The worst output's error over floor, over all inputs together."""
    ratios = [g.value for g in verdict.gates if g.name.endswith("over floor")]
    return round(max(ratios, default=math.nan), 2)
