"""The typed graph's spec: check a model against the rules, list what looks wrong, and summarise what it holds."""

from collections import Counter
from dataclasses import dataclass

import onnx_ir as ir

from ..core.dtypes import dtype_from_onnx
from ..core.errors import UsageError
from ..core.manifest import TensorRecord
from .rules import RULES, SUSPICIONS, Fault, operator_name
from .type_names import type_name


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A legal form that is usually a mistake: the rule it breaks, where, what was found, what would work."""

    rule: str
    where: str
    found: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.found}. {self.fix}"


@dataclass(frozen=True, slots=True)
class Summary:
    """What a graph holds. operators: nodes by operator ("domain::Name" outside ONNX's own domain), subgraphs
    included and function bodies not; dtypes: values by element type, weights included."""

    operators: dict[str, int]
    dtypes: dict[str, int]
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]


def check_graph(model: ir.Model) -> None:
    """Raise UsageError for the first fault, naming the rule and the node or value; see RULES for the rules."""
    for rule in RULES:
        for fault in rule.check(model):
            raise UsageError(
                f"graph {model.graph.name or 'without a name'}: {fault.where}",
                found=fault.found,
                fix=f"{fault.fix}{'. ' if fault.fix else ''}Rule {rule.name!r}: {rule.text}",
            )


def faults(model: ir.Model) -> list[tuple[str, Fault]]:
    """Every fault with its rule's name, for a report; check_graph raises the first of them."""
    return [(rule.name, fault) for rule in RULES for fault in rule.check(model)]


def suspicious(model: ir.Model) -> list[Suspicion]:
    """Legal forms that are usually a mistake: half-precision angles, causal masks without an offset, ..."""
    return [
        Suspicion(rule.name, fault.where, fault.found, fault.fix)
        for rule in SUSPICIONS
        for fault in rule.check(model)
    ]


def summarise(model: ir.Model) -> Summary:
    """Count operators and element types and describe inputs and outputs.

    Raises UsageError for an input or output whose type core.dtypes lacks.
    """
    operators: Counter[str] = Counter()
    dtypes: Counter[str] = Counter()
    for graph in (model.graph, *model.graph.subgraphs()):
        operators.update(operator_name(node) for node in graph)
        values = {
            *graph.inputs,
            *graph.initializers.values(),
            *(o for n in graph for o in n.outputs),
        }
        dtypes.update(type_name(v.dtype) for v in values if v.name)
    return Summary(
        operators=dict(sorted(operators.items())),
        dtypes=dict(sorted(dtypes.items())),
        inputs=tuple(map(_record, model.graph.inputs)),
        outputs=tuple(map(_record, model.graph.outputs)),
    )


def _record(value: ir.Value) -> TensorRecord:
    name = str(value.name)
    if value.dtype is None or value.shape is None:
        raise UsageError(f"value {name!r}", found="no declared type and shape", fix="Declare them")
    dims = tuple(d if isinstance(d, int) else str(d.value or "?") for d in value.shape)
    return TensorRecord(name=name, dtype=dtype_from_onnx(int(value.dtype)).value, dims=dims)
