"""Names that follow the module tree, from the scopes that torch leaves on each node.

    node   <module path>/<OpType>                   layers.0.self_attn.q_proj/MatMul
    value  the module path, if it is the one value that leaves the module      layers.0.self_attn.q_proj
           <module path>/<op type> otherwise                                   layers.0.self_attn/attention

What belongs to no module is named by the operator alone. Repeated names end in _1, _2, ...
Inputs, outputs and parameters keep theirs.
"""

import ast
import re
from collections import Counter, defaultdict

import onnx_ir as ir

from .driver import Done

_SCOPES = "pkg.torch.onnx.name_scopes"  # ['', 'layers.0', 'layers.0.mlp', 'linear_4']: module paths, fx node


def name_after_modules(model: ir.Model) -> Done:
    """Rename every node, inner value and constant; afterwards no name says how torch traced the graph."""
    graph = model.graph
    path_of = {node: module_path(node) for node in graph}
    names = _Names({v.name or "" for v in (*graph.inputs, *graph.outputs)})
    constants = [v for v in graph.initializers.values() if v.const_value is not None]
    names.taken.update(v.name or "" for v in graph.initializers.values() if v not in constants)
    for number, value in enumerate(constants):  # free the names, so that none stands in the way
        value.name = f"\0{number}"
    for value in constants:
        user = next(iter(value.uses())).node
        value.name = names.new(_join(path_of.get(user, ""), "constant"))

    leaving = defaultdict(list)
    for node, path in path_of.items():
        for value in node.outputs:
            if value.is_graph_output() or _leaves(value, path, path_of):
                leaving[path].append(value)
    nodes = _Names(set())
    for node, path in path_of.items():
        node.name = nodes.new(_join(path, node.op_type))
        for value in node.outputs:
            if value.is_graph_output():
                continue
            alone = bool(path) and leaving[path] == [value]
            value.name = names.new(path if alone else _join(path, _snake(node.op_type)))
    return Done("name after modules", len(path_of))


def module_path(node: ir.Node) -> str:
    """Dotted path of the module whose forward made the node; empty for the root and for what no module made."""
    text = node.metadata_props.get(_SCOPES)
    scopes = ast.literal_eval(text) if text else []
    path = str(scopes[-2]) if len(scopes) > 1 else ""
    return "" if path.startswith("_empty_nn_module_stack") else path


def _leaves(value: ir.Value, path: str, path_of: dict[ir.Node, str]) -> bool:
    """True when something outside the module `path` reads the value."""
    readers = (path_of.get(use.node, "") for use in value.uses())
    return any(reader != path and not reader.startswith(f"{path}.") for reader in readers)


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def _snake(op_type: str) -> str:
    """RotaryEmbedding -> rotary_embedding, MatMul -> matmul, RMSNormalization -> rms_normalization."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z][a-z]{3})|(?<=[A-Z])(?=[A-Z][a-z]{3})", "_", op_type)
    return words.lower()


class _Names:
    """Hands out each name once."""

    def __init__(self, taken: set[str]) -> None:
        self.taken, self.count = taken, Counter[str]()

    def new(self, name: str) -> str:
        unique = name
        while unique in self.taken:
            self.count[name] += 1
            unique = f"{name}_{self.count[name]}"
        self.taken.add(unique)
        return unique
