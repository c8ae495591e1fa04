"""Move the nodes of a match into a function of the domain `blockforge`: the numbers stay the same to the last bit.

Two matches whose nodes agree share one function; the first spelling of an operator has the plain name.
"""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ...core.domain import DOMAIN, DOMAIN_VERSION
from ..algebra.facts import Facts
from .match import Match

INLINE = 1024  # elements of a constant that moves into the body; larger ones become inputs


class Functions:
    """The functions of one model by their name and body."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.names: dict[str, str] = {}  # fingerprint -> name
        self.taken = {name for domain, name, _ in model.functions if domain == DOMAIN}

    def call(self, facts: Facts, match: Match, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """Write the node that calls the match's function on `inputs`; returns its outputs, typed as the match's."""
        nodes = sorted(match.region, key=facts.order.__getitem__)
        constants = _constants(nodes, inputs)
        inputs = [*inputs, *(v for v in constants if not _small(v))]
        body, text = _body(nodes, inputs, [v for v in constants if _small(v)], match.outputs)
        fingerprint = hashlib.sha256(f"{match.name}:{text}".encode()).hexdigest()
        name = self.names.get(fingerprint)
        if name is None:
            name = match.name if match.name not in self.taken else f"{match.name}_{fingerprint[:8]}"
            self.names[fingerprint] = name
            self.taken.add(name)
            self._add(name, body)
        outputs = [ir.Value(type=v.type, shape=v.shape) for v in match.outputs]
        node = ir.Node(DOMAIN, name, inputs, outputs=outputs)
        self.model.opset_imports[DOMAIN] = DOMAIN_VERSION
        assert node.outputs[0] is outputs[0]
        return outputs

    def _add(self, name: str, body: ir.Graph) -> None:
        body.opset_imports.update(
            {d: v for d, v in self.model.opset_imports.items() if d in _domains(body)}
        )
        body.opset_imports[""] = self.model.opset_imports[""]
        function = ir.Function(DOMAIN, name, graph=body, attributes=[])
        self.model.functions[function.identifier()] = function


def _domains(body: ir.Graph) -> set[str]:
    return {n.domain for n in body}


def _constants(nodes: Sequence[ir.Node], inputs: Sequence[ir.Value]) -> list[ir.Value]:
    """The initializers that the nodes read, in the order of reading."""
    found: dict[ir.Value, None] = {}
    for node in nodes:
        for value in node.inputs:
            if value is not None and value.producer() is None and value not in inputs:
                found[value] = None
    return list(found)


def _small(value: ir.Value) -> bool:
    return value.const_value is not None and math.prod(value.const_value.shape.numpy()) <= INLINE


def _body(
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value],
    constants: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
) -> tuple[ir.Graph, str]:
    """The function's graph with plain value names, and a text that equal bodies share."""
    names: dict[ir.Value, ir.Value] = {}
    lines: list[str] = []
    copies: list[ir.Node] = []
    for i, value in enumerate(inputs):
        names[value] = ir.Value(name=f"input_{i}")
    for value in constants:
        tensor = value.const_value
        assert tensor is not None
        array = np.ascontiguousarray(tensor.numpy())
        out = ir.Value(name=f"constant_{len(copies)}")
        copies.append(
            ir.node(
                "Constant",
                [],
                attributes={"value": ir.tensor(tensor.numpy(), dtype=tensor.dtype)},
                outputs=[out],
            )
        )
        names[value] = out
        lines.append(f"{tensor.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}")
    for node in nodes:
        made = []
        for value in node.outputs:
            names[value] = ir.Value(name=f"value_{len(names)}")
            made.append(names[value])
        read = [None if v is None else names[v] for v in node.inputs]
        copy = ir.Node(
            node.domain,
            node.op_type,
            read,
            list(node.attributes.values()),
            outputs=made,
            overload=node.overload,
        )
        copies.append(copy)
        attributes = sorted(f"{k}={_attribute_text(a)}" for k, a in node.attributes.items())
        lines.append(
            f"{node.domain}:{node.op_type}({[None if v is None else v.name for v in read]}){attributes}->{[v.name for v in made]}"
        )
    results = [names[v] for v in outputs]
    lines.append(f"{len(inputs)}->{[v.name for v in results]}")
    return ir.Graph([names[v] for v in inputs], results, nodes=copies, name="body"), "\n".join(
        lines
    )


def _attribute_text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype}{tuple(tensor.shape)}{hashlib.sha256(np.ascontiguousarray(tensor.numpy()).tobytes()).hexdigest()}"
    return str(attribute.value)
