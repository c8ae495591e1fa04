"""Recognise the transformer's operators in a model and write each as one node, or leave it exactly as it was.

repair -> facts -> recognise -> choose the opset -> rewrite
"""

import logging
import time
from collections.abc import Callable, Iterator

import onnx_ir as ir

from ...core.domain import DOMAIN
from ..algebra.facts import Facts
from ..linears.packed_file import pack_model
from ..opset import obstacle, raise_opset, required_opset
from .attention import find_attention
from .centred import find_centred
from .existing import count
from .gates import find_gates
from .match import Match, Refusal, node_name
from .nested import nest_concats
from .norms import find_norms
from .outline import Functions
from .repair import repair
from .report import PATTERNS, FuseOptions, FusionReport
from .residual import join_residuals
from .rewrite import apply
from .rope import find_ropes

logger = logging.getLogger(__name__)

RECOGNISERS: tuple[Callable[[Facts], Iterator[Match | Refusal]], ...] = (
    find_norms,
    find_centred,
    find_gates,
    find_ropes,
    find_attention,
)
RAISING = {"RMSNormalization", "LayerNormalization", "RotaryEmbedding", "Attention"}


def fuse(model: ir.Model, options: FuseOptions | None = None) -> FusionReport:
    """Fuse `model` in place; every value that remains keeps its name, type and sizes.

    The opset is raised where a standard operator needs it and every operator present means the same there.
    """
    options = options or FuseOptions()
    started = time.perf_counter()
    report = FusionReport(opset_before=model.opset_imports.get("", 0), nodes_before=_count(model))
    repair(model, report)
    if options.wants("rope"):
        for graph in model.graphs():
            report.repairs += [f"{name}: split at the rotated part" for name in nest_concats(graph)]
    plans = [(facts, _recognise(facts, options, report)) for facts in map(Facts, model.graphs())]
    _choose_opset(model, [m for _, matches in plans for m in matches], report)
    functions = Functions(model)
    for facts, matches in plans:
        report.fused += apply(facts, functions, matches)
    if options.ops != "standard" and (options.wants("rms") or options.wants("ln")):
        join_residuals(model, options.ops, report)
    report.counts = count(model)
    if options.pack:
        report.packed = pack_model(model)
    report.opset_after, report.nodes_after = model.opset_imports.get("", 0), _count(model)
    report.seconds = time.perf_counter() - started
    logger.info("fused %s in %.2f s", report.counts, report.seconds)
    return report


def _recognise(facts: Facts, options: FuseOptions, report: FusionReport) -> list[Match]:
    matches: list[Match] = []
    refusals: list[Refusal] = []
    for recogniser in RECOGNISERS:
        for found in recogniser(facts):
            if isinstance(found, Refusal):
                refusals.append(found)
            elif options.wants(found.pattern) and node_name(found.root) not in options.keep:
                matches.append(found)
    chosen = _disjoint(facts, matches)
    fused = {m.pattern for m in chosen}, {n for m in chosen for n in m.region}
    report.refused += [
        r for r in dict.fromkeys(refusals) if r.node not in {node_name(m.root) for m in chosen}
    ]
    logger.debug("patterns %s over %d nodes", sorted(fused[0]), len(fused[1]))
    return chosen


def _disjoint(facts: Facts, matches: list[Match]) -> list[Match]:
    """One match per root, the larger first; a match inside another is part of it."""
    taken: set[ir.Node] = set()
    chosen: list[Match] = []
    for match in sorted(matches, key=lambda m: (-len(m.region), facts.order[m.root])):
        if match.root not in taken:
            chosen.append(match)
            taken.update(n for n in match.region if not _shared(facts, n))
    return chosen


def _shared(facts: Facts, node: ir.Node) -> bool:
    return node.op_type == "Constant" or any(facts.constant(v) for v in node.outputs)


def _choose_opset(model: ir.Model, matches: list[Match], report: FusionReport) -> None:
    current = model.opset_imports.get("", 1)
    wanted = sorted(
        {m.standard.since for m in matches if m.standard and m.standard.op_type in RAISING}
        | {current},
        reverse=True,
    )
    for target in wanted:
        if target <= current:
            return
        reason = obstacle(model, target)
        if reason is None:
            raise_opset(model, target)
            return
        report.notes.append(f"opset {current} kept below {target}: {reason}")


def _count(model: ir.Model) -> int:
    return sum(len(g) for g in model.graphs())


__all__ = ["DOMAIN", "PATTERNS", "fuse", "required_opset"]
