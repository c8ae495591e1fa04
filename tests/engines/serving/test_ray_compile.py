"""Engines built on a Ray cluster: the same files and records, one clear error, and nothing half-written."""

import time

import onnx_ir as ir
import pytest
from engine_graphs import HIDDEN, Chain, fp8_linear, write
from serving_bundles import make_bundle

from blockforge.core.errors import BuildError, UsageError
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.ray_compile import ray_compiler
from blockforge.engines.serving.ray_api import cluster
from blockforge.engines.signature import signature_of
from blockforge.engines.target import Target
from blockforge.pipeline import build
from blockforge.recipe import recipe_from_dict
from blockforge.stages import compile_stage

pytest.importorskip("ray", reason="needs blockforge[serve]")
pytestmark = pytest.mark.slow
RECIPE = {
    "name": "tiny",
    "model": {"preset": "llama-tiny"},
    "export": {"precisions": ["bf16"]},  # ONNX Runtime's CPU kernels lack it
    "shapes": {"min": "input_ids:1x1", "opt": "input_ids:1x8", "max": "input_ids:2x16"},
    "engines": {"targets": ["onnxruntime:cpu"]},
    "validate": {"limits": {"max_error_over_floor": 3.0}},
}
SIZES = ShapeRange((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 16, HIDDEN))


@pytest.fixture(scope="module")
def node():
    with cluster(cpus=2) as ray:
        yield ray


def request_of(folder, model, target, name="hidden_states", sizes=SIZES):
    folder.mkdir()
    path = write(model, folder)
    return CompileRequest(path, Target.parse(target), {name: sizes}, folder)


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_the_engines_are_those_of_one_process(node, tmp_path):
    (tmp_path / "here").mkdir()
    requests = [
        request_of(tmp_path / f"{n}", Chain(dtype, blocks=1).build(), target)
        for n, (dtype, target) in enumerate(
            [("fp32", "onnxruntime:cpu"), ("fp16", "tensorrt-rtx:sm89")]
        )
    ]
    steps = []
    records = ray_compiler()(requests, steps.append)
    assert [r.target for r in records] == [str(r.target) for r in requests]
    assert (steps[0].done, steps[-1].done, steps[-1].total) == (0, 2, 2)
    for record, request in zip(records, requests, strict=True):
        for path in filter(None, (record.path, record.layers)):
            assert (request.folder / path).stat().st_size > 0
    here = request_of(tmp_path / "here" / "x", Chain("fp16", blocks=1).build(), "tensorrt-rtx:sm89")
    alone, there = compile_engine(here), records[1]
    assert (alone.kernels, alone.dtypes, alone.path) == (there.kernels, there.dtypes, there.path)


def test_the_first_error_is_raised_as_it_is_and_stops_the_rest(node, tmp_path):
    good = request_of(tmp_path / "good", Chain("fp32", blocks=4).build(), "tensorrt-rtx:sm89")
    sizes = ShapeRange((1, HIDDEN), (2, HIDDEN), (4, HIDDEN))
    bad = request_of(tmp_path / "bad", fp8_linear(), "tensorrt-rtx:sm80", "x", sizes)
    with pytest.raises(BuildError) as error:
        ray_compiler()([bad, good, good], lambda step: None)
    assert type(error.value) is BuildError and "fp8" in str(error.value).lower()
    left = [f for f in files(tmp_path) if "partial" in f or f.startswith("bad/engines")]
    assert left == []


def test_a_folder_that_a_node_does_not_see_is_named(node, tmp_path):
    request = request_of(tmp_path / "x", Chain("fp32", blocks=1).build(), "onnxruntime:cpu")
    request.model.unlink()
    with pytest.raises(UsageError, match=r"does not see .*model\.onnx.*--ray local"):
        ray_compiler()([request], lambda step: None)


def test_a_task_that_dies_is_a_build_error(node, tmp_path, monkeypatch):
    import os

    request = request_of(tmp_path / "x", Chain("fp32", blocks=1).build(), "onnxruntime:cpu")
    monkeypatch.setattr("blockforge.engines.ray_compile._compile", lambda request: os._exit(7))
    with pytest.raises(BuildError, match="ended without a result"):
        ray_compiler()([request], lambda step: None)


def test_an_error_ends_a_build_that_runs_and_what_it_had_begun(node, tmp_path, monkeypatch):
    """The second fails once the first one's builder is at work, and that build goes no further by itself."""
    good = request_of(tmp_path / "good", Chain("fp32", blocks=6).build(), "tensorrt-rtx:sm89")
    bad = request_of(tmp_path / "bad", Chain("fp32", blocks=1).build(), "onnxruntime:cpu")
    at_work = tmp_path / "at_work"

    def held(step):
        if step.total:
            at_work.touch()
            for _ in range(30_000):  # Ray interrupts between two, not in one long sleep
                time.sleep(0.01)

    def late(request):
        if request.folder.name == "good":
            return compile_engine(request, held)
        deadline = time.monotonic() + 120
        while not at_work.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        raise BuildError("late", found="it failed while another one was building")

    monkeypatch.setattr("blockforge.engines.ray_compile._compile", late)
    with pytest.raises(BuildError, match="while another one"):
        ray_compiler()([good, bad], lambda step: None)
    assert files(good.folder) == ["model.onnx", "model.onnx.data"]


def test_the_stage_keeps_each_engine_with_its_graph(node, tmp_path):
    made = make_bundle(tmp_path / "b", golden=False)
    model = Chain("fp16", blocks=1).build()
    (made.path / "fp16").mkdir()
    write(model, made.path / "fp16")
    inputs, outputs = signature_of(ir.from_proto(model))
    (wide,) = made.manifest.variants
    half = wide.model_copy(
        update={
            "precision": "fp16",
            "model": "fp16/model.onnx",
            "inputs": inputs,
            "outputs": outputs,
        }
    )
    manifest = made.manifest.model_copy(update={"variants": (wide, half)})
    recipe = recipe_from_dict(RECIPE)
    targets = (Target.parse("onnxruntime:cpu"),)
    stage = compile_stage(
        recipe, targets, manifest, made.path, tmp_path / "out", lambda step: None, ray_compiler()
    )
    types = {v.precision: set(e.dtypes) for v in stage.variants for e in v.engines}
    assert "fp16" not in types["fp32"] and "fp16" in types["fp16"]
    assert files(tmp_path / "out") == [
        f"{p}/engines/onnxruntime-cpu.layers.json" for p in ("fp16", "fp32")
    ]


def test_a_build_that_fails_on_the_cluster_leaves_nothing(node, tmp_path):
    with pytest.raises(BuildError, match="bf16") as error:
        build(RECIPE, tmp_path / "b", compiler=ray_compiler())
    assert type(error.value) is BuildError
    assert list(tmp_path.iterdir()) == []
