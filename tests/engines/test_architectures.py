"""One TensorRT-RTX engine for several architectures: built for real, beside an engine for each alone."""

import numpy as np
import pytest
from engine_graphs import HIDDEN, fp8_linear, model_of, write
from onnx import TensorProto, helper

from blockforge.core.errors import BuildError, UnavailableError, UsageError
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine, dry_run
from blockforge.engines.gpu import Gpu
from blockforge.engines.layers_file import load_layers
from blockforge.engines.plan_diff import diff_plans
from blockforge.engines.preflight import preflight
from blockforge.engines.session_fit import pick_gpu
from blockforge.engines.session_source import Source
from blockforge.engines.target import Target

WIDTH = 256


def three_fp8_linears():
    """A norm and three FP8 products that read it: sm89 and sm120 plan them otherwise."""
    nodes = [helper.make_node("RMSNormalization", ["x", "g"], ["n"], name="norm", axis=-1)]
    weights = {"g": np.ones(WIDTH, np.float16), "s": np.array(0.05, np.float16)}

    def quantised(name):
        nodes.extend(
            [
                helper.make_node(
                    "QuantizeLinear", [name, "s"], [f"{name}q"], name=f"{name}/q",
                    output_dtype=TensorProto.FLOAT8E4M3FN,
                ),
                helper.make_node("DequantizeLinear", [f"{name}q", "s"], [f"{name}d"], name=f"{name}/d"),
            ]
        )  # fmt: skip
        return f"{name}d"

    read = quantised("n")
    for i in range(3):
        weights[f"w{i}"] = (
            np.random.default_rng(i).standard_normal((WIDTH, WIDTH)).astype(np.float16)
        )
        nodes.append(
            helper.make_node("MatMul", [read, quantised(f"w{i}")], [f"y{i}"], name=f"linear{i}")
        )
    edge = ("fp16", ["b", "s", WIDTH])
    return model_of(nodes, {"x": edge}, {f"y{i}": edge for i in range(3)}, weights)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Architectures -> (record, planned kernels)."""
    folder = tmp_path_factory.mktemp("built")
    model = write(three_fp8_linears(), folder)
    sizes = {"x": ShapeRange((1, 1, WIDTH), (2, 2, WIDTH), (4, 4, WIDTH))}
    made = {}
    for device in ("sm89", "sm120", "sm120+sm89"):
        record = compile_engine(
            CompileRequest(model, Target.parse(f"tensorrt-rtx:{device}"), sizes, folder)
        )
        made[device] = record, load_layers(folder / record.layers)
    return made


def test_it_is_one_engine_under_its_own_name(built):
    record, layers = built["sm120+sm89"]
    assert record.target == layers.target == "tensorrt-rtx:sm89+sm120"
    assert record.path == "engines/tensorrt-rtx-sm89+sm120.plan"
    assert record.bytes < sum(built[one][0].bytes for one in ("sm89", "sm120"))
    assert record.dtypes["fp8_e4m3"] >= 3


def test_one_plan_holds_for_all_and_need_not_be_that_of_each_alone(built):
    """As TensorRT-RTX 1.7.1 does it: what sm120 gets alone, both get together."""
    both = built["sm120+sm89"][1]
    assert diff_plans(built["sm120"][1], both).equal
    assert not diff_plans(built["sm89"][1], both).equal


def test_the_rules_of_every_architecture_hold(tmp_path):
    path = write(fp8_linear(), tmp_path)
    sizes = {"x": ShapeRange((1, HIDDEN), (2, HIDDEN), (4, HIDDEN))}
    old = Target.parse("tensorrt-rtx:sm80+sm89")
    assert (
        not preflight(path, old).passed
        and preflight(path, Target.parse("tensorrt-rtx:sm89")).passed
    )
    with pytest.raises(BuildError, match=r"fp8_e4m3.*sm80"):
        compile_engine(CompileRequest(path, old, sizes, tmp_path))


def test_the_cache_tells_them_apart(tmp_path):
    path = write(fp8_linear(), tmp_path)
    sizes = {"x": ShapeRange((1, HIDDEN), (2, HIDDEN), (4, HIDDEN))}
    parts = [
        dry_run(CompileRequest(path, Target.parse(f"tensorrt-rtx:{d}"), sizes, tmp_path)).parts[
            "architectures"
        ]
        for d in ("sm89", "sm89+sm120", "sm120+sm89")
    ]
    assert parts == ["sm89", "sm89,sm120", "sm89,sm120"]


@pytest.mark.parametrize(
    ("architecture", "fits"), [("sm120", True), ("sm89", True), ("sm86", False)]
)
def test_an_engine_for_several_architectures_runs_on_each(monkeypatch, architecture, fits):
    several = Target.parse("tensorrt-rtx:sm120+sm89")
    monkeypatch.setattr("blockforge.engines.session_fit.gpus", lambda: (Gpu("g", architecture, 1),))
    monkeypatch.setattr("blockforge.engines.session_fit.check_runnable", lambda target: None)
    source = Source("plan", several, plan=b"")
    if fits:
        assert pick_gpu(source, None) == 0
        return
    with pytest.raises(UnavailableError, match="no GPU that it was built for"):
        pick_gpu(source, None)
    with pytest.raises(UsageError, match=r"g is sm86, the engine is for sm89\+sm120"):
        pick_gpu(source, 0)
