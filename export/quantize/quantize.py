"""Quantise one ONNX file into another: find the linears, pack, calibrate, write the nodes, check, save.

model.onnx + feeds -> model.onnx whose linears read 8- or 4-bit codes, and a report of what was done
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir
import torch

from ...core.errors import UsageError
from ...core.progress import Progress, Step, silent
from ...graph.io import load_model, save_model
from ...graph.output import require_unread
from ...graph.spec import check_graph
from ..calibration.observers import Observed
from ..calibration.record import CalibrationRecord, ValueRecord
from ..linears.find import QUANTIZED_WEIGHT, Linear, find_linears, inner_products
from ..linears.pack import pack_linears
from ..opset import obstacle, raise_opset
from ..precision.prepare import declare_types
from .attention import attention_inputs
from .cache import find_caches, require_caches
from .calibrate import Calibration
from .check import check_quantized
from .epilogues import Folding, fold_epilogues
from .options import QuantizeOptions
from .outcomes import SCALES_OF_THEIR_OWN_TYPE, Outcomes, records_of
from .recognise import require_format
from .report import CacheRecord, QuantizeReport
from .spill import Spill
from .weights import WEIGHT_FORMATS, misfit

OPSETS = (25, 24, 23, 21)  # tried in this order where the file's is older than 23


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the feeds come from, for the record; known: scales of an earlier one, used as they are."""

    source: str = ""
    seed: int | None = None
    known: CalibrationRecord | None = None


def quantize_file(
    source: str | Path,
    output: str | Path,
    feeds: Sequence[Mapping[str, torch.Tensor]],
    options: QuantizeOptions | None = None,
    progress: Progress = silent,
    *,
    origin: Origin = Origin(),
) -> QuantizeReport:
    """Read `source`, quantise it with scales and corrections from `feeds`, write `output` and `<output>.data`.

    feeds: inputs of the graph, as the typed evaluator takes them; may be empty for weights rounded to nearest.
    A file whose linears are quantised to that format already is written as it is, and the report says so. Raises UsageError
    for one in another format, patterns that fit no linear, options or feeds that do not fit, an output that is read, ranges without a scale (NaN, infinity, only zeros) and graphs that quantise
    what must not be, ArtefactError for a damaged file or weights that are not finite. Nothing is left then.
    """
    options = options or QuantizeOptions()
    output = Path(output).absolute()
    require_unread(source, output)
    model = load_model(source)
    check_quantized(model)
    with tempfile.TemporaryDirectory(prefix=".quantize.", dir=_folder(output)) as scratch:
        report = quantize_model(model, feeds, options, Path(scratch), progress, origin)
        save_model(model, output, self_contained=True)
    return report


def _folder(output: Path) -> Path:
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"write {output}",
            found=f"cannot write there: {error.strerror}",
            fix="Name a folder you may write",
        ) from None
    return output.parent


def quantize_model(
    model: ir.Model,
    feeds: Sequence[Mapping[str, torch.Tensor]],
    options: QuantizeOptions,
    scratch: Path,
    progress: Progress = silent,
    origin: Origin = Origin(),
) -> QuantizeReport:
    """Quantise `model` in place; see quantize_file. Codes lie in files in `scratch` until the model is saved."""
    form = WEIGHT_FORMATS[options.format]
    before = _weight_bytes(model)
    found = [_fitting(linear, misfit(linear, form)) for linear in find_linears(model, options)]
    notes = (
        [f"{len(inner)} linears inside functions or subgraphs left alone"]
        if (inner := inner_products(model))
        else []
    )
    todo = [x for x in found if not x.reason]
    caches = require_caches(model) if options.kv_cache else []
    if not todo and not caches:
        require_format(found, options.format)
        done = any(x.reason == QUANTIZED_WEIGHT for x in found)
        records = records_of(found, {}, options)
        folding = _folding(model, options)
        return QuantizeReport(
            options.format, options.rounding, records, bytes_before=before, bytes_after=before,
            epilogues=folding.folded, already=done, notes=(*notes, *folding.left),
        )  # fmt: skip
    if not feeds and (caches or options.activations or options.rounding == "gptq"):
        raise UsageError(
            f"quantise to {options.format} with {options.rounding} rounding",
            found="no calibration feeds",
            fix="Give feeds, or quantise weights only, without kv_cache and with rounding 'nearest'",
        )
    _fit_opset(model)
    declare_types(model)
    count = len(found)
    if options.pack:
        found = pack_linears(model, found)
        caches = (
            find_caches(model) if caches else []
        )  # packing gives a key's or value's producer anew
    attention = attention_inputs(model, caches) if options.attention else {}
    job = Outcomes(model, options, Spill(scratch))
    values = origin.known.values if origin.known else {}
    known = {name: Observed(v.amax, v.scale, v.observer) for name, v in values.items()}
    calibration = Calibration(
        model,
        [x for x in found if not x.reason],
        options,
        job.scale_dtype,
        job.store,
        caches,
        known,
    )
    calibration.run(feeds, list(attention), progress)
    progress(Step("write nodes"))
    presents = [str(cache.present.name) for cache in caches]
    job.write(calibration.found, attention, caches)
    folding = _folding(model, options)
    check_graph(model)
    check_quantized(model)
    return QuantizeReport(
        options.format,
        options.rounding,
        records_of(found, job.found, options),
        calibration=_record(calibration.found, feeds, origin),
        bytes_before=before,
        bytes_after=_weight_bytes(model),
        packed=count - len(found),
        caches=tuple(
            CacheRecord(
                c.name, present, calibration.found[c.name].scale, calibration.found[c.name].amax
            )
            for c, present in zip(caches, presents, strict=True)
        ),
        epilogues=folding.folded,
        notes=(*notes, *folding.left),
    )


def _folding(model: ir.Model, options: QuantizeOptions) -> Folding:
    return fold_epilogues(model) if options.epilogues else Folding({}, ())


def _fitting(linear: Linear, reason: str) -> Linear:
    return linear if linear.reason or not reason else replace(linear, reason=reason)


def _fit_opset(model: ir.Model) -> None:
    """Raise the opset to one whose Q/DQ know 8-bit floats and scales of their own type, where the graph allows it."""
    current = model.opset_imports.get("", 1)
    if current >= SCALES_OF_THEIR_OWN_TYPE:
        return
    reason = ""
    for opset in (o for o in OPSETS[1:] if o > current):
        reason = obstacle(model, opset) or ""
        if not reason:
            raise_opset(model, opset)
            return
    if current < OPSETS[-1]:
        raise UsageError(
            f"quantise a graph of opset {current}",
            found=f"QuantizeLinear takes these types from opset {OPSETS[-1]} on, and {reason}",
            fix=f"Export the model at opset {SCALES_OF_THEIR_OWN_TYPE} or later",
        )


def _weight_bytes(model: ir.Model) -> int:
    tensors = [v.const_value for v in model.graph.initializers.values()]
    return sum(t.nbytes for t in tensors if t is not None)


def _record(
    found: Mapping[str, Observed], feeds: Sequence[Mapping[str, torch.Tensor]], origin: Origin
) -> CalibrationRecord:
    values = {
        name: ValueRecord(amax=o.amax, scale=o.scale, observer=o.observer)
        for name, o in found.items()
    }
    tokens = sum(_tokens(feed) for feed in feeds)
    return CalibrationRecord(source=origin.source, seed=origin.seed, tokens=tokens, values=values)


def _tokens(feed: Mapping[str, torch.Tensor]) -> int:
    """Rows that a product sees: the elements of the first whole-number input, else batch times sequence."""
    for tensor in feed.values():
        if not tensor.is_floating_point():
            return tensor.numel()
    return max((t.numel() // t.shape[-1] for t in feed.values() if t.ndim), default=0)
