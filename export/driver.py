"""Run passes over a graph, and check the graph's spec after each."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ..graph.spec import check_graph

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """What a pass did: its name and how many nodes, values or weights it changed."""

    name: str
    changed: int


Pass = Callable[[ir.Model], Done]


def run_passes(model: ir.Model, passes: Sequence[Pass]) -> tuple[Done, ...]:
    """Apply `passes` to `model` in order; each must leave a graph that check_graph accepts.

    Raises UsageError, from check_graph, when a pass broke the graph.
    """
    done = []
    for apply in passes:
        done.append(apply(model))
        logger.debug("%s: %d", done[-1].name, done[-1].changed)
        check_graph(model)
    return tuple(done)
