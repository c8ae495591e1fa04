"""The graphs of a recipe: one FP32 graph, exported and verified, and every other precision made from it.

checkpoint -> FP32 graph + calibration feeds -> fp16, bf16 -> fp8, int8, int4, ...
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .calibration import Calibration, calibration_feeds
from .conversion import quantization_record, typing_record
from .core.conversion import QuantizationRecord, TypingRecord
from .core.dtypes import DType, dtype_from_name
from .core.manifest import VariantRecord, range_records
from .core.progress import Progress, Step
from .core.shapes import Profile
from .quantization import as_declared
from .recipe import Recipe
from .sections import QUANTIZED

if TYPE_CHECKING:
    import torch

    from .export.quantize.options import QuantizeOptions
    from .graph.spec import Summary
    from .model.checkpoints import Checkpoint

    Feeds = Sequence[Mapping[str, torch.Tensor]]


TYPING_FEEDS = 2  # enough for magnitudes, which have a margin; scales are taken from all


def make_variants(
    recipe: Recipe,
    checkpoint: "Checkpoint",
    profile: Profile,
    folder: Path,
    progress: Progress,
) -> tuple[VariantRecord, ...]:
    """Write `<folder>/<precision>/model.onnx` for every precision of the recipe; returns their records.

    The FP32 graph is verified against the module. Raises what export_variant, typed_file and quantize_file raise.
    """
    precisions = recipe.export.precisions
    variants = []
    with _wide_graph(recipe, checkpoint, folder, progress) as wide:
        calibration = None
        for name in precisions:
            if name != "fp32" and calibration is None:
                progress(Step("calibration inputs"))
                calibration = calibration_feeds(recipe, checkpoint, profile)
            made = _make(recipe, name, wide, folder / name, profile, calibration, progress)
            variants.append(_record(recipe, checkpoint, profile, folder, made))
    return tuple(variants)


@dataclass(frozen=True, slots=True)
class _Made:
    """One graph on disk and how it came about."""

    precision: str
    path: Path
    opset: int
    summary: "Summary"
    typing: TypingRecord | None = None
    quantization: QuantizationRecord | None = None
    packed: dict[str, tuple[str, ...]] = field(default_factory=dict)


@contextmanager
def _wide_graph(
    recipe: Recipe, checkpoint: "Checkpoint", folder: Path, progress: Progress
) -> Iterator[_Made]:
    """The FP32 graph with FP32 inputs and outputs; it goes to the bundle where the recipe asks for just that."""
    from .export.export import export_variant

    wanted = recipe.export
    kept = "fp32" in wanted.precisions and wanted.io in ("graph", "fp32") and not wanted.pack
    with tempfile.TemporaryDirectory(prefix=".fp32.", dir=folder) as scratch:
        exported = export_variant(
            checkpoint,
            layer=recipe.layer,
            precision=DType.FP32,
            io=DType.FP32,
            folder=folder / "fp32" if kept else Path(scratch) / "fp32",
            progress=progress,
        )
        yield _Made("fp32", exported.path, exported.opset, exported.summary)


def _make(
    recipe: Recipe,
    name: str,
    wide: _Made,
    folder: Path,
    profile: Profile,
    calibration: Calibration | None,
    progress: Progress,
) -> _Made:
    """The graph of one precision, from the FP32 graph."""
    base = DType(recipe.quantize.base) if name in QUANTIZED else dtype_from_name(name)
    io = base if recipe.export.io == "graph" else dtype_from_name(recipe.export.io)
    if wide.path.parent == folder:
        return wide
    folder.mkdir()
    final = folder / "model.onnx"
    with tempfile.TemporaryDirectory(prefix=".typed.", dir=folder.parent) as scratch:
        ends = name not in QUANTIZED and not recipe.export.pack
        typed = final if ends else Path(scratch) / "model.onnx"
        typing = None
        if name != "fp32":
            assert calibration is not None
            typing = _typed(wide.path, typed, base, io, calibration, progress)
        elif io is DType.FP32:
            typed = wide.path
        else:
            _cast_edges(wide.path, typed, io)
        if name in QUANTIZED:
            assert calibration is not None
            quantization = _quantized(recipe, name, typed, final, profile, calibration, progress)
            return _finished(name, final, typing=typing, quantization=quantization)
        packed = _packed(typed, final, progress) if recipe.export.pack else {}
    return _finished(name, final, typing=typing, packed=packed)


def _packed(source: Path, output: Path, progress: Progress) -> dict[str, tuple[str, ...]]:
    from .export.linears.packed_file import pack_file

    progress(Step("pack linears"))
    return pack_file(source, output)


def _typed(
    source: Path, output: Path, base: DType, io: DType, calibration: Calibration, progress: Progress
) -> TypingRecord:
    from .export.precision import PrecisionOptions, typed_file

    options = PrecisionOptions(base, io="graph" if io is base else "keep")
    report = typed_file(source, output, calibration.feeds[:TYPING_FEEDS], options, progress)
    if io not in (base, DType.FP32):
        _cast_edges(output, output, io)
    return typing_record(report)


def _quantized(
    recipe: Recipe,
    name: str,
    source: Path,
    output: Path,
    profile: Profile,
    calibration: Calibration,
    progress: Progress,
) -> QuantizationRecord:
    from .export.quantize.quantize import quantize_file

    options = quantize_options(recipe, name)
    base, search = recipe.quantize.base, recipe.quantize.search
    lines: tuple[str, ...] = ()
    feeds = as_declared(
        source, calibration.feeds
    )  # a block's are FP32, its typed graph's may not be
    if search is None:
        report = quantize_file(source, output, feeds, options, progress)
    else:
        from .export.search.cost import roofline
        from .export.search.ranking import Budget
        from .export.search.search import search_file

        budget = Budget(*search.budget, search.order, search.min_quantized_share)
        tokens = math.prod(next(iter(profile.values())).opt[:2])
        limits = roofline(search.gpu, tokens)
        trial = as_declared(source, calibration.trial)
        found = search_file(source, output, feeds, trial, options, budget, limits, progress)
        report, lines = found.quantize, found.lines(base)
    if report.calibration is not None:
        seen = report.calibration.model_copy(update={"source": calibration.source})
        seen.save(output.with_name("calibration.json"))
    record = quantization_record(report, base, options.observes, calibration)
    return record.model_copy(update={"search": lines})


def quantize_options(recipe: Recipe, name: str) -> "QuantizeOptions":
    """How the recipe has the quantised precision `name` made; UsageError for what does not go together."""
    from .export.quantize.options import QuantizeOptions

    wanted = recipe.quantize.model_dump(exclude={"base", "search"})
    if name != "fp8":  # activations stay in the base type
        wanted |= {"attention": False, "epilogues": False, "observer": None}
    return QuantizeOptions(**wanted, format=name)  # type: ignore[arg-type]


def _cast_edges(source: Path, output: Path, io: DType) -> None:
    """Write the graph with inputs and outputs in another float type."""
    from .export.driver import run_passes
    from .export.precision import cast_edges
    from .graph.io import load_model, save_model

    model = load_model(source)
    run_passes(model, (cast_edges(io),))
    save_model(model, output)


def _finished(
    name: str,
    path: Path,
    *,
    typing: TypingRecord | None = None,
    quantization: QuantizationRecord | None = None,
    packed: dict[str, tuple[str, ...]] | None = None,
) -> _Made:
    from .graph.io import load_model
    from .graph.spec import summarise

    model = load_model(path)
    opset = model.opset_imports[""]
    return _Made(name, path, opset, summarise(model), typing, quantization, packed or {})


def _record(
    recipe: Recipe, checkpoint: "Checkpoint", profile: Profile, folder: Path, made: _Made
) -> VariantRecord:
    return VariantRecord.model_validate(
        {
            "precision": made.precision,
            "model": made.path.relative_to(folder).as_posix(),
            "opset": made.opset,
            "inputs": made.summary.inputs,
            "outputs": made.summary.outputs,
            "profile": range_records(profile),
            "operators": made.summary.operators,
            "dtypes": made.summary.dtypes,
            "num_blocks": 1 if recipe.layer is not None else checkpoint.config.num_layers,
            "typing": made.typing,
            "quantization": made.quantization,
            "packed": made.packed,
        }
    )
