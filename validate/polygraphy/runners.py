"""Every way of running a model as a Polygraphy runner, and Polygraphy's runners as ours.

    Comparator.run([typed_runner("model.onnx"), OnnxrtRunner(...)], data_loader=...)
    FromPolygraphy(OnnxrtRunner(...)) -> validate.runners.Runner

Arrays are numpy's; bf16 and fp8, which numpy cannot name, are torch tensors, as in Polygraphy itself. Where
the feeds are torch tensors, so are the outputs.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata
from polygraphy.datatype import DataType

from ...core.bundle import Bundle
from ...core.dtypes import DType, dtype_from_name
from ...core.errors import UsageError
from ...core.manifest import TensorRecord
from ...engines.signature import signature_of
from ...graph.io import load_model
from ..runners import (
    CARRIERS,
    ModuleRunner,
    OnnxReference,
    PlanRunner,
    ProviderRunner,
    Ran,
    Runner,
    SessionRunner,
    TypedRunner,
    numpy_from_tensor,
    tensor_from_numpy,
)

_DTYPES = {  # ours -> Polygraphy's
    DType.FP64: DataType.FLOAT64,
    DType.FP32: DataType.FLOAT32,
    DType.FP16: DataType.FLOAT16,
    DType.BF16: DataType.BFLOAT16,
    DType.FP8_E4M3: DataType.FLOAT8E4M3FN,
    DType.INT64: DataType.INT64,
    DType.INT32: DataType.INT32,
    DType.INT8: DataType.INT8,
    DType.UINT8: DataType.UINT8,
    DType.BOOL: DataType.BOOL,
}
assert set(_DTYPES) == set(DType)
_FOREIGN = tuple(ours for _, _, ours in CARRIERS)


class BlockforgeRunner(BaseRunner):  # type: ignore[misc]
    """One of our runners under Polygraphy's protocol: activate, infer, deactivate, get_input_metadata.

    open: makes the runner, called at activation. inputs: what it takes. Our errors pass through as they are.
    """

    def __init__(
        self,
        open: Callable[[], Runner],
        inputs: Sequence[TensorRecord],
        name: str | None = None,
        *,
        prefix: str = "blockforge",
    ) -> None:
        super().__init__(name=name, prefix=prefix)
        self._open, self._records = open, tuple(inputs)

    def activate_impl(self) -> None:
        """Load the model."""
        self._runner = self._open()

    def deactivate_impl(self) -> None:
        """Free it."""
        runner = self._runner
        del self._runner
        runner.close()

    def get_input_metadata_impl(self) -> Any:
        """Names, types and shapes; a dynamic axis is None."""
        made = TensorMetadata()
        for record in self._records:
            shape = tuple(dim if isinstance(dim, int) else None for dim in record.dims)
            made.add(record.name, dtype=_DTYPES[dtype_from_name(record.dtype)], shape=shape)
        return made

    def infer_impl(self, feed_dict: Mapping[str, Any]) -> "OrderedDict[str, Any]":
        """Run once; sets inference_time to the seconds that it took."""
        as_torch = any(isinstance(value, torch.Tensor) for value in feed_dict.values())
        feeds = {name: _tensor(value) for name, value in feed_dict.items()}
        start = time.perf_counter()
        ran = self._runner.run(feeds, ())
        self.inference_time = time.perf_counter() - start
        return OrderedDict(
            (name, value if as_torch or value.dtype in _FOREIGN else numpy_from_tensor(value))
            for name, value in ran.outputs.items()
        )


def typed_runner(
    model: str | Path, *, exact: bool = False, name: str | None = None
) -> BlockforgeRunner:
    """The typed evaluator over an ONNX file; exact: in float64."""
    return _of_graph(model, lambda p: TypedRunner(p, exact=exact), name, "typed-evaluator")


def reference_runner(model: str | Path, *, name: str | None = None) -> BlockforgeRunner:
    """onnx.reference over an ONNX file."""
    return _of_graph(model, OnnxReference, name, "onnx-reference")


def onnxruntime_runner(
    model: str | Path, provider: str = "CPUExecutionProvider", *, name: str | None = None
) -> BlockforgeRunner:
    """ONNX Runtime on one execution provider; activation raises UnavailableError where it is not here."""
    return _of_graph(model, lambda p: ProviderRunner(p, provider), name, "onnxruntime")


def bundle_runner(
    bundle: Bundle | str | Path,
    target: str = "onnxruntime:cpu",
    *,
    precision: str | None = None,
    name: str | None = None,
) -> BlockforgeRunner:
    """A bundle's graph, or the engine built from it, on a target; `typed-evaluator` and `onnx-reference` too.

    Activation raises what engines.session raises: UnavailableError for an engine without its GPU.
    """
    opened = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    variant = opened.manifest.variant(precision)
    model = opened.file(variant.model)
    makers: dict[str, Callable[[], Runner]] = {
        TypedRunner.name: lambda: TypedRunner(model),
        OnnxReference.name: lambda: OnnxReference(model),
    }
    session = lambda: SessionRunner(opened, target, precision=variant.precision)  # noqa: E731
    return BlockforgeRunner(makers.get(target, session), variant.inputs, name, prefix=target)


def plan_runner(
    plan: str | Path, runtime: str, inputs: Sequence[TensorRecord], *, name: str | None = None
) -> BlockforgeRunner:
    """A plan file; activation raises UnavailableError without a GPU."""
    return BlockforgeRunner(lambda: PlanRunner(Path(plan), runtime), inputs, name, prefix=runtime)


def module_runner(
    load: Callable[[torch.dtype], torch.nn.Module],
    inputs: Sequence[TensorRecord],
    outputs: Sequence[str],
    dtype: torch.dtype = torch.float64,
    *,
    name: str | None = None,
) -> BlockforgeRunner:
    """A PyTorch module in one dtype; see validate.runners.ModuleRunner."""
    make = lambda: ModuleRunner(load, inputs, outputs, dtype)  # noqa: E731
    return BlockforgeRunner(make, inputs, name, prefix="pytorch")


class FromPolygraphy:
    """A Polygraphy runner under our protocol; it is activated here and deactivated by close()."""

    inner = False
    values: Collection[str] = ()

    def __init__(self, runner: Any) -> None:
        if not isinstance(runner, BaseRunner):
            found = f"{type(runner).__name__}, no BaseRunner of Polygraphy"
            raise UsageError("run a Polygraphy runner", found=found)
        runner.activate()
        self.name, self._runner = str(runner.name), runner

    def run(self, feeds: Mapping[str, torch.Tensor], keep: Collection[str]) -> Ran:
        """Run once. The outputs are copies: Polygraphy's runners may reuse their buffers."""
        foreign = any(value.dtype in _FOREIGN for value in feeds.values())
        given = {n: v if foreign else numpy_from_tensor(v) for n, v in feeds.items()}
        found = self._runner.infer(given)
        return Ran({name: _tensor(value).clone() for name, value in found.items()})

    def close(self) -> None:
        """Deactivate it."""
        self._runner.deactivate()


def _of_graph(
    model: str | Path, make: Callable[[Path], Runner], name: str | None, prefix: str
) -> BlockforgeRunner:
    path = Path(model)
    inputs, _ = signature_of(load_model(path))
    return BlockforgeRunner(lambda: make(path), inputs, name, prefix=prefix)


def _tensor(value: Any) -> torch.Tensor:
    """A CPU tensor of what Polygraphy passes around: torch tensors, numpy arrays, views of device memory."""
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    array = value if isinstance(value, np.ndarray) else value.numpy()
    return tensor_from_numpy(array)
