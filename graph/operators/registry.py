"""The operators that the evaluator knows: (domain, name) -> Operator.

A kernel is a plain function of torch tensors: `kernel(call, *inputs)` with None for an absent input, giving one
tensor or a tuple of them. Three kinds differ in what they are handed:

    math   floats of 16 and 8 bits come as fp32; the result is rounded to the output's type afterwards, once
    move   elements are moved and never computed with, so they come as they are (odd types as bits)
    raw    values come and go as they are: casts, quantisation, control flow, sequences

A kernel never changes its inputs in place (they may be read-only memory maps) and never rounds, except where an
operator has rounding points inside: `call.rounded` is for those.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from ..rounding import round_to
from ..type_names import DataType
from ..values import WIDE_FLOATS, Value, arithmetic

Tensor = torch.Tensor
Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Body:
    """An inner graph: call it with its inputs. outputs: what it declares, for the case that it never runs."""

    run: Callable[[Sequence[Value]], list[Value]]
    outputs: tuple[ir.Value, ...]

    def __call__(self, inputs: Sequence[Value]) -> list[Value]:
        return self.run(inputs)


class Access(Enum):
    """How a kernel is handed its inputs."""

    MATH = "math"
    MOVE = "move"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class Operator:
    """One row of the registry."""

    kernel: Kernel
    access: Access


OPERATORS: dict[tuple[str, str], Operator] = {}


@dataclass(frozen=True, slots=True)
class Call:
    """One execution of a node: everything that a kernel may ask besides its inputs.

    dtypes: element types of the inputs as they are declared (before widening); version: of the operator's domain;
    wanted: which outputs something reads; exact: floats are fp64 and nothing is rounded; value_bytes: the most
    that one value may take.
    """

    op_type: str
    version: int
    attributes: Mapping[str, ir.Attr]
    dtypes: tuple[DataType | None, ...]
    wanted: tuple[bool, ...]
    exact: bool
    value_bytes: int
    bodies: Mapping[str, Body]

    def has(self, name: str) -> bool:
        """Whether the attribute is set."""
        return name in self.attributes

    def get_int(self, name: str, default: int) -> int:
        """An integer attribute."""
        return self.attributes[name].as_int() if name in self.attributes else default

    def get_float(self, name: str, default: float) -> float:
        """A float attribute; the default is rounded to fp32, as attributes are stored."""
        if name in self.attributes:
            return self.attributes[name].as_float()
        return float(np.float32(default))

    def get_str(self, name: str, default: str) -> str:
        """A string attribute."""
        return self.attributes[name].as_string() if name in self.attributes else default

    def get_ints(self, name: str) -> list[int] | None:
        """A list attribute; None where it is absent."""
        return list(self.attributes[name].as_ints()) if name in self.attributes else None

    def wants(self, output: int) -> bool:
        """Whether output number `output` exists and is read."""
        return output < len(self.wanted) and self.wanted[output]

    def rounded(self, tensor: Tensor, dtype: DataType | None) -> Tensor:
        """`tensor` rounded to `dtype` and widened again: a rounding point inside an operator."""
        if dtype is None or dtype not in WIDE_FLOATS or self.exact:
            return tensor
        return arithmetic(round_to(tensor, dtype))


def register(names: Sequence[str], access: Access, domain: str) -> Callable[[Kernel], Kernel]:
    """Add a kernel under each name; a second kernel for one name is a mistake of ours."""

    def add(kernel: Kernel) -> Kernel:
        for name in names:
            assert (domain, name) not in OPERATORS, f"{domain}::{name} is registered twice"
            OPERATORS[domain, name] = Operator(kernel, access)
        return kernel

    return add


def math(*names: str, domain: str = "") -> Callable[[Kernel], Kernel]:
    """Register a kernel that computes."""
    return register(names, Access.MATH, domain)


def move(*names: str, domain: str = "") -> Callable[[Kernel], Kernel]:
    """Register a kernel that only moves elements."""
    return register(names, Access.MOVE, domain)


def raw(*names: str, domain: str = "") -> Callable[[Kernel], Kernel]:
    """Register a kernel that handles values of any kind itself."""
    return register(names, Access.RAW, domain)
