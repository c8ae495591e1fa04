"""Run an ONNX file with ONNX Runtime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import BuildError
from .onnxruntime_api import open_session, version


class OnnxRuntimeRunner:
    """One onnxruntime.InferenceSession; see onnxruntime_api.open_session for what opening may raise."""

    def __init__(self, model: Path, device: str) -> None:
        self._session: Any = open_session(model, device)
        self._outputs = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name; BuildError with ONNX Runtime's words when a node fails."""
        try:
            values = self._session.run(self._outputs, dict(feeds))
        except Exception as error:  # onnxruntime's classes share no base of their own
            raise BuildError("run", found=f"{version()}: {' '.join(str(error).split())}") from None
        return dict(zip(self._outputs, values, strict=True))

    def close(self) -> None:
        """Drop the session; its memory goes with the last reference."""
        self._session = None
