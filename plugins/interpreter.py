"""Kernels on the CPU: Triton's interpreter in a process of its own, with its casts corrected.

    with Interpreter() as run: outputs = run(plugin, inputs, attributes)

The interpreter is chosen when Triton is imported, so it gets its own process. It converts to bfloat16 and E4M3
wrongly (truncation; no saturation, no carry), and reads bfloat16's subnormals and E4M3's NaN wrongly:
convert_float takes its place.
Requests and answers are frames on pipes: a JSON header, then a safetensors blob.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import torch
from safetensors.torch import load, save

from ..core.errors import UnavailableError
from .registry import Plugin, load_operator, plugin_named, register
from .table import AttributeValue
from .triton_api import require_triton

Tensors = dict[str, torch.Tensor]

E4M3_MAX = 448.0


class Interpreter:
    """A running interpreter process; a context manager that ends it. files: operator files to know besides ours."""

    def __init__(self, *files: str | Path) -> None:
        self._files = [str(f) for f in files]

    def __enter__(self) -> "Interpreter":
        require_triton()
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *self._files],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "TRITON_INTERPRET": "1"},
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._log.close()

    def __call__(
        self,
        plugin: Plugin | str,
        inputs: Sequence[torch.Tensor],
        attributes: Mapping[str, AttributeValue],
        *,
        arch: int = 90,
        grid: int | None = None,
        extras: Sequence[int] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """The kernel's outputs; as `run_kernel`, or with the grid and extra arguments of a given launch.

        RuntimeError carries the process's own words when it fails.
        """
        name = plugin if isinstance(plugin, str) else plugin.name
        header = {
            "operator": name,
            "attributes": dict(attributes),
            "arch": arch,
            "grid": grid,
            "extras": None if extras is None else list(extras),
        }
        answer = self.ask(header, {str(i): t.contiguous().clone() for i, t in enumerate(inputs)})
        return tuple(answer[str(i)] for i in range(len(answer)))

    def ask(self, header: Mapping[str, Any], tensors: Tensors) -> Tensors:
        """One request and its answer."""
        assert self._process.stdin and self._process.stdout
        _write(self._process.stdin, header, tensors)
        frame = _read(self._process.stdout)
        if frame is None or "error" in frame[0]:
            self._log.seek(0)
            words = self._log.read().decode(errors="replace")
            raise RuntimeError(frame[0]["error"] if frame else words)
        return frame[1]


def convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
    """A cast between float types as the GPU does it: to nearest even; E4M3 saturates and keeps NaN.

    Same call as triton.runtime.interpreter._convert_float: arrays of bits or floats in, bits out.
    """
    from triton.runtime import interpreter

    assert rounding in (None, interpreter._ir.ROUNDING_MODE.RTNE), "only to nearest even"
    kinds = {
        "fp64": torch.float64,
        "fp32": torch.float32,
        "fp16": torch.float16,
        "bf16": torch.bfloat16,
        "fp8e4nv": torch.float8_e4m3fn,
    }
    bits = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
    shape = np.shape(data)
    raw = torch.from_numpy(
        np.frombuffer(data.tobytes(), f"int{source.primitive_bitwidth}").copy()
        if source.primitive_bitwidth > 8
        else np.frombuffer(data.tobytes(), np.uint8).copy()
    )
    value = raw.view(kinds[source.name])
    if target.name == "fp8e4nv":
        value = value.to(torch.float32).clamp(
            -E4M3_MAX, E4M3_MAX
        )  # NaN passes; torch need not saturate
    out = value.to(kinds[target.name]).view(bits[target.primitive_bitwidth])
    return out.numpy().view(f"uint{target.primitive_bitwidth}").reshape(shape)


def correct_casts() -> None:
    """Put convert_float in the place of the interpreter's own, in this process."""
    from triton.runtime import interpreter

    interpreter._convert_float = convert_float


def _write(pipe: IO[bytes], header: Mapping[str, Any], tensors: Tensors) -> None:
    text, blob = json.dumps(header).encode(), save(tensors)
    pipe.write(struct.pack("<QQ", len(text), len(blob)) + text + blob)
    pipe.flush()


def _read(pipe: IO[bytes]) -> tuple[dict[str, Any], Tensors] | None:
    lengths = pipe.read(16)
    if len(lengths) < 16:
        return None
    text, blob = struct.unpack("<QQ", lengths)
    return json.loads(pipe.read(text)), load(pipe.read(blob))


def _answer(header: dict[str, Any], tensors: Tensors) -> Tensors:
    from ..core.dtypes import dtype_from_torch
    from .aot import plan_launch
    from .checks import Given, check_attributes, check_call
    from .execute import empty_outputs, launch_kernel, run_kernel

    inputs = [tensors[str(i)] for i in range(len(tensors))]
    plugin, attributes = plugin_named(header["operator"]), header["attributes"]
    if header["grid"] is None:
        outputs = run_kernel(plugin, inputs, attributes, header["arch"])
    else:
        outputs = empty_outputs(plugin, inputs, attributes)
        filled = check_attributes(plugin.table, attributes)
        given = [Given(dtype_from_torch(t.dtype), tuple(t.shape)) for t in inputs]
        sizes = check_call(plugin.table, given, filled)
        launch = plan_launch(plugin, given[0].dtype, sizes, filled, header["arch"])
        launch_kernel(plugin, inputs, header["extras"], outputs, launch, filled, header["grid"])
    return {str(i): t for i, t in enumerate(outputs)}


def main() -> None:
    """Answer requests on stdin until it closes."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise UnavailableError(
            "interpret kernels", found="TRITON_INTERPRET is not 1", fix="Use Interpreter()"
        )
    correct_casts()
    torch.set_num_threads(1)
    for file in sys.argv[1:]:
        register(load_operator(file))
    while frame := _read(sys.stdin.buffer):
        try:
            header, tensors = {}, _answer(*frame)
        except Exception as error:
            header, tensors = {"error": f"{type(error).__name__}: {error}"}, {}
        _write(sys.stdout.buffer, header, tensors)


if __name__ == "__main__":
    main()
