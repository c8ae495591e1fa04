"""A built engine as a side of a comparison: it runs on its own GPU and shows its outputs only.

BUNDLE:PRECISION@TARGET, or the path of a .plan inside a bundle -> PlanSide
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ...core.bundle import MANIFEST, Bundle
from ...core.dtypes import DType, dtype_from_name
from ...core.errors import UnavailableError, UsageError
from ...core.manifest import EngineRecord, TensorRecord, VariantRecord
from ...engines.engine_choice import plan_of
from ...engines.requirements import check_runnable
from ...engines.target import Target
from ..runners import PlanRunner
from .sides import Feeds, Show

PLANS = (".plan", ".engine", ".trt")
SAVED = (
    "Compare the graph that it was built from, or outputs saved on the machine with the GPU "
    "(blockforge run BUNDLE --inputs FILE --target TARGET -o outputs.npz)"
)


@dataclass
class PlanSide:
    """computes: the type of everything in it that is not quantised, which sets the noise. golden: whole inputs by case."""

    label: str
    plan: Path
    runtime: str
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[str, ...]
    computes: DType
    golden: Mapping[str, Feeds] = field(default_factory=dict)

    def run(self, feeds: Feeds, show: Show, names: Collection[str] | None, *, exact: bool) -> None:
        """One run of the engine, opened for it; `exact` changes nothing."""
        types = {record.name: dtype_from_name(record.dtype).torch for record in self.inputs}
        runner = PlanRunner(self.plan, self.runtime)
        try:
            ran = runner.run({name: feeds[name].to(dtype) for name, dtype in types.items()}, ())
        finally:
            runner.close()
        for name, value in ran.outputs.items():
            if names is None or name in names:
                show(name, value)

    def weight(self, name: str) -> torch.Tensor | None:
        """None: a plan does not show its weights."""
        return None

    def release(self) -> None:
        """Nothing is held between runs."""


def bundle_plan(
    bundle: Bundle, precision: str | None, target: str, golden: Mapping[str, Feeds]
) -> PlanSide:
    """The bundle's engine for `target`; raises UnavailableError where it cannot run here, ArtefactError where there is none."""
    variant = bundle.manifest.variant(precision or None)
    engine = plan_of(bundle, variant, Target.parse(target))
    return _side(bundle, variant, engine, golden)


def plan_file(path: Path) -> tuple[Bundle, str, str]:
    """The bundle that a plan file lies in, its precision and target.

    Raises UnavailableError for a plan outside a bundle: nothing says what its inputs mean and which runtime made it.
    """
    for folder in path.resolve().parents:
        if not (folder / MANIFEST).is_file():
            continue
        bundle = Bundle.open(folder)
        relative = path.resolve().relative_to(folder.resolve()).as_posix()
        for variant in bundle.manifest.variants:
            for engine in variant.engines:
                if engine.path == relative:
                    return bundle, variant.precision, engine.target
    raise UnavailableError(
        f"run {path}",
        found="an engine shows its values on its own GPU only, and one outside a bundle does not say what its inputs mean",
        fix=f"Name it as BUNDLE:PRECISION@TARGET. {SAVED}",
    )


def _side(
    bundle: Bundle, variant: VariantRecord, engine: EngineRecord, golden: Mapping[str, Feeds]
) -> PlanSide:
    target = Target.parse(engine.target)
    if not target.is_tensorrt:
        raise UsageError(
            f"plan of {target}", found="it runs the graph itself", fix="Name a TensorRT target"
        )
    label = f"{bundle.path}:{variant.precision}@{target}"
    try:
        check_runnable(target)
    except UnavailableError as error:
        raise UnavailableError(
            f"run {label}", found=error.found, fix=f"{error.fix}. {SAVED}"
        ) from None
    bundle.verify()  # deserialising an engine runs native code
    return PlanSide(
        label=label,
        plan=bundle.file(str(engine.path)),
        runtime=target.runtime,
        inputs=variant.inputs,
        outputs=tuple(record.name for record in variant.outputs),
        computes=dtype_from_name(variant.computes),
        golden=golden,
    )
