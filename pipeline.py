"""The build script: recipe -> checkpoint -> graphs -> truth -> engines -> verdicts -> bundle."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.bundle import Bundle, adopt, check_destination, seal, write_bundle
from .core.dtypes import DType
from .core.errors import GateError, UsageError
from .core.progress import Progress, silent
from .core.shapes import profile_from_text
from .recipe import Recipe, load_recipe, recipe_from_dict
from .stages import REPORT, Job, compile_stage, export_stage, report_stage, validate_stage

if TYPE_CHECKING:
    from .model.checkpoints import Checkpoint


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
        manifest = export_stage(job, folder, progress)
        manifest = compile_stage(job, manifest, folder, folder, progress)
        manifest = validate_stage(job, manifest, folder, folder, progress)
        seal(folder, report_stage(manifest, folder))
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
        seal(folder, export_stage(job, folder, progress))
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
        manifest = compile_stage(job, bundle.manifest, bundle.path, folder, progress)
        adopt(bundle, folder)
        seal(folder, report_stage(manifest, folder))
    return Bundle.open(bundle.path)


def validate_bundle(bundle: Bundle, *, progress: Progress = silent) -> Bundle:
    """Judge every graph of `bundle` against the reference again; the new verdicts replace the old.

    Needs the recipe's checkpoint. Raises as `build`; a missed limit is in `manifest.failures`.
    """
    bundle.verify()
    job = _resume(bundle, ())
    with write_bundle(bundle.path) as folder:
        manifest = validate_stage(job, bundle.manifest, bundle.path, folder, progress)
        adopt(bundle, folder)
        seal(folder, report_stage(manifest, folder))
    return Bundle.open(bundle.path)


def report_bundle(bundle: Bundle) -> Path:
    """Write the report of `bundle` again and return its path."""
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
    shapes = recipe.shapes
    dims = {record.name: record.dims for record in inputs}
    profile = profile_from_text(shapes.min, shapes.opt, shapes.max, dims)
    return Job(recipe, path, checkpoint, profile, parsed)


def _resume(bundle: Bundle, targets: Sequence[str]) -> Job:
    """The job that made `bundle`, from the recipe in its manifest."""
    recipe = recipe_from_dict(bundle.manifest.recipe, f"recipe of bundle {bundle.path}")
    return _start(recipe, bundle.path, targets)
