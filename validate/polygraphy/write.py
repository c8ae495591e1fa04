"""The bundle's polygraphy/ folder: the same inputs and the float64 reference for NVIDIA's own tool.

    inputs.json    sets of inputs, `polygraphy run --load-inputs`
    outputs.json   RunResults of the float64 reference, `--load-outputs`
    limits.json    noise floors by variant, case and output, what the recipe allows over them, and what each case may
                   lose as language (language_limits.py)
    checks.py      the rules, `--compare-func-script polygraphy/checks.py:fp16`
    compare.sh     `polygraphy run` with all of these; run.py: the same through Blockforge's runners

Float inputs are float32 here: they lie on a grid that every 16-bit type holds, so casting them is exact.
Whole outputs only, the smallest cases first, while they fit the budget; no pickle in any of these files.
"""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...core.dtypes import dtype_from_name
from ...core.errors import UsageError
from ...core.manifest import Manifest, VariantRecord
from ..inputs import Case
from ..judge import feeds_for
from ..limits import Limits
from ..reference import Floor, Truth
from ..runners import TypedRunner, numpy_from_tensor
from ..spread import Spread
from ..tensor_files import RunnerOutputs, dump_inputs, dump_run_results
from .checks import REFERENCE
from .language_limits import language_limits, sets_language_limits

FOLDER = "polygraphy"
INPUTS, OUTPUTS, LIMITS = "inputs.json", "outputs.json", "limits.json"
SCRIPTS = {
    "compare.sh": "scripts/compare.sh",
    "run.py": "scripts/run.py.txt",
    "checks.py": "checks.py",
}
BUDGET = 32 << 20  # bytes of float64 outputs; base64 makes a third more of them


def write_polygraphy(
    folder: Path,
    manifest: Manifest,
    truth: Truth,
    limits: Mapping[str, Limits | None],
    *,
    graphs: Path | None = None,
    budget: int = BUDGET,
) -> tuple[str, ...]:
    """Write `folder`/polygraphy and return the files' paths in the bundle; sealing it lists them.

    limits: the recipe's by precision. graphs: where the variants' graphs lie, None for `folder`; one whose next tokens
    the recipe limits is run on the cases. The floor of each variant is computed if it was not yet.
    Raises UsageError for a variant whose precision has no entry there: None says that none is set.
    """
    missing = [v.precision for v in manifest.variants if v.precision not in limits]
    if missing:
        raise UsageError(
            "limits of the bundle's variants",
            found=f"no entry for {', '.join(missing)}",
            fix="Give None where the recipe sets none",
        )
    cases = chosen_cases(truth, budget)
    inputs = [{n: _plain(v) for n, v in case.feeds.items()} for case in cases]
    outputs = tuple(
        {name: numpy_from_tensor(v) for name, v in truth.results[case.name].items()}
        for case in cases
    )
    reference = RunnerOutputs(REFERENCE, outputs, (None,) * len(outputs))
    body = {
        "cases": [case.name for case in cases],
        "vocabulary": truth.vocabulary,
        "language_cases": [case.name for case in truth.language_cases()],
        "variants": {
            variant.precision: _limits_of(
                variant,
                truth,
                cases,
                limits[variant.precision] or Limits(),
                (graphs or folder) / variant.model,
            )
            for variant in manifest.variants
        },
    }
    here = folder / FOLDER
    here.mkdir(parents=True, exist_ok=True)
    texts = {
        INPUTS: dump_inputs(inputs),
        OUTPUTS: dump_run_results([reference]),
        LIMITS: json.dumps(body, indent=1, allow_nan=False),
    }
    package = resources.files(__package__)
    texts |= {name: (package / path).read_text(encoding="utf-8") for name, path in SCRIPTS.items()}
    for name, text in texts.items():
        (here / name).unlink(missing_ok=True)  # adopted: it shares the old one's bytes
        (here / name).write_text(text, encoding="utf-8")
    return files_written()


def files_written() -> tuple[str, ...]:
    """The files that write_polygraphy writes, relative to the bundle."""
    return tuple(f"{FOLDER}/{name}" for name in (INPUTS, OUTPUTS, LIMITS, *SCRIPTS))


def chosen_cases(truth: Truth, budget: int) -> tuple[Case, ...]:
    """The cases whose outputs fit the budget together, the smallest first, one at least; in the truth's order."""
    sizes = {
        case.name: sum(v.numel() * v.element_size() for v in truth.results[case.name].values())
        for case in truth.cases
    }
    names: set[str] = set()
    total = 0
    for name in sorted(sizes, key=lambda n: sizes[n]):
        total += sizes[name]
        if names and total > budget:
            break
        names.add(name)
    return tuple(case for case in truth.cases if case.name in names)


def _plain(tensor: torch.Tensor) -> np.ndarray:
    return numpy_from_tensor(tensor.float() if tensor.is_floating_point() else tensor)


def _limits_of(
    variant: VariantRecord, truth: Truth, cases: Sequence[Case], limits: Limits, model: Path
) -> dict[str, Any]:
    """One variant: input types, floors by case, and for each output what checks.py holds it to."""
    precision = dtype_from_name(variant.computes)
    floats = [d for d in (dtype_from_name(o.dtype) for o in variant.outputs) if d.floating]
    floor = truth.floor(precision, floats[0] if floats else precision)
    over = limits.max_error_over_floor
    outputs: dict[str, Any] = {}
    for record in variant.outputs:
        spreads = _spreads(floor, record.name, cases)
        known = over is not None and bool(spreads) and all(math.isfinite(s.rms) for s in spreads)
        greedy = known and record.name == truth.vocabulary
        language = record.name == truth.vocabulary and sets_language_limits(limits)
        outputs[record.name] = {
            "dtype": record.dtype,
            "min_cosine": limits.min_cosine,
            "language": _language(variant, truth, cases, limits, model) if language else {},
            "max_rms": over * max(s.rms for s in spreads) if known and over is not None else None,
            "greedy_gap": 2 * over * max(s.max_abs for s in spreads) if greedy and over else None,
        }
    return {
        "inputs": {record.name: record.dtype for record in variant.inputs},
        "floor_dtype": floor.dtype.value,
        "limits": dataclasses.asdict(limits),
        "outputs": outputs,
        "floors": {
            case.name: {name: _sums(spread) for name, spread in floor.spreads[case.name].items()}
            for case in cases
        },
    }


def _language(
    variant: VariantRecord, truth: Truth, cases: Sequence[Case], limits: Limits, model: Path
) -> dict[str, dict[str, Any]]:
    """What each case may lose as language, beside what the graph itself loses by TensorRT's rules."""
    runner = TypedRunner(model)
    judged = [v for v in variant.verdicts if v.runner == TypedRunner.name]

    def logits_of(case: Case) -> torch.Tensor:
        outputs = runner.run(feeds_for(variant.inputs, case.feeds), ()).outputs
        return outputs[str(truth.vocabulary)]

    try:
        return language_limits(truth, cases, limits, logits_of, judged[0] if judged else None)
    finally:
        runner.close()


def _spreads(floor: Floor, output: str, cases: Sequence[Case]) -> list[Spread]:
    by_case = (floor.spreads[case.name] for case in cases)
    return [spreads[output] for spreads in by_case if output in spreads]


def _sums(spread: Spread) -> dict[str, Any]:
    """What a floor is read back from (results.py); a number that is not finite becomes null."""
    sums = {
        "count": spread.count,
        "abs_sum": spread.abs_sum,
        "square_sum": spread.square_sum,
        "max_abs": spread.max_abs,
        "nonfinite": spread.nonfinite,
    }
    return {key: value if math.isfinite(value) else None for key, value in sums.items()}
