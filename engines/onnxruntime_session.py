"""Run an ONNX file with ONNX Runtime, on the caller's own memory.

Inputs and outputs are bound by address, so that every element type passes and nothing is copied on the CPU.
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.dtypes import DType, dtype_from_name
from ..core.errors import BuildError, UsageError
from ..core.manifest import TensorRecord
from ..core.shapes import Profile
from .onnxruntime_api import open_session, version
from .onnxruntime_nodes import SUFFIX
from .runner import Call
from .session_tensor import HostTensor
from .target import Target
from .views import Place, array_at

BEYOND = (  # ONNX Runtime's words for an index outside a table: Gather, GatherElements, GatherND
    "indices element out of data bounds",
    "Out of range value in index tensor",
    "invalid index found",
)


class OnnxRuntimeRunner:
    """One onnxruntime.InferenceSession, which threads share; see onnxruntime_api.open_session for what opening may raise."""

    def __init__(
        self,
        model: Path,
        target: Target,
        outputs: tuple[TensorRecord, ...],
        profiles: tuple[Profile, ...],
    ) -> None:
        self._model, self._device = model, target.device
        self.place = Place(str(target))
        self.profiles = profiles
        self._types = {record.name: dtype_from_name(record.dtype) for record in outputs}
        self._session: Any = open_session(model, target.device)

    def open_slot(self) -> "OnnxRuntimeSlot":
        """Nothing of its own: ONNX Runtime keeps no state between runs."""
        return OnnxRuntimeSlot(self)

    def compute(self, call: Call) -> dict[str, np.ndarray]:
        """Every output by name: what the caller gave, else new.

        UsageError for an index outside a table, BuildError with ONNX Runtime's words when a node fails otherwise.
        """
        if call.on_layer is None:
            return self._compute(self._session, call)
        with tempfile.TemporaryDirectory() as folder:  # a session profiles all its life, or never
            profiled = open_session(
                self._model, self._device, profile_to=str(Path(folder) / "profile")
            )
            results = self._compute(profiled, call)
            trace = json.loads(Path(profiled.end_profiling()).read_text(encoding="utf-8"))
        for event in trace:
            if event.get("cat") == "Node" and event["name"].endswith(SUFFIX):
                call.on_layer(event["name"].removesuffix(SUFFIX), event["dur"] / 1e6)
        return results

    def refit(self, weights: Mapping[str, Any]) -> None:
        """ONNX Runtime has no refit."""
        raise UsageError(
            f"refit on {self.place.target}",
            found="ONNX Runtime cannot exchange weights",
            fix="Open a session of the other graph",
        )

    def counts(self) -> dict[str, int]:
        """Nothing is captured."""
        return {}

    def close(self) -> None:
        """Drop the session; its memory goes with the last reference."""
        self._session = None

    def _compute(self, session: Any, call: Call) -> dict[str, np.ndarray]:
        binding = session.io_binding()
        for name, view in call.inputs.items():
            binding.bind_input(name, "cpu", 0, view.dtype.onnx, view.shape, view.address)
        for name, dtype in self._types.items():
            if name in call.outputs:
                view = call.outputs[name]
                binding.bind_output(name, "cpu", 0, dtype.onnx, view.shape, view.address)
            else:
                binding.bind_output(name, "cpu")
        try:
            session.run_with_iobinding(binding)
        except Exception as error:  # onnxruntime's classes share no base of their own
            words = " ".join(str(error).split())
            if any(beyond in words for beyond in BEYOND):
                raise UsageError(
                    "run",
                    found=f"a number in the inputs that is no index of the model's table ({version()}: {words})",
                    fix="Feed numbers that the model knows, e.g. tokens of its vocabulary",
                ) from None
            raise BuildError("run", found=f"{version()}: {words}") from None
        values = dict(zip(self._types, binding.get_outputs(), strict=True))
        return {name: _result(name, value, call, self._types) for name, value in values.items()}


class OnnxRuntimeSlot:
    """One run at a time; see runner.Slot."""

    stream: None = None

    def __init__(self, runner: OnnxRuntimeRunner) -> None:
        self._runner = runner

    def run(self, call: Call) -> dict[str, Any]:
        """Every output by name: what was given for it, else an array."""
        return {**self._runner.compute(call), **call.given}

    def enqueue(self, call: Call) -> dict[str, HostTensor]:
        """The same as tensors, computed already."""
        types = self._runner._types
        return {n: HostTensor(a, types[n]) for n, a in self._runner.compute(call).items()}

    def settle(self) -> None:
        """Nothing is ever in flight."""

    def close(self) -> None:
        """Nothing to free."""


def _result(name: str, value: Any, call: Call, types: Mapping[str, DType]) -> np.ndarray:
    view = call.outputs.get(name)
    if view is not None and view.array is not None:
        return view.array
    return array_at(value.data_ptr(), tuple(value.shape()), types[name], value)
