"""Module and weights -> one verified ONNX file, or one error and nothing on disk.

capture -> passes -> stream weights -> write -> verify at other sizes -> move into place
"""

import contextlib
import functools
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir
import torch
from torch import nn
from torch.func import functional_call

from ..core.dtypes import DType
from ..core.errors import UsageError
from ..core.manifest import TensorRecord
from ..core.progress import Progress, Step, silent
from ..graph.io import save_model
from ..graph.spec import Summary, summarise
from ..model.build import build_module, signature
from ..model.checkpoints.protocol import Checkpoint
from ..model.signature import draw_whole_numbers
from .axes import Axis, Input, Sizes, named_axes, verify_sizes
from .capture import capture
from .driver import Done, run_passes
from .finish import attach_bodies, finish
from .fold import fold_constants, fold_shapes, lift_constants
from .fusions.lend import fuse_captured
from .fusions.report import FuseOptions, FusionReport
from .layout import fold_weight_transposes
from .naming import name_after_modules
from .precision.edges import cast_edges
from .verify import Module, Verified, verify
from .weights import Read, mapped_weights, read_from_module, stream_weights

MODEL = "model.onnx"
_EXAMPLE_SIZES = {"batch": 3, "sequence": 5, "source": 7}
_SMALL = 5_000_000  # elements: a model below is verified at its longest sequence too
_LONGEST = 512


@dataclass(frozen=True, slots=True)
class Exported:
    """A verified file: where it is, what it holds, what the passes did and at which sizes it was checked.

    fusions: what fusing recognised, fused and left alone, None where it was not asked for.
    """

    path: Path
    opset: int
    summary: Summary
    passes: tuple[Done, ...]
    verified: Verified
    fusions: FusionReport | None = None


def export_variant(
    checkpoint: Checkpoint,
    *,
    layer: int | None,
    precision: DType,
    io: DType,
    folder: Path,
    progress: Progress = silent,
) -> Exported:
    """Write `<folder>/model.onnx` and its `.data`: the decoder, or block `layer`, with weights in `precision`.

    The module is traced without numbers; each weight is read once, from the checkpoint, while it is written.
    Float inputs and outputs have type `io`. Axes "batch", "sequence" and "source" are dynamic from 1 upwards.
    Raises UsageError when the graph is not the module at every size tried or the folder cannot be written,
    ArtefactError naming the weights that are NaN, infinite or beyond `precision`. Nothing is left then.
    """
    config = checkpoint.config
    module = build_module(config, layer=layer).to(precision.torch)
    records, outputs = signature(config, layer, precision)
    inputs = tuple(_input(record, precision) for record in records)
    axes = named_axes(inputs)
    sizes = verify_sizes(tuple(axes.values()), upper=False)
    if sum(p.numel() for p in module.parameters()) < _SMALL:
        longest = min(config.max_position_embeddings, _LONGEST)
        sizes.append({name: 2 if name == "batch" else longest for name in axes})
    job = _Job(module, inputs, tuple(o.name for o in outputs), io, tuple(sizes))
    return _export(job, checkpoint.read, folder / MODEL, progress)


def _input(record: TensorRecord, precision: DType) -> Input:
    """The input that `record` describes, with an example that the model can take."""
    axes = {i: Axis(dim) for i, dim in enumerate(record.dims) if isinstance(dim, str)}
    shape = tuple(_EXAMPLE_SIZES[dim] if isinstance(dim, str) else dim for dim in record.dims)
    generator = torch.Generator().manual_seed(0)
    if record.below is None:
        example = torch.randn(shape, generator=generator).to(precision.torch)
        return Input(record.name, example, axes)
    draw = functools.partial(draw_whole_numbers, record)
    return Input(record.name, draw(shape, generator), axes, draw)


def export_module(
    module: nn.Module,
    inputs: Sequence[Input],
    outputs: Sequence[str],
    path: Path,
    *,
    io: DType | None = None,
    fuse: FuseOptions | None = None,
    progress: Progress = silent,
) -> Exported:
    """Write any module with numbers in it as `path` and `<path>.data`, verified over its dynamic axes.

    inputs: name, example and dynamic axes of each argument of module.forward, in order; outputs: names for
    the tensors it returns. io: type of float inputs and outputs, None to leave them as the module has them.
    fuse: how to write norms, gates, rotary embeddings and attention as one operator each, None to leave them spelled out.
    Raises UsageError naming input, axis and reason when an axis is not as dynamic as declared, ArtefactError
    naming parameters that are NaN or infinite. Nothing is left then.
    """
    if module.training:
        raise UsageError(
            f"export of {type(module).__name__}",
            found="it is in training mode",
            fix="Call module.eval() first",
        )
    sizes = verify_sizes(tuple(named_axes(inputs).values()))
    job = _Job(module, tuple(inputs), tuple(outputs), io, tuple(sizes), fuse)
    return _export(job, None, path, progress)


@dataclass(frozen=True, slots=True)
class _Job:
    module: nn.Module
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    io: DType | None
    sizes: tuple[Sizes, ...]
    fuse: FuseOptions | None = None


def _export(job: _Job, read: Read | None, path: Path, progress: Progress) -> Exported:
    progress(Step("capture"))
    captured = capture(job.module, job.inputs, job.outputs)
    model = captured.model
    casts = () if job.io is None else (cast_edges(job.io),)
    fusing, fusions = fuse_captured(captured.tensors, job.fuse) if job.fuse else (None, [])
    done: tuple[Done, ...] = (attach_bodies(model),)  # no graph is complete before
    done += run_passes(
        model,
        (
            fold_constants,
            fold_shapes,
            lift_constants,
            fold_weight_transposes,
            *casts,
            name_after_modules,
            finish,
            *([fusing] if fusing else []),
        ),
    )
    with _staging(path) as staged:
        stream_weights(
            model, read or read_from_module(job.module, captured.tensors), _data(staged), progress
        )
        save_model(model, staged)
        progress(Step("verify"))
        reference = job.module if read is None else _over_file(job.module, model)
        verified = verify(staged, reference, _as_seen_outside(job), job.sizes)
        summary = summarise(model)
    opset = model.opset_imports[""]
    return Exported(path, opset, summary, done, verified, fusions[0] if fusions else None)


def _over_file(module: nn.Module, model: ir.Model) -> Module:
    """The module, whose weights are the bytes just written: memory-mapped, so that it costs no memory."""
    weights = mapped_weights(model)
    return lambda *inputs: functional_call(module, weights, inputs)


def _as_seen_outside(job: _Job) -> tuple[Input, ...]:
    """The inputs in the type that the graph takes them in."""
    if job.io is None:
        return job.inputs
    io = job.io.torch
    return tuple(
        replace(i, example=i.example.to(io)) if i.example.is_floating_point() else i
        for i in job.inputs
    )


def _data(path: Path) -> Path:
    return path.with_name(f"{path.name}.data")


@contextlib.contextmanager
def _staging(path: Path) -> Iterator[Path]:
    """A path in a temporary folder beside `path`'s folder; on a clean exit its files move to their place."""
    folder = path.absolute().parent
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent
        ) as staging:
            yield Path(staging) / path.name
            folder.mkdir(exist_ok=True)
            for file in Path(staging).iterdir():
                shutil.move(file, folder / file.name)
    except OSError as error:
        raise UsageError(
            f"export to {folder}",
            found=f"cannot write there: {error.strerror or error}",
            fix="Name a folder you may write, with enough room",
        ) from None
