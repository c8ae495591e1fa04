"""What an operator accepts, as one frozen table: tensors with a type letter and a shape, types, attributes.

The checks, their error texts, the ONNX schema, TensorRT's accepted combinations and the documentation are all
derived from it, so that they cannot disagree.

A shape is a text of axes: `...` any leading axes, `N` a size that all tensors share, `2*N` a multiple of it,
`q_num_heads*D` a multiple by an attribute, and nothing at all for a scalar.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..core.domain import DOMAIN
from ..core.dtypes import DType

ACTIVATIONS = (DType.FP32, DType.FP16, DType.BF16)
MAX_ROW = 65536  # elements of the normalised axis: what the long-row path is tested for

AttributeValue = float | int | str


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input or output. type: a letter of the table's types; shape: see the module text."""

    name: str
    type: str
    shape: str


@dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute. default None: the node must carry it. low: smallest allowed; choices: the only allowed ones."""

    name: str
    kind: Literal["float", "int", "string"]
    doc: str
    default: AttributeValue | None = None
    low: float | None = None
    choices: tuple[AttributeValue, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Everything an operator accepts. types: letter -> the element types it may stand for.

    row: the letter whose size is limited to MAX_ROW, and must be known when a kernel is compiled.
    """

    name: str
    doc: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    types: Mapping[str, tuple[DType, ...]]
    attributes: tuple[Attribute, ...] = ()
    row: str = "N"

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    @property
    def quantises(self) -> bool:
        """Does it write FP8?"""
        return any(DType.FP8_E4M3 in self.types[t.type] for t in self.outputs)

    @property
    def identifier(self) -> str:
        """`blockforge::<name>`."""
        return f"{DOMAIN}::{self.name}"


def tensors(text: str) -> tuple[Tensor, ...]:
    """Read `x: T[... N], weight: W[N], scale: S[]`."""
    found = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, _, rest = part.partition(":")
        letter, _, shape = rest.strip().rstrip("]").partition("[")
        found.append(Tensor(name.strip(), letter, shape.strip()))
    return tuple(found)


T: dict[str, tuple[DType, ...]] = {"T": ACTIVATIONS}
W: dict[str, tuple[DType, ...]] = {"W": ACTIVATIONS}
Q: dict[str, tuple[DType, ...]] = {"S": ACTIVATIONS, "Q": (DType.FP8_E4M3,)}

NORM_ATTRIBUTES = (
    Attribute("epsilon", "float", "added to the mean square or variance, inside the root", low=0.0),
    Attribute("epsilon_outside", "float", "added to the root itself", 0.0, low=0.0),
    Attribute(
        "weight_offset",
        "float",
        "added to the weight: 1 for norms stored as w - 1",
        0.0,
        choices=(0.0, 1.0),
    ),
)


def markdown(table: Table) -> str:
    """The table as documentation: signature, types and attributes."""
    lines = [
        f"### {table.identifier}",
        "",
        table.doc,
        "",
        "| tensor | shape | types |",
        "|---|---|---|",
    ]
    lines += [
        f"| {t.name}{' (out)' if t in table.outputs else ''} | [{t.shape}] "
        f"| {t.type}: {', '.join(d.value for d in table.types[t.type])} |"
        for t in table.tensors
    ]
    if table.attributes:
        lines += ["", "| attribute | default | meaning |", "|---|---|---|"]
        lines += [
            f"| {a.name} | {'required' if a.default is None else a.default} | {a.doc} |"
            for a in table.attributes
        ]
    return "\n".join([*lines, ""])
