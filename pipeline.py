"""The build script: recipe -> checkpoint -> graphs -> truth -> engines -> verdicts -> bundle."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.bundle import Bundle, adopt, check_destination, seal, write_bundle
from .core.dtypes import DType
from .core.errors import BuildError, GateError, UsageError
from .core.progress import Progress, Step, silent
from .core.shapes import Dim, Profile, check_profiles, profile_from_text
from .recipe import Recipe, load_recipe, recipe_from_dict
from .sections import QUANTIZED
from .stages import (
    REPORT,
    Job,
    compile_requests,
    compile_stage,
    export_stage,
    report_stage,
    validate_stage,
)
from .validate.limits import check_applicable

if TYPE_CHECKING:
    from .build_outlook import BuildOutlook
    from .engines.compile import DryRun
    from .engines.compile_many import Compiler
    from .engines.target import Target
    from .model.checkpoints import Checkpoint


def build(
    recipe: Recipe | str | Path | dict[str, Any],
    output: str | Path | None = None,
    *,
    targets: Sequence[str] | None = None,
    check: bool = True,
    progress: Progress = silent,
    compiler: "Compiler | None" = None,
) -> Bundle:
    """Go the whole way from a recipe to a bundle with engines, verdicts and a report.

    recipe: a Recipe, the same as nested dictionaries, a TOML file or the name of a ready recipe.
    output: the bundle's folder, `bundles/<name>` if None; an earlier bundle there is replaced.
    targets: instead of the recipe's. check: raise GateError when a limit is missed (the bundle is
    written either way, with its failed verdicts). compiler: who builds the engines, one by one in this process if None.
    Raises UsageError, UnavailableError (a target needs what this machine lacks), BuildError,
    ArtefactError; after any of them nothing is left behind and an earlier bundle stands.
    """
    recipe = _recipe(recipe)
    job = _start(recipe, output, recipe.engines.targets if targets is None else targets)
    with write_bundle(job.output) as folder:
        manifest = export_stage(job, folder, progress)
        manifest = compile_stage(recipe, job.targets, manifest, folder, folder, progress, compiler)
        manifest = validate_stage(job, manifest, folder, folder, progress)
        manifest = report_stage(manifest, folder)
        progress(Step("write bundle"))
        seal(folder, manifest)
    bundle = Bundle.open(job.output)
    if check and bundle.manifest.failures:
        raise GateError(
            f"build {recipe.name}",
            found="; ".join(bundle.manifest.failures),
            fix=f"The bundle with its report is at {bundle.path}",
        )
    return bundle


def dry_run_build(
    recipe: Recipe | str | Path | dict[str, Any],
    output: str | Path | None = None,
    *,
    targets: Sequence[str] | None = None,
) -> "BuildOutlook":
    """What `build` would do with the same arguments; nothing is built and no bundle written. Raises what it raises before that.

    A checkpoint that comes in the parts of several packages is still joined in the user's cache, to be read.
    """
    from .build_outlook import outlook_of

    recipe = _recipe(recipe)
    return outlook_of(
        _start(recipe, output, recipe.engines.targets if targets is None else targets)
    )


def export(
    recipe: Recipe | str | Path | dict[str, Any],
    output: str | Path | None = None,
    *,
    progress: Progress = silent,
) -> Bundle:
    """Write a bundle that holds the graphs and their weights only. Arguments and errors as `build`."""
    job = _start(_recipe(recipe), output, ())
    with write_bundle(job.output) as folder:
        seal(folder, export_stage(job, folder, progress))
    return Bundle.open(job.output)


def compile_bundle(
    bundle: Bundle, targets: Sequence[str], *, progress: Progress = silent
) -> Bundle:
    """Compile every graph of `bundle` for `targets`; an engine that it already has is built anew.

    Raises as `build`; on an error the bundle stays as it was.
    """
    bundle.verify()
    recipe, parsed = _recipe_of(bundle), _targets(targets)
    with write_bundle(bundle.path) as folder:
        manifest = compile_stage(recipe, parsed, bundle.manifest, bundle.path, folder, progress)
        adopt(bundle, folder)
        seal(folder, report_stage(manifest, folder))
    return Bundle.open(bundle.path)


def dry_run_bundle(bundle: Bundle, targets: Sequence[str]) -> "list[tuple[str, DryRun]]":
    """What compile_bundle would do: (precision, dry run) for every graph and target. Builds and writes nothing.

    Raises as compile_bundle does before it builds; a form known to be refused is in the dry run's preflight.
    """
    from .engines.compile import dry_run

    bundle.verify()
    recipe, parsed = _recipe_of(bundle), _targets(targets)
    requests = compile_requests(recipe, parsed, bundle.manifest, bundle.path, bundle.path)
    return [(request.folder.name, dry_run(request)) for request in requests]


def validate_bundle(bundle: Bundle, *, progress: Progress = silent) -> Bundle:
    """Judge every graph of `bundle` against the reference again; the new verdicts replace the old.

    Needs the recipe's checkpoint. Raises as `build`; a missed limit is in `manifest.failures`.
    """
    bundle.verify()
    job = _start(_recipe_of(bundle), bundle.path, ())
    with write_bundle(bundle.path) as folder:
        manifest = validate_stage(job, bundle.manifest, bundle.path, folder, progress)
        adopt(bundle, folder)
        seal(folder, report_stage(manifest, folder))
    return Bundle.open(bundle.path)


def report_bundle(bundle: Bundle) -> Path:
    """Write the report of `bundle` again and return its path; ArtefactError when the bundle is damaged."""
    bundle.verify()
    with write_bundle(bundle.path) as folder:
        adopt(bundle, folder)
        seal(folder, report_stage(bundle.manifest, folder))
    return bundle.path / REPORT


def _recipe(recipe: Recipe | str | Path | dict[str, Any]) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    return recipe_from_dict(recipe) if isinstance(recipe, dict) else load_recipe(recipe)


def _start(recipe: Recipe, output: str | Path | None, targets: Sequence[str]) -> Job:
    """Check targets, destination, checkpoint and shapes, the cheapest first."""
    from .model.build import signature
    from .model.checkpoints import open_checkpoint, preset_checkpoint

    parsed = _targets(targets)
    _check_bf16(recipe, parsed)
    path = Path("bundles") / recipe.name if output is None else Path(output)
    check_destination(path)
    model = recipe.model
    checkpoint: Checkpoint
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
    dims = {record.name: record.dims for record in inputs}
    profiles = tuple(
        profile_from_text(shapes.min, shapes.opt, shapes.max, dims) for shapes in recipe.all_shapes
    )
    check_profiles(profiles, dims)
    context = checkpoint.config.max_position_embeddings
    for profile in profiles:
        _check_context(profile, dims, context)
    decoder = recipe.layer is None
    text = decoder and checkpoint.tokenizer() is not None
    for precision in recipe.export.precisions:
        check_applicable(recipe.limits_of(precision), language=decoder, text=text)
    return Job(recipe, path, checkpoint, profiles, parsed)


def _check_context(profile: Profile, dims: Mapping[str, tuple[Dim, ...]], context: int) -> None:
    """Raise UsageError for a sequence longer than the model was made for."""
    for name, axes in dims.items():
        for axis, longest in zip(axes, profile[name].max, strict=True):
            if axis == "sequence" and longest > context:
                raise UsageError(
                    f"profile of input {name!r}",
                    found=f"max sequence {longest}, but the model was made for {context} positions",
                    fix=f"Give at most {context}",
                )


def _recipe_of(bundle: Bundle) -> Recipe:
    return recipe_from_dict(bundle.manifest.recipe, f"recipe of bundle {bundle.path}")


def _check_bf16(recipe: Recipe, targets: "tuple[Target, ...]") -> None:
    """BuildError, in the words of the compile stage, for a graph with BF16 products and ONNX Runtime on the CPU."""
    from .engines.onnxruntime_api import lacks_kernel, version

    base = recipe.quantize.base
    low = [p for p in recipe.export.precisions if "bf16" in (p, base if p in QUANTIZED else p)]
    for target in targets:
        if low and str(target) == "onnxruntime:cpu":
            raise BuildError(
                f"precision {low[0]} for target {target}",
                found=f"{version()} has no kernel for products in bf16",
                fix=lacks_kernel(target.device),
            )


def _targets(names: Sequence[str]) -> "tuple[Target, ...]":
    """The targets by name; UsageError for one that does not exist, UnavailableError for what is missing here."""
    from .engines.requirements import check_available
    from .engines.target import Target

    parsed = tuple(Target.parse(name) for name in names)
    for target in parsed:
        check_available(target)
    return parsed
