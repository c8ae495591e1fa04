"""The real Triton server on a CPU: the binary that the nvidia-pytriton wheel carries, with a backend called `onnxruntime`.

The wheel has Triton's core and its Python backend, but not its ONNX Runtime backend. Triton lets a Python file stand in for a
backend (python_backend, Python-based backends), so everything but that library is the real thing: how the configuration is
parsed and validated, the warm-up, versions, dynamic batching, the protocol.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

INSTALL = "pip install --no-deps nvidia-pytriton==0.7.0"
START_SECONDS = 60
BACKEND = '''
import hashlib, json, sys

sys.path[:0] = {path!r}

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb


class TritonPythonModel:
    """Runs model.onnx with ONNX Runtime, the requests of one batch joined; writes down what it was given."""

    def initialize(self, args):
        folder = f"{{args['model_repository']}}/{{args['model_version']}}"
        self.session = onnxruntime.InferenceSession(f"{{folder}}/model.onnx")
        self.inputs = [i.name for i in self.session.get_inputs()]
        self.outputs = [o.name for o in self.session.get_outputs()]

    def execute(self, requests):
        # The wheel's stub was built for numpy 1, so tensors go through DLPack.
        given = [[np.from_dlpack(pb.get_input_tensor_by_name(r, n)) for n in self.inputs] for r in requests]
        with open({seen!r}, "a") as file:
            file.write(json.dumps([[[list(a.shape), hashlib.sha256(a.tobytes()).hexdigest()] for a in g] for g in given]) + "\\n")
        joined = {{n: np.concatenate([g[i] for g in given]) for i, n in enumerate(self.inputs)}}
        results = self.session.run(self.outputs, joined)
        responses, start = [], 0
        for arrays in given:
            end = start + arrays[0].shape[0]
            parts = [pb.Tensor.from_dlpack(n, r[start:end].copy()) for n, r in zip(self.outputs, results)]
            responses.append(pb.InferenceResponse(parts))
            start = end
        return responses
'''


def wheel_folder():
    """Where the wheel was unpacked; None where it is not installed or has no stub for this Python."""
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    stub = f"tritonserver/python_backend_stubs/3.{sys.version_info.minor}"
    return folder if (folder / stub).is_dir() else None


@dataclass(frozen=True)
class Running:
    """url: host:port. seen: what the backend was given, a line of JSON for each run. log: all that the server says."""

    url: str
    seen: Path
    log: Path


@contextlib.contextmanager
def triton_server(repository, scratch):
    """Yield a server that has tried every model of `repository`; it ends with the block."""
    wheel, seen = wheel_folder() / "tritonserver", scratch / "seen.jsonl"
    python, ours = scratch / "backends/python", scratch / "backends/onnxruntime"
    shutil.copytree(wheel / "backends/python", python)
    stub = wheel / f"python_backend_stubs/3.{sys.version_info.minor}/triton_python_backend_stub"
    for source, target in (
        (stub, python / stub.name),
        (wheel / "bin/tritonserver", scratch / "tritonserver"),
    ):
        shutil.copy(source, target)
        target.chmod(0o755)
    ours.mkdir()
    path = [p for p in sys.path if p.endswith("site-packages")]
    (ours / "model.py").write_text(BACKEND.format(path=path, seen=str(seen)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        scratch / "tritonserver", f"--model-repository={repository}",
        f"--backend-directory={scratch / 'backends'}", "--http-address=127.0.0.1", f"--http-port={port}",
        "--allow-grpc=false", "--allow-metrics=false", "--exit-on-error=false", "--strict-readiness=false",
    ]  # fmt: skip
    libraries = {"LD_LIBRARY_PATH": str(wheel.parent.parent / "nvidia_pytriton.libs")}
    log = scratch / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ | libraries,
            cwd=scratch,  # else its Python finds our package `model` before the backend's file
        )
    try:
        _wait(process, port, log)
        yield Running(f"127.0.0.1:{port}", seen, log)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process, port, log):
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(f"tritonserver did not start: {log.read_text()[-3000:]}")
