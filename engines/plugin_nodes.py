"""Which fused operators of a graph run as plugins on a target, and their nodes marked for TensorRT's plugin layer.

    blockforge::SwiGLU with a body --plugin chosen--> the same node, every attribute spelled out, body removed

A node that keeps its body is inlined later (engines/legalize); one without is a plugin call to the parser.
"""

import re
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ..core.domain import DOMAIN
from ..plugins.policy import Choice, plugin_policy
from ..plugins.registry import plugin_named, registered
from ..plugins.table import AttributeValue
from ..plugins.tensorrt_layer import node_attributes, register_with_tensorrt
from .target import Target

PluginSetting = str | tuple[str, ...]  # "auto", "off" or names


def choose_plugins(model: ir.Model, target: Target, setting: PluginSetting) -> tuple[Choice, ...]:
    """One choice for each operator in `model` that has a plugin, with its reason; others have their bodies only.

    Raises UsageError as plugin_policy: an unknown setting or name, or a plugin that the target cannot carry.
    """
    known = {plugin.name for plugin in registered()}
    nodes = model.graph.all_nodes()
    operators = dict.fromkeys(n.op_type for n in nodes if n.domain == DOMAIN and n.op_type in known)
    digits = re.search(r"\d+", target.device)
    arch = int(digits[0]) if digits else 0
    return plugin_policy(setting, operators, runtime=target.runtime, arch=arch)


def mark_plugins(model: ir.Model, choices: Sequence[Choice]) -> ir.Model:
    """A copy of `model` whose chosen operators are plugin calls; weights are shared, not copied."""
    chosen = {choice.operator for choice in choices if choice.plugin}
    if not chosen:
        return model
    marked = model.clone()
    for node in marked.graph.all_nodes():
        if node.domain == DOMAIN and node.op_type in chosen:
            _spell_out(node)
    for identifier in [i for i in marked.functions if i[0] == DOMAIN and i[1] in chosen]:
        del marked.functions[identifier]
    return marked


def register_plugins(trtp: Any, names: Sequence[str], arch: int) -> None:
    """Make TensorRT know the operators `names` before it parses; trtp is the module `tensorrt.plugin`."""
    for name in names:
        register_with_tensorrt(trtp, plugin_named(name), arch)


def _spell_out(node: ir.Node) -> None:
    """Give the node every attribute of its operator, defaults included, in the table's order."""
    given: dict[str, AttributeValue] = {
        name: attribute.value for name, attribute in node.attributes.items()
    }
    table = plugin_named(node.op_type).table
    node.attributes.clear()
    for name, value in node_attributes(table, given).items():
        node.attributes[name] = ir.convenience.convert_attribute(name, value)
