"""The build script: recipe -> checkpoint -> graphs -> truth -> engines -> verdicts -> bundle."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.bundle import Bundle, adopt, check_destination, seal, write_bundle
from .core.dtypes import DType, dtype_from_name
from .core.errors import GateError, UsageError
from .core.manifest import EngineRecord, Manifest, RangeRecord, VariantRecord
from .core.progress import Progress, silent
from .core.shapes import Profile, ShapeRange, profile_from_text
from .recipe import Recipe, load_recipe, recipe_from_dict

if TYPE_CHECKING:
    from .engines.target import Target
    from .model.checkpoints import Checkpoint

GOLDEN = "golden.safetensors"
REPORT = "report.html"
TOOLS = (
    "blockforge", "torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "tensorrt-rtx",
    "tensorrt", "polygraphy", "safetensors", "gguf", "numpy",
)  # fmt: skip


def build(
    recipe: Recipe | str | Path | dict[str, Any],
    output: str | Path | None = None,
    *,
    targets: Sequence[str] | None = None,
    check: bool = True,
    progress: Progress = silent,
) -> Bundle:
    """Go the whole way from a recipe to a bundle with engines, verdicts and a report.

    recipe: a Recipe, the same as nested dictionaries, a TOML file or the name of a ready recipe.
    output: the bundle's folder, `bundles/<name>` if None; an earlier bundle there is replaced.
    targets: instead of the recipe's. check: raise GateError when a limit is missed (the bundle is
    written either way, with its failed verdicts).
    Raises UsageError, UnavailableError (a target needs what this machine lacks), BuildError,
    ArtefactError; after any of them nothing is left behind and an earlier bundle stands.
    """
    recipe = _recipe(recipe)
    job = _start(recipe, output, recipe.engines.targets if targets is None else targets)
    with write_bundle(job.output) as folder:
        manifest = _export(job, folder, progress)
        manifest = _compile(job, manifest, folder, folder, progress)
        manifest = _validate(job, manifest, folder, folder, progress)
        seal(folder, _report(manifest, folder))
    bundle = Bundle.open(job.output)
    if check and bundle.manifest.failures:
        raise GateError(
            f"build {recipe.name}",
            found="; ".join(bundle.manifest.failures),
            fix=f"The bundle with its report is at {bundle.path}",
        )
    return bundle


def export(
    recipe: Recipe | str | Path | dict[str, Any],
    output: str | Path | None = None,
    *,
    progress: Progress = silent,
) -> Bundle:
    """Write a bundle that holds the graphs and their weights only. Arguments and errors as `build`."""
    job = _start(_recipe(recipe), output, ())
    with write_bundle(job.output) as folder:
        seal(folder, _export(job, folder, progress))
    return Bundle.open(job.output)


def compile_bundle(
    bundle: Bundle, targets: Sequence[str], *, progress: Progress = silent
) -> Bundle:
    """Compile every graph of `bundle` for `targets`; an engine that it already has is built anew.

    Raises as `build`; on an error the bundle stays as it was.
    """
    bundle.verify()
    job = _resume(bundle, targets)
    with write_bundle(bundle.path) as folder:
        manifest = _compile(job, bundle.manifest, bundle.path, folder, progress)
        adopt(bundle, folder)
        seal(folder, _report(manifest, folder))
    return Bundle.open(bundle.path)


def validate_bundle(bundle: Bundle, *, progress: Progress = silent) -> Bundle:
    """Judge every graph of `bundle` against the reference again; the new verdicts replace the old.

    Needs the recipe's checkpoint. Raises as `build`; a missed limit is in `manifest.failures`.
    """
    bundle.verify()
    job = _resume(bundle, ())
    with write_bundle(bundle.path) as folder:
        manifest = _validate(job, bundle.manifest, bundle.path, folder, progress)
        adopt(bundle, folder)
        seal(folder, _report(manifest, folder))
    return Bundle.open(bundle.path)


def report_bundle(bundle: Bundle) -> Path:
    """Write the report of `bundle` again and return its path."""
    with write_bundle(bundle.path) as folder:
        adopt(bundle, folder)
        seal(folder, _report(bundle.manifest, folder))
    return bundle.path / REPORT


@dataclass(frozen=True, slots=True)
class _Job:
    """What is settled before the first long stage: everything that can be refused early has been."""

    recipe: Recipe
    output: Path
    checkpoint: "Checkpoint"
    profile: Profile
    targets: "tuple[Target, ...]"


def _recipe(recipe: Recipe | str | Path | dict[str, Any]) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    return recipe_from_dict(recipe) if isinstance(recipe, dict) else load_recipe(recipe)


def _start(recipe: Recipe, output: str | Path | None, targets: Sequence[str]) -> _Job:
    """Check targets, destination, checkpoint and shapes, the cheapest first."""
    from .engines.requirements import check_available
    from .engines.target import Target
    from .model.build import signature
    from .model.checkpoints import open_checkpoint, preset_checkpoint

    parsed = tuple(Target.parse(t) for t in targets)
    for target in parsed:
        check_available(target)
    path = Path("bundles") / recipe.name if output is None else Path(output)
    check_destination(path)
    model = recipe.model
    if model.preset is not None:
        checkpoint = preset_checkpoint(model.preset, seed=model.seed)
    else:
        assert model.checkpoint is not None  # the recipe has exactly one source
        checkpoint = open_checkpoint(model.checkpoint)
    num_layers = checkpoint.config.num_layers
    if recipe.layer is not None and recipe.layer >= num_layers:
        raise UsageError(
            f"block {recipe.layer} of {checkpoint.source}",
            found=f"the model has {num_layers} blocks",
            fix=f"Give layer = 0 to {num_layers - 1}",
        )
    inputs, _ = signature(checkpoint.config, recipe.layer, DType.FP32)
    shapes = recipe.shapes
    dims = {record.name: record.dims for record in inputs}
    profile = profile_from_text(shapes.min, shapes.opt, shapes.max, dims)
    return _Job(recipe, path, checkpoint, profile, parsed)


def _resume(bundle: Bundle, targets: Sequence[str]) -> _Job:
    """The job that made `bundle`, from the recipe in its manifest."""
    recipe = recipe_from_dict(bundle.manifest.recipe, f"recipe of bundle {bundle.path}")
    return _start(recipe, bundle.path, targets)


def _export(job: _Job, folder: Path, progress: Progress) -> Manifest:
    from .export.export import export_variant

    variants = []
    for name in job.recipe.export.precisions:
        precision = dtype_from_name(name)
        io = precision if job.recipe.export.io == "graph" else dtype_from_name(job.recipe.export.io)
        exported = export_variant(
            job.checkpoint,
            layer=job.recipe.layer,
            precision=precision,
            io=io,
            folder=folder / name,
            progress=progress,
        )
        variants.append(
            VariantRecord(
                precision=name,
                model=exported.path.relative_to(folder).as_posix(),
                opset=exported.opset,
                inputs=exported.summary.inputs,
                outputs=exported.summary.outputs,
                profile={
                    key: RangeRecord(min=r.min, opt=r.opt, max=r.max)
                    for key, r in job.profile.items()
                },
                operators=exported.summary.operators,
                dtypes=exported.summary.dtypes,
                num_blocks=1 if job.recipe.layer is not None else job.checkpoint.config.num_layers,
            )
        )
    return Manifest(
        name=job.recipe.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        recipe=job.recipe.model_dump(mode="json", by_alias=True, exclude_none=True),
        tools=_tool_versions(),
        machine={"system": platform.platform(terse=True), "python": platform.python_version()},
        variants=tuple(variants),
    )


def _compile(
    job: _Job, manifest: Manifest, source: Path, folder: Path, progress: Progress
) -> Manifest:
    """Compile the graphs in `source`; the engines go to `folder`."""
    from .engines.compile import CompileRequest, compile_engine

    variants = []
    for variant in manifest.variants:
        profile = {n: ShapeRange(r.min, r.opt, r.max) for n, r in variant.profile.items()}
        engines = {engine.target: engine for engine in variant.engines}
        for target in job.targets:
            request = CompileRequest(
                model=source / variant.model,
                target=target,
                profile=profile,
                folder=folder / variant.precision,
                num_blocks=variant.num_blocks,
            )
            engine = compile_engine(request, progress)
            engines[str(target)] = _in_bundle(engine, variant.precision, job.recipe)
        variants.append(variant.model_copy(update={"engines": tuple(engines.values())}))
    return manifest.model_copy(update={"variants": tuple(variants)})


def _in_bundle(engine: EngineRecord, precision: str, recipe: Recipe) -> EngineRecord:
    """The record with paths that start at the bundle; without dtype violations where none are wanted."""
    paths = {
        key: f"{precision}/{path}"
        for key, path in (("path", engine.path), ("layers", engine.layers))
        if path is not None
    }
    violations = engine.violations if recipe.engines.require_dtype else ()
    return engine.model_copy(update={**paths, "violations": violations})


def _validate(
    job: _Job, manifest: Manifest, source: Path, folder: Path, progress: Progress
) -> Manifest:
    """Judge the graphs in `source`; the golden file goes to `folder`."""
    from .validate.golden import write_golden
    from .validate.inputs import InputPlan
    from .validate.judge import Variant, judge_variant, truth_for

    settings = job.recipe.validate_
    truth = truth_for(
        job.checkpoint,
        layer=job.recipe.layer,
        profile=job.profile,
        plan=InputPlan(seed=settings.seed, text_tokens=settings.tokens, window=settings.tokens),
        text=_text(settings.text),
        progress=progress,
    )
    variants = []
    for record in manifest.variants:
        variant = Variant(
            precision=dtype_from_name(record.precision),
            model=source / record.model,
            inputs=record.inputs,
            outputs=record.outputs,
        )
        verdicts = judge_variant(truth, variant, settings.limits, progress)
        variants.append(record.model_copy(update={"verdicts": tuple(verdicts)}))
    write_golden(folder / GOLDEN, truth)
    return manifest.model_copy(update={"variants": tuple(variants), "golden": GOLDEN})


def _text(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"text {path}", found=str(error), fix="Name a UTF-8 text file") from None


def _report(manifest: Manifest, folder: Path) -> Manifest:
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
