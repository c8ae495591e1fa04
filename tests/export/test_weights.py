"""Streaming: one tensor at a time, checked, swapped where the graph says so."""

import subprocess
import sys

import onnx_ir as ir
import pytest
import torch

from blockforge.core.errors import ArtefactError
from blockforge.core.progress import silent
from blockforge.export.layout import TRANSPOSED
from blockforge.export.weights import mapped_weights, stream_weights

MEMORY = """
import sys, pathlib, torch, onnx_ir as ir
from blockforge.core.progress import silent
from blockforge.export.layout import TRANSPOSED
from blockforge.export.weights import stream_weights
def peak():  # not ru_maxrss: that starts at the parent's
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
def stream(count, side):
    values = []
    for i in range(count):
        value = ir.Value(name=f"w{i}", type=ir.TensorType(ir.DataType.FLOAT16), shape=ir.Shape([side, side]))
        value.meta[TRANSPOSED] = bool(i % 2)  # half of them
        values.append(value)
    model = ir.Model(ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 24}), ir_version=12)
    def read(name, dtype):
        return torch.full((side, side), int(name[1:]) + 0.5, dtype=dtype)
    stream_weights(model, read, pathlib.Path(sys.argv[1]) / "w.data", silent)
stream(4, 1024)  # imports and thread pools
before = peak()
stream(48, 2048)
print(peak() - before)
"""


def test_memory_stays_at_a_few_tensors(tmp_path):
    """384 MiB pass through; one tensor (8 MiB), its last and next neighbour and the 16 MiB parts may be alive."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert (tmp_path / "w.data").stat().st_size == 48 * 2**23
    assert float(done.stdout) < 64  # MiB, of 384; between 26 and 50 were seen


def graph(
    *shapes: tuple[int, ...], dtype=ir.DataType.FLOAT, turned: tuple[int, ...] = ()
) -> ir.Model:
    values = []
    for i, shape in enumerate(shapes):
        value = ir.Value(name=f"w{i}", type=ir.TensorType(dtype), shape=ir.Shape(shape))
        value.meta[TRANSPOSED] = i in turned
        values.append(value)
    body = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 24})
    return ir.Model(body, ir_version=12)


@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT64", "BOOL"])
def test_what_is_written_is_what_was_read(tmp_path, dtype: str):
    shapes = ((6, 5), (), (0, 3), (7,), (3, 9000))
    model = graph(*shapes, dtype=ir.DataType[dtype], turned=(0, 4))
    weights: dict[str, torch.Tensor] = {}

    def read(name: str, asked: torch.dtype) -> torch.Tensor:
        shape = shapes[int(name[1:])]
        turned = shape[::-1] if name in ("w0", "w4") else shape
        weights[name] = (torch.randn(turned) * 100).to(asked)
        return weights[name]

    stream_weights(model, read, tmp_path / "w.data", silent)
    for name, value in model.graph.initializers.items():
        stored = weights[name].t() if name in ("w0", "w4") else weights[name]
        raw = stored.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        assert value.const_value.tobytes() == raw if raw else value.const_value.nbytes == 0
    for name, mapped in mapped_weights(model).items():
        assert torch.equal(mapped, weights[name])


def test_faults_are_gathered_named_and_leave_nothing(tmp_path):
    def read(name: str, dtype: torch.dtype) -> torch.Tensor:
        if name in ("w1", "w3"):
            raise ArtefactError("weights of here", found=f"{name} holds NaN", fix="Mend it")
        return torch.ones(4, dtype=dtype)

    with pytest.raises(ArtefactError, match=r"2 tensors: w1 holds NaN; w3 holds NaN\. Mend it"):
        stream_weights(graph(*[(4,)] * 5), read, tmp_path / "w.data", silent)
    assert not list(tmp_path.iterdir())


def test_many_faults_are_counted(tmp_path):
    def read(name: str, dtype: torch.dtype) -> torch.Tensor:
        raise ArtefactError("weights of here", found=f"{name} holds NaN")

    with pytest.raises(ArtefactError, match=r"20 tensors: w0 .*w7 holds NaN; and 12 more"):
        stream_weights(graph(*[(4,)] * 20), read, tmp_path / "w.data", silent)


def test_a_shape_that_the_graph_does_not_have(tmp_path):
    with pytest.raises(ArtefactError, match=r"w0 has shape \[5\]"):
        stream_weights(graph((4,)), lambda n, d: torch.ones(5), tmp_path / "w.data", silent)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_nothing(tmp_path):
    def read(name: str, dtype: torch.dtype) -> torch.Tensor:
        if name == "w2":
            raise KeyboardInterrupt
        return torch.ones(4, dtype=dtype)

    with pytest.raises(KeyboardInterrupt):
        stream_weights(graph(*[(4,)] * 5), read, tmp_path / "w.data", silent)
    assert not list(tmp_path.iterdir())
