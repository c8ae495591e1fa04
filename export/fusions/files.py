"""Fuse one ONNX file into another, with the checks that a result must pass before it is written."""

from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir

from ...core.errors import ArtefactError, UsageError
from ...graph.homes import homes
from ...graph.io import load_model, save_model
from ...graph.output import require_output
from .equality import compare
from .fuse import fuse
from .report import PATTERNS, FuseOptions, FusionReport


def fuse_file(
    source: str | Path,
    target: str | Path,
    options: FuseOptions | None = None,
    *,
    verify: bool = True,
) -> FusionReport:
    """Read `source`, fuse it, check it and write `target` (all its weights beside it); returns the report.

    verify: evaluate source and result in float64 at two shapes and compare every output (see equality.py); a file
    that cannot be evaluated is noted. A result that differs, or that the ONNX checker refuses although it accepts
    the source (a graph whose sizes contradict each other), is thrown away: `target` is then the source as it was,
    and the report says so.
    Raises UsageError for a missing file, a pattern that does not exist and a target that is read or has no folder,
    ArtefactError for a damaged or invalid file; then nothing is written.
    """
    options = options or FuseOptions()
    check_options(options)
    require_output(source, target)
    model = load_model(source)
    _check_order(model, source)
    before = {v.name: v.dtype for v in model.graph.outputs}
    report = fuse(model, options)
    changed = [v.name for v in model.graph.outputs if v.dtype != before.get(v.name)]
    assert not changed, f"the types of the outputs {changed} changed"
    fault = checker_words(model)
    if fault:
        fault = f"the ONNX checker refuses the result ({fault})"
    elif verify and (report.fused or report.packed):
        compared = compare(load_model(source), model)
        fault = compared.fault
        report.verified = compared.shapes
        if not compared.shapes:
            report.notes.append("not verified: the evaluator cannot run the file")
    if fault:
        model = load_model(source)
        if words := checker_words(model):
            raise ArtefactError(
                f"model {source}", found=f"it is not valid ONNX: {words}", fix="Export it again"
            )
        report = fuse(model, replace(options, only=frozenset({"none"}), pack=False))
        report.notes.append(f"left as it was: {fault}")
    save_model(model, target, self_contained=True)
    return report


def _check_order(model: ir.Model, source: str | Path) -> None:
    """Put the nodes in the order they run; raise ArtefactError where there is none."""
    try:
        for graph in model.graphs():
            graph.sort()
    except ValueError as error:
        raise ArtefactError(
            f"model {source}",
            found="its nodes depend on each other in a circle",
            fix="Export it again",
        ) from error


def check_options(options: FuseOptions) -> None:
    """Raise UsageError where `only` names a pattern that does not exist."""
    unknown = sorted(options.only - set(PATTERNS))
    if unknown:
        raise UsageError(
            f"patterns {', '.join(unknown)}",
            found="no such pattern",
            fix=f"Known: {', '.join(PATTERNS)}",
        )


def checker_words(model: ir.Model) -> str:
    """What onnx.checker with full check says against the model, empty when nothing.

    Weights in external data stand in as inputs of their type and sizes: the check reads no weight. Constants there
    are read, since the checker looks for their files in the working folder.
    """
    stored = [
        (home, home.tensor)
        for home in homes(model)
        if home.attribute and isinstance(home.tensor, ir.ExternalTensor)
    ]
    try:
        for home, tensor in stored:
            home.put(ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name))
        proto = ir.to_proto(model)
    finally:
        for home, tensor in stored:
            home.put(tensor)
    inline = []
    for tensor in proto.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            proto.graph.input.append(info)
        else:
            inline.append(tensor)
    if len(inline) < len(proto.graph.initializer):
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(inline)
    try:
        onnx.checker.check_model(proto, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return " ".join(str(error).split())[:300]
    return ""
