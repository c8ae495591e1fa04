"""Where a model keeps its tensors: initializers of every graph, and attributes of nodes (Constant's value, say)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx_ir as ir

Tensor = ir.TensorProtocol


@dataclass(frozen=True, slots=True, eq=False)
class Home:
    """One such place. tensor: what it holds, None for an initializer without a value; put: lets it hold another."""

    name: str
    tensor: Tensor | None
    put: Callable[[Tensor | None], None]
    attribute: bool = False

    def moves(self, folder: Path, inline_limit: int, self_contained: bool) -> bool:
        """Whether the tensor goes to the data file of a model that is written to `folder`; see save_model."""
        if self.tensor is None:
            return False
        if isinstance(self.tensor, ir.ExternalTensor):
            return self_contained or Path(self.tensor.base_dir).resolve() != folder.resolve()
        return not self.attribute and self.tensor.nbytes >= inline_limit


def homes(model: ir.Model) -> list[Home]:
    """Every initializer, and every attribute that is one tensor."""
    found = []
    for graph in model.graphs():
        for value in graph.initializers.values():
            put = partial(setattr, value, "const_value")
            found.append(Home(str(value.name), value.const_value, put))
    for graph in (*model.graphs(), *(f.graph for f in model.functions.values())):
        for node in graph:
            for name, attribute in node.attributes.items():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    tensor = attribute.as_tensor()
                    put = partial(_set_attribute, node, name)
                    found.append(Home(tensor.name or name, tensor, put, attribute=True))
    return found


def _set_attribute(node: ir.Node, name: str, tensor: Tensor | None) -> None:
    assert tensor is not None, name
    node.attributes[name] = ir.AttrTensor(name, tensor)
