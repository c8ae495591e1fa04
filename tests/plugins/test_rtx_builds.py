"""Function bodies build in TensorRT-RTX, inlined by the engines room and otherwise unchanged: one kernel each."""

import json
import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from plugin_samples import NAMES, make_case

from blockforge.core.domain import DOMAIN, DOMAIN_VERSION
from blockforge.core.dtypes import DType
from blockforge.engines.legalize import legalize
from blockforge.engines.target import Target
from blockforge.plugins.bodies import OPSET
from blockforge.plugins.checks import output_dtypes
from blockforge.plugins.policy import EVIDENCE
from blockforge.plugins.registry import plugin_named

pytest.importorskip("tensorrt_rtx")


def model_of(name, dtype, calls=1):
    """A graph of `calls` nodes with weights and scale as initializers and dynamic rows."""
    case = make_case(plugin_named(name), (1, 8), 64, dtype)
    table = case.plugin.table
    dtypes = [next(d for d in DType if d.torch == v.dtype) for v in case.inputs]
    nodes, inputs, outputs, weights = [], [], [], []
    for i in range(calls):
        names = []
        for tensor, value, kind in zip(table.inputs, case.inputs, dtypes, strict=True):
            full = f"{tensor.name}_{i}"
            names.append(full)
            if tensor.type in "WS":
                raw = onnx.helper.make_tensor(
                    full, kind.onnx, value.shape, value.view(-1).view(dtype_bits(value)).numpy().tobytes(), raw=True
                )  # fmt: skip
                weights.append(raw)
            else:
                dims = [1, "rows", *value.shape[2:]]
                inputs.append(onnx.helper.make_tensor_value_info(full, kind.onnx, dims))
        results = [f"{t.name}_{i}" for t in table.outputs]
        for result, kind, value in zip(
            results, output_dtypes(table, dtypes), case.reference(), strict=True
        ):
            dims = [1, "rows", *value.shape[2:]]
            outputs.append(onnx.helper.make_tensor_value_info(result, kind.onnx, dims))
        nodes.append(
            onnx.helper.make_node(
                name, names, results, name=f"layer.{i}", domain=DOMAIN, **case.attributes
            )
        )
    opsets = [("", OPSET), (DOMAIN, DOMAIN_VERSION)]
    return onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", inputs, outputs, weights),
        opset_imports=[onnx.helper.make_opsetid(*o) for o in opsets],
        functions=[case.plugin.body],
        ir_version=11,
    )


def dtype_bits(value):
    import torch

    return {2: torch.int16, 4: torch.int32}[value.element_size()]


@pytest.fixture(scope="module")
def builds(tmp_path_factory):
    """What TensorRT-RTX says of every operator in FP16, and of two calls in one graph."""
    return run_builds(
        tmp_path_factory.mktemp("rtx"),
        {n: model_of(n, DType.FP16) for n in NAMES}
        | {f"two_{n}": model_of(n, DType.FP16, calls=2) for n in ("AddRMSNormQuantize",)},
    )


def run_builds(folder, models):
    for name, model in models.items():
        legal, _ = legalize(ir.from_proto(model), Target.parse("tensorrt-rtx:sm89"))
        ir.save(legal, folder / f"{name}.onnx")
    script = str(Path(__file__).with_name("rtx_build.py"))
    done = subprocess.run(
        [sys.executable, script, str(folder), "89"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {row.pop("name"): row for row in map(json.loads, done.stdout.splitlines())}


def kernels(found):
    return [layer for layer in found["layers"] if layer != "shape_call"]


@pytest.mark.parametrize("name", NAMES)
def test_body_builds(builds, name):
    """The counts are the policy's evidence: TensorRT-RTX fuses these bodies by itself."""
    assert "error" not in builds[name], builds[name]
    assert len(kernels(builds[name])) == EVIDENCE[name].rtx_kernels


def test_two_calls_build(builds):
    """A QuantizeLinear in a function that is called twice fails unless names are made unique."""
    assert "error" not in builds["two_AddRMSNormQuantize"], builds["two_AddRMSNormQuantize"]
    assert len(kernels(builds["two_AddRMSNormQuantize"])) == 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16], ids=lambda d: d.value)
def test_bodies_build_in_other_types(tmp_path, dtype):
    found = run_builds(tmp_path, {n: model_of(n, dtype) for n in NAMES})
    assert {n: f["error"] for n, f in found.items() if "error" in f} == {}
