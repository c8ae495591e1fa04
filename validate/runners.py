"""Ways of running an ONNX file for a verdict: the typed evaluator, and an engine session.

feeds (torch) -> outputs (torch), kept inner values, overflows
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import ml_dtypes
import numpy as np
import torch

from ..engines.session import Session
from ..graph.evaluator import Overflow, TypedEvaluator


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run gave.

    overflows: values that left the finite range of their dtype; largest: largest magnitude by value.
    """

    outputs: Mapping[str, torch.Tensor]
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)
    overflows: tuple[Overflow, ...] = ()
    largest: Mapping[str, float] = field(default_factory=dict)


class Runner(Protocol):
    """name: as a VerdictRecord spells it. inner: whether it shows inner values and overflow; values: which."""

    @property
    def name(self) -> str: ...

    @property
    def inner(self) -> bool: ...

    @property
    def values(self) -> Collection[str]: ...

    def run(self, feeds: Mapping[str, torch.Tensor], keep: Collection[str]) -> Ran:
        """Run once; `keep` names inner values to return, all of them in `values`."""

    def close(self) -> None:
        """Free what it holds; called once."""


def tensor_from_numpy(array: np.ndarray) -> torch.Tensor:
    """A torch tensor over the array's bytes; ml_dtypes' bfloat16 becomes torch's, not integers."""
    array = np.ascontiguousarray(array)
    if not array.flags.writeable:
        array = array.copy()
    for theirs, carrier, ours in (
        (ml_dtypes.bfloat16, np.int16, torch.bfloat16),
        (ml_dtypes.float8_e4m3fn, np.uint8, torch.float8_e4m3fn),
    ):
        if array.dtype == theirs:
            return torch.from_numpy(array.view(carrier)).view(ours)
    return torch.from_numpy(array)


def numpy_from_tensor(tensor: torch.Tensor) -> np.ndarray:
    """The numpy array over a CPU tensor's bytes; bfloat16 as ml_dtypes' type."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    return tensor.numpy()


class TypedRunner:
    """The typed evaluator over an ONNX file: TensorRT's rules, run in torch."""

    name = "typed-evaluator"
    inner = True

    def __init__(self, model: Path) -> None:
        self._evaluator = TypedEvaluator(model)
        self.values: Collection[str] = frozenset(self._evaluator.value_names())

    def run(self, feeds: Mapping[str, torch.Tensor], keep: Collection[str]) -> Ran:
        """Run the graph once; see Runner."""
        found = self._evaluator.run(feeds, keep=keep)
        return Ran(found.outputs, found.kept, found.overflow, found.largest)

    def close(self) -> None:
        """Nothing to free: weights are read from the file as they are used."""


class SessionRunner:
    """ONNX Runtime on the CPU over the same file."""

    name = "onnxruntime:cpu"
    inner = False
    values: Collection[str] = ()

    def __init__(self, model: Path) -> None:
        self._session = Session(model, target=self.name)

    def run(self, feeds: Mapping[str, torch.Tensor], keep: Collection[str]) -> Ran:
        """Run the session once; see Runner."""
        outputs = self._session.run({n: numpy_from_tensor(v) for n, v in feeds.items()})
        return Ran({name: tensor_from_numpy(value) for name, value in outputs.items()})

    def close(self) -> None:
        """Free the runtime's copy of the weights."""
        self._session.close()
