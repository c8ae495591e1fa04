"""A target that no engine was built for alone is served by a joint engine, wherever a target can be named."""

import json

import pytest
from planned import bundle_of, recorded
from session_rig import Rig, linear, numbers, ran
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.bundle import Bundle, seal
from blockforge.core.errors import ArtefactError, UsageError
from blockforge.core.manifest import (
    EngineRecord,
    Manifest,
    RangeRecord,
    TensorRecord,
    VariantRecord,
)
from blockforge.engines.engine_choice import engine_for
from blockforge.engines.gpu import Gpu
from blockforge.engines.layers_file import LayersFile, save_layers
from blockforge.engines.serving.preflight import check_served
from blockforge.engines.serving.served_model import ServeOptions
from blockforge.engines.session import Session
from blockforge.engines.target import Target
from blockforge.validate.divergence import open_source
from blockforge.validate.divergence import plan_side as plans
from blockforge.validate.latency import sides

RTX, JOINT = "tensorrt-rtx:sm89", "tensorrt-rtx:sm89+sm120"
WIDE = "tensorrt-rtx:sm86+sm89"


def engine(target, runtime="r 1"):
    slug = Target.parse(target).slug
    return EngineRecord(
        target=target, runtime=runtime, path=f"fp32/engines/{slug}.plan", layers=None, bytes=1, build_seconds=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "has", "found"),
    [
        (RTX, [RTX], RTX),
        (RTX, [JOINT], JOINT),
        (RTX, [JOINT, RTX, WIDE], RTX),
        ("tensorrt-rtx:sm120", [RTX, JOINT], JOINT),
        ("tensorrt-rtx:sm120+sm89", ["tensorrt-rtx:sm86+sm89+sm120"], "tensorrt-rtx:sm86+sm89+sm120"),
        ("tensorrt-rtx:sm86", [JOINT], None),  # the near misses
        (JOINT, [RTX, "tensorrt-rtx:sm120"], None),
        ("tensorrt:sm89", [JOINT], None),
        ("onnxruntime:cpu", ["onnxruntime:cuda"], None),
    ],
)  # fmt: skip
def test_the_engine_for_a_target(asked, has, found):
    chosen = engine_for(map(engine, has), Target.parse(asked), "e")
    assert (chosen and chosen.target) == found


def test_several_that_cover_it_are_an_error_that_lists_them():
    with pytest.raises(UsageError, match=r"2 engines cover it: .*sm89\+sm120, .*sm86\+sm89.*Name"):
        engine_for(map(engine, (JOINT, WIDE)), Target.parse(RTX), "e")


@pytest.fixture
def rig(monkeypatch, tmp_path):
    return Rig(monkeypatch, tmp_path, architecture="sm89", rtx=True)


def bundle(rig, *targets):
    """A sealed bundle with an engine for each target."""
    folder = rig.folder / "bundle"
    (folder / "fp32" / "engines").mkdir(parents=True)
    (folder / "fp32" / "model.onnx").write_bytes(linear().SerializeToString())
    engines = tuple(engine(target, rig.version) for target in targets)
    for each in engines:
        (folder / each.path).write_bytes(rig.plan()[0].read_bytes())
    edges = {n: TensorRecord(name=n, dtype="fp32", dims=("batch", "sequence", w)) for n, w in (("x", 2), ("y", 3), ("z", 3))}  # fmt: skip
    variant = VariantRecord(
        precision="fp32", model="fp32/model.onnx", opset=24, num_blocks=0, operators={}, dtypes={},
        inputs=(edges["x"],), outputs=(edges["y"], edges["z"]), engines=engines,
        profile={"x": RangeRecord(min=(1, 1, 2), opt=(1, 2, 2), max=(2, 4, 2))},
    )  # fmt: skip
    seal(folder, Manifest(name="t", created="", recipe={}, tools={}, variants=(variant,)))
    return Bundle.open(folder)


def test_a_session_on_either_architecture_takes_the_joint_engine(rig):
    source = bundle(rig, JOINT)
    with Session(source, target=RTX) as session:
        ran(session, numbers(2, 3))
        assert str(session.target) == RTX
    gpus = (Gpu("a", "sm120", 1), Gpu("b", "sm89", 1))
    rig.patch.setattr("blockforge.engines.session_fit.gpus", lambda: gpus)
    opened = []
    rig.patch.setattr("blockforge.engines.cuda.runtime.CudaRuntime", lambda n: opened.append(n) or rig.cuda)  # fmt: skip
    Session(source, target=RTX).close()
    assert opened == [1], "the GPU that was asked for, not the first that the engine fits"
    with pytest.raises(ArtefactError, match=r"sm86.*the bundle has tensorrt-rtx:sm89\+sm120"):
        Session(source, target="tensorrt-rtx:sm86")
    rig.cuda.check_clean()


def test_a_session_does_not_choose_between_two(rig):
    source = bundle(rig, JOINT, WIDE)
    with pytest.raises(UsageError, match="2 engines cover it"):
        Session(source, target=RTX)
    Session(source, target=JOINT).close()


def test_a_lone_joint_plan(rig):
    path, digest = rig.plan()
    head = {"target": JOINT, "runtime": rig.version, "source": "builder", "num_blocks": 0}
    save_layers(LayersFile(**head, kernels=()), path.with_name("engine.layers.json"))
    for target in (None, RTX, JOINT):
        Session(path, target=target, verify=digest).close()
    with pytest.raises(UsageError, match=r"sm86: it was built for tensorrt-rtx:sm89\+sm120"):
        Session(path, target="tensorrt-rtx:sm86", verify=digest)


def test_serve_bench_and_diff_take_it(rig):
    source = bundle(rig, JOINT)
    assert str(check_served(source, ServeOptions(target=RTX))) == RTX
    with pytest.raises(UsageError, match="the bundle has"):
        check_served(source, ServeOptions(target="tensorrt-rtx:sm86"))
    for module in (sides, plans):
        rig.patch.setattr(module, "check_runnable", lambda target: None)
    launched, replayed = sides.subjects_of(source, (), [RTX])
    assert launched.label == f"fp32 {JOINT}" and replayed.cuda_graph, "the engine's own name"
    assert launched.path == source.path / "fp32/engines/tensorrt-rtx-sm89+sm120.plan"
    assert open_source(f"{source.path}@{RTX}").plan == launched.path


def test_inspect_and_diff_plan_take_it(listings, tmp_path):
    both = recorded(listings).model_copy(update={"target": JOINT})
    source = bundle_of(tmp_path / "b", {"fp16": [both]})
    alone = bundle_of(tmp_path / "a", {"fp16": [recorded(listings)]})

    def command(*words):
        done = CliRunner().invoke(app, [*map(str, words), "--json"])
        assert done.exit_code == 0, done.exception
        return json.loads(done.stdout)

    (shown,) = command("inspect", source, "-t", RTX, "-t", "tensorrt-rtx:sm120+sm89")
    assert shown["engine"] == f"fp16 {JOINT}"
    assert command("diff-plan", source, alone, "-t", RTX)["equal"]
    for words in (["inspect", source, "-t", "tensorrt-rtx:sm86"], ["inspect", alone, "-t", JOINT]):
        refused = CliRunner().invoke(app, [*map(str, words)]).exception
        assert isinstance(refused, UsageError) and "none fits the choice" in str(refused)
