"""Ways of running a model for a verdict, under one protocol.

    feeds (torch) -> outputs (torch), kept inner values, overflows

    ModuleRunner       the PyTorch module, in any dtype
    TypedRunner        the typed evaluator: TensorRT's rules, or float64 with exact=True
    OnnxReference      onnx.reference: ONNX's own meaning of the graph, in numpy
    SessionRunner      an ONNX file or a bundle on a target (ONNX Runtime, or a bundle's engine on its GPU)
    ProviderRunner     ONNX Runtime on any execution provider that is installed here, TensorRT's too
    PlanRunner         a TensorRT or TensorRT-RTX plan file, on a GPU

polygraphy/runners.py makes each of them a Polygraphy runner, and Polygraphy's own into one of these.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import ml_dtypes
import numpy as np
import torch
from torch import nn

from ..core.bundle import Bundle
from ..core.errors import ArtefactError, UnavailableError, UsageError
from ..core.manifest import TensorRecord
from ..engines.session import Session
from ..graph.evaluator import Overflow, TypedEvaluator, Underflow

CARRIERS = (  # types that torch and numpy exchange as bits only
    (ml_dtypes.bfloat16, np.int16, torch.bfloat16),
    (ml_dtypes.float8_e4m3fn, np.uint8, torch.float8_e4m3fn),
    (ml_dtypes.float8_e5m2, np.uint8, torch.float8_e5m2),
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What one run gave.

    overflows: values that left the finite range of their dtype; largest: largest magnitude by value; underflows:
    values with numbers that became zero.
    """

    outputs: Mapping[str, torch.Tensor]
    kept: Mapping[str, torch.Tensor] = field(default_factory=dict)
    overflows: tuple[Overflow, ...] = ()
    largest: Mapping[str, float] = field(default_factory=dict)
    underflows: tuple[Underflow, ...] = ()


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
    array = np.asarray(array, order="C")
    if not array.flags.writeable:
        array = array.copy()
    for theirs, carrier, ours in CARRIERS:
        if array.dtype == theirs:
            return torch.from_numpy(array.view(carrier)).view(ours)
    return torch.from_numpy(array)


def numpy_from_tensor(tensor: torch.Tensor) -> np.ndarray:
    """The numpy array over a CPU tensor's bytes; bfloat16 as ml_dtypes' type."""
    tensor = tensor.detach().contiguous()
    for theirs, carrier, ours in CARRIERS:
        if tensor.dtype == ours:
            bits = torch.int16 if carrier is np.int16 else torch.uint8
            return tensor.view(bits).numpy().view(theirs)
    return tensor.numpy()


class TypedRunner:
    """The typed evaluator over an ONNX file: TensorRT's rules, run in torch."""

    name = "typed-evaluator"
    inner = True

    def __init__(self, model: Path, *, exact: bool = False) -> None:
        self._evaluator = TypedEvaluator(model, exact=exact)
        self.values: Collection[str] = frozenset(self._evaluator.value_names())

    def run(self, feeds: Mapping[str, torch.Tensor], keep: Collection[str]) -> Ran:
        """Run the graph once; see Runner."""
        found = self._evaluator.run(feeds, keep=keep)
        return Ran(found.outputs, found.kept, found.overflow, found.largest, found.underflow)

    def close(self) -> None:
        """Nothing to free: weights are read from the file as they are used."""


class SessionRunner:
    """An engine session: an ONNX file or a bundle on a target; see engines.session for what it raises."""

    name = "onnxruntime:cpu"
    inner = False
    values: Collection[str] = ()

    def __init__(
        self,
        source: Path | Bundle,
        target: str = "onnxruntime:cpu",
        *,
        precision: str | None = None,
    ) -> None:
        self.name = target
        self._session = Session(source, target=target, precision=precision)

    def run(self, feeds: Mapping[str, torch.Tensor], keep: Collection[str]) -> Ran:
        """Run the session once; see Runner."""
        return _ran(self._session.run(_arrays(feeds)))

    def close(self) -> None:
        """Free the runtime's copy of the weights."""
        self._session.close()


class ModuleRunner:
    """A PyTorch module in one dtype: feeds in the order of `inputs`, floats cast to it, outputs named in order.

    load: gives the module with its weights in a dtype, as model.build.load_module does.
    """

    inner = False
    values: Collection[str] = ()

    def __init__(
        self,
        load: Callable[[torch.dtype], nn.Module],
        inputs: Sequence[TensorRecord],
        outputs: Sequence[str],
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.name = f"pytorch:{str(dtype).removeprefix('torch.')}"
        self._inputs, self._outputs, self._dtype = [r.name for r in inputs], outputs, dtype
        self._module: nn.Module | None = load(dtype).eval()

    def run(self, feeds: Mapping[str, torch.Tensor], keep: Collection[str]) -> Ran:
        """Run the module once; UsageError where it returns another number of outputs than were named."""
        assert self._module is not None, "closed"
        given = [feeds[name] for name in self._inputs]
        with torch.inference_mode():
            result = self._module(
                *(v.to(self._dtype) if v.is_floating_point() else v for v in given)
            )
        values = result if isinstance(result, tuple) else (result,)
        if len(values) != len(self._outputs):
            names = ", ".join(self._outputs)
            raise UsageError(self.name, found=f"{len(values)} outputs, {names} were named")
        return Ran(dict(zip(self._outputs, values, strict=True)))

    def close(self) -> None:
        """Free the module."""
        self._module = None


class OnnxReference:
    """onnx.reference.ReferenceEvaluator: what ONNX itself says the graph computes. Slow; no bf16 products."""

    name = "onnx-reference"
    inner = False
    values: Collection[str] = ()

    def __init__(self, model: Path) -> None:
        from onnx.reference import ReferenceEvaluator

        if not model.is_file():
            raise UsageError(f"model {model}", found="no such file")
        try:
            self._evaluator: ReferenceEvaluator | None = ReferenceEvaluator(str(model))
        except Exception as error:  # protobuf's, onnx's and numpy's own
            found = f"onnx.reference refuses it: {' '.join(str(error).split())}"
            raise ArtefactError(f"model {model}", found=found) from None

    def run(self, feeds: Mapping[str, torch.Tensor], keep: Collection[str]) -> Ran:
        """Run the graph once; see Runner."""
        assert self._evaluator is not None, "closed"
        values = self._evaluator.run(None, _arrays(feeds))
        found = dict(zip(self._evaluator.output_names, values, strict=True))
        return _ran({name: np.asarray(value) for name, value in found.items()})

    def close(self) -> None:
        """Free the graph."""
        self._evaluator = None


class ProviderRunner:
    """ONNX Runtime on one execution provider by its own name, e.g. TensorrtExecutionProvider."""

    inner = False
    values: Collection[str] = ()

    def __init__(self, model: Path, provider: str) -> None:
        from ..engines.onnxruntime_api import providers

        self.name = f"onnxruntime:{provider}"
        has = providers()
        if provider not in has:
            fix = "Install the onnxruntime package that carries it, on a machine with its device"
            raise UnavailableError(self.name, found=f"here are only {', '.join(has)}", fix=fix)
        import onnxruntime

        try:
            self._session = onnxruntime.InferenceSession(str(model), providers=[provider])
        except Exception as error:  # onnxruntime's classes share no base of their own
            found = f"ONNX Runtime refuses it: {' '.join(str(error).split())}"
            raise ArtefactError(f"model {model}", found=found) from None
        if provider not in self._session.get_providers():  # it falls back without a word
            raise UnavailableError(self.name, found="it could not start here")

    def run(self, feeds: Mapping[str, torch.Tensor], keep: Collection[str]) -> Ran:
        """Run the session once; see Runner."""
        names = [output.name for output in self._session.get_outputs()]
        values = self._session.run(names, _arrays(feeds))
        return _ran(dict(zip(names, values, strict=True)))

    def close(self) -> None:
        """Free the runtime's copy of the weights."""
        self._session = None


class PlanRunner:
    """A plan file of TensorRT or TensorRT-RTX (runtime), on this machine's GPU.

    Loading a plan runs native code: only for plans from a trusted place. Raises UnavailableError without a
    GPU or the library, ArtefactError for a plan of another version or GPU.
    """

    inner = False
    values: Collection[str] = ()

    def __init__(self, plan: Path, runtime: str) -> None:
        from ..engines.gpu import gpus
        from ..engines.tensorrt_session import TensorRTRunner

        self.name = f"{runtime} plan"
        if not plan.is_file():
            raise UsageError(f"plan {plan}", found="no such file")
        if not gpus():
            found, fix = "no NVIDIA GPU here", "Use a machine with the GPU that it was built for"
            raise UnavailableError(f"run plan {plan}", found=found, fix=fix)
        self._engine = TensorRTRunner(plan, runtime)

    def run(self, feeds: Mapping[str, torch.Tensor], keep: Collection[str]) -> Ran:
        """Run the engine once; see Runner."""
        return _ran(self._engine.run(_arrays(feeds)))

    def close(self) -> None:
        """Free engine and device memory."""
        self._engine.close()


def _arrays(feeds: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    return {name: numpy_from_tensor(value) for name, value in feeds.items()}


def _ran(outputs: Mapping[str, np.ndarray]) -> Ran:
    return Ran({name: tensor_from_numpy(value) for name, value in outputs.items()})
