"""The stages between a settled job and a sealed bundle: graphs, engines, verdicts, report."""

import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from .calibration import read_text
from .core.conversion import TypingRecord
from .core.dtypes import DType, dtype_from_name
from .core.manifest import EngineRecord, Manifest, VariantRecord, range_records
from .core.progress import Progress
from .core.shapes import Profile
from .recipe import Recipe
from .variants import make_variants

if TYPE_CHECKING:
    from .engines.compile import CompileRequest
    from .engines.compile_many import Compiler
    from .engines.target import Target
    from .model.checkpoints import Checkpoint

GOLDEN = "golden.safetensors"
REPORT = "report.html"
TOOLS = (
    "blockforge", "torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "tensorrt-rtx",
    "tensorrt", "polygraphy", "safetensors", "gguf", "numpy",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """What is settled before the first long stage: everything that can be refused early has been."""

    recipe: Recipe
    output: Path
    checkpoint: "Checkpoint"
    profiles: tuple[Profile, ...]
    targets: "tuple[Target, ...]"

    @property
    def profile(self) -> Profile:
        """The first: calibration and validation draw their inputs from it."""
        return self.profiles[0]


def export_stage(job: Job, folder: Path, progress: Progress) -> Manifest:
    """Write one graph for each precision of the recipe; the manifest that describes them."""
    from .model.signature import signature

    made = make_variants(job.recipe, job.checkpoint, job.profile, folder, progress)
    more = tuple(map(range_records, job.profiles[1:]))
    known, _ = signature(job.checkpoint.config, job.recipe.layer, DType.FP32)
    below = {record.name: record.below for record in known}
    variants = tuple(
        variant.model_copy(
            update={
                "more_profiles": more,
                "inputs": tuple(
                    record.model_copy(update={"below": below.get(record.name)})
                    for record in variant.inputs
                ),
            }
        )
        for variant in made
    )
    return Manifest(
        name=job.recipe.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        recipe=job.recipe.model_dump(mode="json", by_alias=True, exclude_none=True),
        tools=_tool_versions(),
        machine={"system": platform.platform(terse=True), "python": platform.python_version()},
        variants=variants,
    )


def compile_stage(
    recipe: Recipe,
    targets: "tuple[Target, ...]",
    manifest: Manifest,
    source: Path,
    folder: Path,
    progress: Progress,
    compiler: "Compiler | None" = None,
) -> Manifest:
    """Compile the graphs in `source` for `targets`; the engines go to `folder`. Needs no checkpoint.

    compiler: who builds them; one by one in this process if None.
    """
    from .engines.compile_many import one_by_one

    requests = compile_requests(recipe, targets, manifest, source, folder)
    built = iter((compiler or one_by_one)(requests, progress))
    variants = []
    for variant in manifest.variants:
        engines = {engine.target: engine for engine in variant.engines}
        for target in targets:
            engine = next(built)
            broken = list(engine.violations) if recipe.engines.check_dtype else []
            broken += _unmet(recipe, variant, engine, source, folder)
            engine = engine.model_copy(update={"violations": tuple(broken)})
            engines[str(target)] = engine.under(variant.precision)
        variants.append(variant.model_copy(update={"engines": tuple(engines.values())}))
    return manifest.model_copy(update={"variants": tuple(variants)})


def compile_requests(
    recipe: Recipe,
    targets: "tuple[Target, ...]",
    manifest: Manifest,
    source: Path,
    folder: Path,
) -> "list[CompileRequest]":
    """One request for each variant and target, variant by variant; arguments as compile_stage."""
    from .engines.compile import CompileRequest

    return [
        CompileRequest(
            model=source / variant.model,
            target=target,
            profile=variant.profiles[0],
            more_profiles=variant.profiles[1:],
            folder=folder / variant.precision,
            num_blocks=variant.num_blocks,
            options=recipe.engines.options,
            plugins=recipe.engines.plugins,
        )
        for variant in manifest.variants
        for target in targets
    ]


def _unmet(
    recipe: Recipe, variant: VariantRecord, engine: EngineRecord, source: Path, folder: Path
) -> list[str]:
    """The recipe's demands that the planned kernels do not meet; an ONNX Runtime target plans none."""
    from .engines.assertions import Demands, check_demands
    from .engines.layers_file import load_layers
    from .graph.io import load_model

    wanted = recipe.engines.demands_of(variant.precision)
    if engine.path is None or engine.layers is None:
        return []
    types: dict[str, str] = {
        kind: "fp8_e4m3" if name == "fp8" else name for kind, name in wanted.require_dtype.items()
    }
    demands = Demands(
        max_kernels_per_block=wanted.max_kernels_per_block,
        require_fused=wanted.require_fused,
        require_dtype=types,
        spared=wanted.spared,
    )
    layers = load_layers(folder / variant.precision / engine.layers)
    model = load_model(source / variant.model)
    return [str(v) for v in check_demands(layers.kernels, model, variant.num_blocks, demands)]


def validate_stage(
    job: Job, manifest: Manifest, source: Path, folder: Path, progress: Progress
) -> Manifest:
    """Judge the graphs in `source`; the golden file goes to `folder`."""
    from .validate.golden import write_golden
    from .validate.inputs import InputPlan
    from .validate.judge import Variant, judge_variant, truth_for
    from .validate.polygraphy.write import write_polygraphy
    from .validate.weights import gate_weights, unlike_weights

    settings = job.recipe.validate_
    truth = truth_for(
        job.checkpoint,
        layer=job.recipe.layer,
        profile=job.profile,
        plan=InputPlan(
            seed=settings.seed,
            text_tokens=settings.tokens,
            window=settings.tokens,
            seeds=settings.seeds,
        ),
        text=read_text(settings.text),
        progress=progress,
    )
    variants = []
    for record in manifest.variants:
        variant = Variant(
            precision=dtype_from_name(record.computes),
            model=source / record.model,
            inputs=record.inputs,
            outputs=record.outputs,
            name=record.precision,
        )
        typing = record.typing or TypingRecord()
        unlike = unlike_weights(
            job.checkpoint,
            variant.model,
            progress,
            exponents=typing.exponents,
            by_channel=typing.by_channel,
            packed=record.packed,
        )
        limits = job.recipe.limits_of(record.precision)
        verdicts = judge_variant(truth, variant, limits, progress)
        gated = tuple(gate_weights(verdict, unlike) for verdict in verdicts)
        variants.append(record.model_copy(update={"verdicts": gated}))
    write_golden(folder / GOLDEN, truth)
    judged = manifest.model_copy(update={"variants": tuple(variants), "golden": GOLDEN})
    by_precision = {str(v.precision): job.recipe.limits_of(v.precision) for v in judged.variants}
    write_polygraphy(folder, judged, truth, by_precision, graphs=source)
    return judged


def report_stage(manifest: Manifest, folder: Path) -> Manifest:
    """Write report.html from the manifest and the kernels in `folder`."""
    from .validate.report import write_report

    (folder / REPORT).unlink(missing_ok=True)  # adopted: it shares the old one's bytes
    write_report(folder, manifest)
    return manifest.model_copy(update={"report": REPORT})


def _tool_versions() -> dict[str, str]:
    versions = {}
    for tool in TOOLS:
        try:
            versions[tool] = version(tool)
        except PackageNotFoundError:
            continue
    return versions
