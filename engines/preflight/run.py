"""preflight: a model and a target -> every known reason why no engine, or another engine, would come of it.

Nothing is built and no runtime is imported; weights stay on disk unless `thorough`.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from ...core.errors import BuildError
from ...graph.collector import collector_paused
from ...graph.rules import subgraphs_kept
from ...graph.shape_inference import infer_shapes
from ..legalize import is_concerned, legalize
from ..signature import fed_inputs, input_dims
from ..target import Target
from .files import load_or_findings
from .finding import Finding, Report, in_order
from .profile import Texts as Shapes
from .profile import profiles_findings
from .scene import Scene
from .structure import check_structure
from .table import findings, installed_version, spots, table_for
from .weights import weight_findings


def preflight(
    path: str | Path,
    target: Target,
    *,
    shapes: Shapes = (None, None, None),
    more_shapes: Sequence[Shapes] = (),
    thorough: bool = False,
) -> Report:
    """Look at the model at `path` for `target`.

    shapes: the profile's min, opt and max as trtexec spells them; more_shapes: those of further profiles. thorough: read every weight.
    Raises UsageError for a missing file or text that is no shapes, ArtefactError for a file that is no ONNX model.
    """
    start, path = time.monotonic(), Path(path)
    with collector_paused():
        model, found = load_or_findings(path)
        if model is not None:
            with subgraphs_kept(model.graph):
                found += _of_model(model, target, (shapes, *more_shapes), thorough)
    table = table_for(target)
    return Report(
        model=str(path),
        target=str(target),
        table=table.title,
        installed=installed_version(table.distribution),
        findings=in_order(found),
        seconds=time.monotonic() - start,
    )


def _of_model(
    model: ir.Model,
    target: Target,
    profiles: Sequence[Shapes],
    thorough: bool,
) -> Iterator[Finding]:
    broken = check_structure(model)
    yield from broken
    yield from weight_findings(model, thorough)
    undeclared = [*_undeclared_inputs(model)]
    yield from undeclared
    if not undeclared:
        yield from profiles_findings(profiles, input_dims(model))
    if any(
        f.fails and f.rule in ("graph.order", "graph.arity", "graph.names", "graph.opset")
        for f in broken
    ):
        return  # the rules below read graphs that hold together
    infer_shapes(model)
    if target.is_tensorrt:
        for each in target.apart:
            yield from _of_forms(model, each)


def _undeclared_inputs(model: ir.Model) -> Iterator[Finding]:
    for value in fed_inputs(model):
        if value.shape is None or value.type is None:
            yield Finding(
                "input.undeclared", f"input {value.name!r}", "refused", "its rank or element type is not declared",
                "No profile can be made", "Declare the type and shape of the input",
            )  # fmt: skip


def _of_forms(model: ir.Model, target: Target) -> Iterator[Finding]:
    legal = None
    try:
        if is_concerned(model):
            legal, _ = legalize(model, target)
    except BuildError as error:
        node = error.asked.partition("'")[2].partition("'")[0] or "the graph"
        yield Finding(
            "legalise", node, "refused", error.found, "compile cannot rewrite the form", error.fix
        )
    yield from findings(model, legal, target)


def refuse(legal: ir.Model, target: Target, asked: str) -> None:
    """Raise BuildError for the first form in a legalised graph that `target` is known to refuse.

    Only where the installed version is the one the table was measured on: another may have learned the form.
    """
    table = table_for(target)
    if not table.binding:
        return
    refused = tuple(row for row in table.rows if row.severity == "refused")
    found = [(row, spot) for row, spot in spots(Scene(legal, target), refused)]
    if not found:
        return
    row, spot = found[0]
    more = f", and {len(found) - 1} more findings" if len(found) > 1 else ""
    raise BuildError(
        asked,
        found=f"node {spot.node!r}: {spot.found}. {row.happens} (rule {row.id}, {table.title}){more}",
        fix=spot.fix or row.fix,
    )
