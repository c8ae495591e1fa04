"""What the proof commands compare, opened by its name: also what only a recipe can give, the PyTorch reference; and the
latencies that a bundle keeps.

recipe.toml, smollm2, BUNDLE:reference    the PyTorch module with the checkpoint's weights, in float64
everything else                           validate/divergence/sources.py
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .core.dtypes import DType, dtype_from_name
from .core.errors import UsageError

if TYPE_CHECKING:
    import torch

    from .core.bundle import Bundle
    from .recipe import Recipe
    from .validate.divergence import Diff, ModuleSide, Side
    from .validate.latency import BenchRecord

BENCH = "bench.json"  # in a bundle
REFERENCE = ":reference"


def diff_files(
    reference: str,
    candidate: str,
    *,
    inputs: Path | None = None,
    shapes: str = "",
    seed: int = 0,
    exact: bool = False,
    dtype: str | None = None,
    tolerance: float = 1.0,
    output: Path | None = None,
) -> "Diff":
    """Open both sides and compare them; see validate.divergence.diff.

    shapes: of seeded inputs, as trtexec spells them. dtype: what saved values, or the PyTorch module as the
    candidate, were computed in. output: folder for the smallest graph that shows the divergence.
    """
    from .console import drawn_progress
    from .core.shapes import parse_shapes
    from .validate.divergence import DiffOptions, diff, saved_tensors

    computed = None if dtype is None else dtype_from_name(dtype)
    options = DiffOptions(
        inputs=None if inputs is None else saved_tensors(inputs),
        shapes=parse_shapes(shapes),
        seed=seed,
        exact=exact,
        dtype=computed,
        tolerance=tolerance,
        repro=output,
    )
    sides = open_side(reference), open_side(candidate, computed)
    with drawn_progress() as progress:
        return diff(*sides, options, progress)


def open_side(text: str, dtype: DType | None = None) -> "Side":
    """The side that `text` names; dtype: of a PyTorch module, float64 if none."""
    from .core.bundle import Bundle
    from .validate.divergence import golden_inputs, open_source

    if text.endswith(REFERENCE) and Path(text.removesuffix(REFERENCE)).is_dir():
        from .recipe import recipe_from_dict

        bundle = Bundle.open(text.removesuffix(REFERENCE))
        recipe = recipe_from_dict(bundle.manifest.recipe, f"recipe of bundle {bundle.path}")
        return module_side(text, recipe, dtype, golden_inputs(bundle))
    if text.endswith(".toml") or (
        not Path(text).suffix and not Path(text).exists() and ":" not in text
    ):
        from .recipe import load_recipe

        return module_side(text, load_recipe(text), dtype, {})
    return open_source(text)


def module_side(
    label: str,
    recipe: "Recipe",
    dtype: DType | None,
    golden: "dict[str, Mapping[str, torch.Tensor]]",
) -> "ModuleSide":
    """The recipe's PyTorch module as a side."""
    import torch

    from .model.build import load_module, signature
    from .model.checkpoints import Checkpoint, open_checkpoint, preset_checkpoint
    from .validate.divergence import ModuleSide

    model = recipe.model
    checkpoint: Checkpoint
    if model.preset is not None:
        checkpoint = preset_checkpoint(model.preset, seed=model.seed)
    elif model.checkpoint is not None:
        checkpoint = open_checkpoint(model.checkpoint)
    else:
        raise UsageError(f"module of {label}", found="the recipe names no model")
    records, outputs = signature(checkpoint.config, recipe.layer, DType.FP32)
    names = frozenset(checkpoint.names())
    return ModuleSide(
        label=label,
        load=lambda wanted: load_module(checkpoint, layer=recipe.layer, dtype=wanted),
        inputs=records,
        outputs=tuple(record.name for record in outputs),
        dtype=torch.float64 if dtype is None else dtype.torch,
        golden=golden,
        read=lambda name: checkpoint.read(name, torch.float64) if name in names else None,
    )


def keep_bench(bundle: "Bundle", record: "BenchRecord") -> None:
    """Put `record` into the bundle in place of an earlier one, and write the bundle's report again."""
    from .core.bundle import adopt, seal, write_bundle
    from .stages import report_stage

    manifest = bundle.manifest.model_copy(update={"bench": BENCH})
    with write_bundle(bundle.path) as folder:
        text = record.model_dump_json(indent=1) + "\n"
        (folder / BENCH).write_text(text, encoding="utf-8")
        adopt(bundle, folder)
        seal(folder, report_stage(manifest, folder))
