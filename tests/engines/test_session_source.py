"""What a session may be opened on, and the order in which it is checked: hash, version, architecture, only then loading."""

import shutil

import numpy as np
import pytest
from session_rig import WEIGHT, Rig, linear, numbers, weights

from blockforge.core.bundle import Bundle, seal
from blockforge.core.errors import ArtefactError, UnavailableError, UsageError
from blockforge.core.manifest import (
    EngineRecord,
    Manifest,
    RangeRecord,
    TensorRecord,
    VariantRecord,
)
from blockforge.engines.gpu import Gpu
from blockforge.engines.layers_file import LayersFile, save_layers
from blockforge.engines.session import Session, SessionOptions


@pytest.fixture
def rig(monkeypatch, tmp_path):
    return Rig(monkeypatch, tmp_path)


def record(name, width, kind="fp32"):
    return TensorRecord(name=name, dtype=kind, dims=("batch", "sequence", width))


def bundle(rig, *, runtime=None, options=None, inputs=None, outputs=None, path="e.plan"):
    """A sealed bundle with the plan that the rig makes."""
    folder = rig.folder / "bundle"
    shutil.rmtree(folder, ignore_errors=True)
    engines = folder / "fp32" / "engines"
    engines.mkdir(parents=True)
    plan, _ = rig.plan()
    shutil.copy(plan, engines / path)
    (folder / "fp32" / "model.onnx").write_bytes(linear().SerializeToString())
    engine = EngineRecord(
        target=rig.target, runtime=runtime or rig.version, path=f"fp32/engines/{path}",
        layers=None, bytes=1, build_seconds=1, options=options or {},
    )  # fmt: skip
    variant = VariantRecord(
        precision="fp32", model="fp32/model.onnx", opset=24, num_blocks=0,
        inputs=inputs or (record("x", 2),), outputs=outputs or (record("z", 3), record("y", 3)),
        profile={"x": RangeRecord(min=(1, 1, 2), opt=(1, 2, 2), max=(2, 4, 2))},
        operators={}, dtypes={}, engines=(engine,),
    )  # fmt: skip
    seal(folder, Manifest(name="t", created="", recipe={}, tools={}, variants=(variant,)))
    return Bundle.open(folder)


def opened(rig, source, **arguments):
    with Session(source, **arguments) as session:
        session.run({"x": numbers(2, 3)})
        return session


def test_a_bundle_gives_names_to_axes_and_the_engine_its_profiles(rig):
    session = opened(rig, bundle(rig), target=rig.target)
    assert session.inputs[0].dims == ("batch", "sequence", 2)
    assert [t.name for t in session.outputs] == ["y", "z"], "in the engine's order"
    assert len(session.profiles) == 2 and session.profile == session.profiles[0]


def test_the_hash_comes_first_then_version_then_architecture_then_the_header(rig):
    source = bundle(rig, runtime="tensorrt 11.3.0")
    plan = source.path / "fp32" / "engines" / "e.plan"
    good = plan.read_bytes()
    rig.patch.setattr("blockforge.engines.session_fit.gpus", lambda: (Gpu("old", "sm80", 1),))
    plan.write_bytes(good[:-1] + b"?")
    with pytest.raises(ArtefactError, match=r"e\.plan has another SHA-256"):
        Session(source, target=rig.target)
    plan.write_bytes(good)
    with pytest.raises(ArtefactError, match=r"built with tensorrt 11\.3\.0, and here is tensorrt"):
        Session(source, target=rig.target)
    source = bundle(rig)
    rig.patch.setattr("blockforge.engines.session_fit.check_runnable", lambda target: None)
    with pytest.raises(UnavailableError, match="no GPU that it was built for"):
        Session(source, target=rig.target)
    assert not rig.trt.deserialised, "nothing was loaded"
    rig.patch.setattr("blockforge.engines.session_fit.gpus", lambda: (Gpu("new", "sm90", 1),))
    opened(rig, source, target=rig.target)
    assert rig.trt.deserialised == 1


def test_a_file_that_changes_after_it_was_verified_is_not_loaded(rig):
    """The bytes that are deserialised are those that were hashed, whatever happens to the file between."""
    source = bundle(rig)
    plan = source.path / "fp32" / "engines" / "e.plan"
    verify = Bundle.verify

    def then_changed(self, trusted=()):
        verify(self, trusted)
        plan.write_bytes(b"evil" + plan.read_bytes())

    rig.patch.setattr(Bundle, "verify", then_changed)
    with pytest.raises(ArtefactError, match="its SHA-256 is"):
        Session(source, target=rig.target)
    assert not rig.trt.deserialised


def test_without_verifying_a_changed_plan_reaches_tensorrt(rig):
    source = bundle(rig)
    plan = source.path / "fp32" / "engines" / "e.plan"
    plan.write_bytes(b"another format")
    with pytest.raises(ArtefactError, match=r"cannot load it: Magic tag does not match"):
        Session(source, target=rig.target, verify=False)
    rig.cuda.check_clean()


@pytest.mark.parametrize(
    ("built", "options", "fits"),
    [
        ("tensorrt 11.4.0", {}, True),
        ("tensorrt 11.3.9", {}, False),
        ("tensorrt 11.3.9", {"version_compatible": True}, True),
        ("tensorrt 11.10.0", {"version_compatible": True}, False),
        ("tensorrt 10.9.0", {"version_compatible": True}, False),
        ("tensorrt-rtx 11.4.0", {"version_compatible": True}, False),
    ],
)
def test_versions(rig, built, options, fits):
    source = bundle(rig, runtime=built, options=options)
    if fits:
        opened(rig, source, target=rig.target)
        return
    with pytest.raises(ArtefactError, match=r"Compile it here, or install tensorrt"):
        Session(source, target=rig.target)


@pytest.mark.parametrize(
    ("architecture", "options", "fits"),
    [
        ("sm90", {}, True),
        ("sm89", {}, False),
        ("sm120", {"hardware_compatibility": "ampere_plus"}, True),
        ("sm75", {"hardware_compatibility": "ampere_plus"}, False),
        ("sm120", {"hardware_compatibility": "same_compute_capability"}, False),
    ],
)
def test_architectures(rig, architecture, options, fits):
    source = bundle(rig, options=options)
    gpus = (Gpu("other", "sm70", 1), Gpu("g", architecture, 1))
    rig.patch.setattr("blockforge.engines.session_fit.gpus", lambda: gpus)
    rig.patch.setattr("blockforge.engines.session_fit.check_runnable", lambda target: None)
    if fits:
        opened(rig, source, target=rig.target)
        opened(rig, source, target=rig.target, options=SessionOptions(device=1))
    else:
        with pytest.raises(UnavailableError):
            Session(source, target=rig.target)
    with pytest.raises(UsageError, match=r"other is sm70, the engine is for sm90"):
        Session(source, target=rig.target, options=SessionOptions(device=0))
    with pytest.raises(UsageError, match=r"GPU 2: no such GPU here. There is 0 \(other\), 1 \(g\)"):
        Session(source, target=rig.target, options=SessionOptions(device=2))


@pytest.mark.parametrize("options", [{}, {"version_compatible": True}])
def test_only_a_version_compatible_plan_may_bring_host_code(rig, options):
    plan = rig.plan
    rig.plan = lambda: plan(host_code=True)
    source = bundle(rig, options=options)
    if options:
        opened(rig, source, target=rig.target)
    else:
        with pytest.raises(ArtefactError, match="host code is not allowed"):
            Session(source, target=rig.target)


def test_a_refit_knows_the_shapes_of_the_bundles_graph(rig):
    plan = rig.plan
    rig.plan = lambda: plan(refit=True)
    with Session(bundle(rig), target=rig.target) as session:
        words = r"'pair_w': shape \(3, 2\). The graph has \(2, 3\)"
        with pytest.raises(UsageError, match=words):
            session.refit(weights(pair_w=WEIGHT.T.astype(np.float32)))
        session.refit(weights())


def test_tensorrt_rtx_reads_the_header_before_the_rest(monkeypatch, tmp_path):
    rig = Rig(monkeypatch, tmp_path, architecture="sm89", rtx=True, version="1.7.1")
    opened(rig, bundle(rig), target=rig.target)
    rig.trt.validity = (rig.trt.EngineValidity.INVALID, 3)
    loaded = rig.trt.deserialised
    with pytest.raises(ArtefactError, match=r"of its header: version_mismatch, unsupported_cc"):
        Session(bundle(rig), target=rig.target)
    assert rig.trt.deserialised == loaded


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": (record("x", 3),)}, r"input x \(fp32, batchxsequencex3\).*the engine has x"),
        ({"inputs": (record("x", 2, "fp16"),)}, r"input x \(fp16"),
        ({"inputs": (record("w", 2),)}, r"input w .* it is missing"),
        ({"outputs": (record("y", 3),)}, r"output 'z' of the engine is not in the manifest"),
    ],
)
def test_an_engine_of_another_graph(rig, change, words):
    with pytest.raises(ArtefactError, match=words):
        Session(bundle(rig, **change), target=rig.target)
    rig.cuda.check_clean()


def test_a_shape_tensor_in_host_memory_is_refused(rig):
    path, digest = rig.plan()
    rig.trt.location = "HOST"
    from fake_tensorrt import Engine

    rig.patch.setattr(
        Engine, "get_tensor_location", lambda self, name: self.trt.TensorLocation.HOST
    )
    with pytest.raises(UsageError, match="'x' is a shape tensor"):
        Session(path, target=rig.target, verify=digest)
    rig.cuda.check_clean()


def test_a_lone_plan(rig):
    path, digest = rig.plan()
    with pytest.raises(UsageError, match=r"no bundle around it.*verify=False"):
        Session(path, target=rig.target)
    assert not rig.trt.deserialised
    with pytest.raises(ArtefactError, match=f"its SHA-256 is {digest}"):
        Session(path, target=rig.target, verify="0" * 64)
    with pytest.raises(UsageError, match="no SHA-256"):
        Session(path, target=rig.target, verify="yes")
    with pytest.raises(UsageError, match=r"neither a target nor engine\.layers\.json"):
        Session(path, verify=digest)
    with pytest.raises(UsageError, match=r"onnxruntime:cpu: it was built for TensorRT"):
        Session(path, target="onnxruntime:cpu", verify=digest)
    with pytest.raises(UsageError, match="no such file"):
        Session(rig.folder / "other.plan", target=rig.target)
    for verify in (digest.upper(), False):
        opened(rig, path, target=rig.target, verify=verify)


def test_a_lone_plan_with_its_layers(rig):
    path, digest = rig.plan()
    layers = path.with_name("engine.layers.json")
    head = {"target": rig.target, "runtime": rig.version, "source": "builder", "num_blocks": 0}
    save_layers(LayersFile(**head, kernels=()), layers)
    assert str(opened(rig, path, verify=digest).target) == rig.target
    with pytest.raises(UsageError, match=f"built for {rig.target}"):
        Session(path, target="tensorrt:sm80", verify=digest)
    save_layers(LayersFile(**head | {"runtime": "tensorrt 11.0.0"}, kernels=()), layers)
    with pytest.raises(ArtefactError, match=r"built with tensorrt 11\.0\.0"):
        Session(path, verify=digest)
    fits = {"runtime": "tensorrt 11.0.0", "options": {"version_compatible": True}}
    save_layers(LayersFile(**head | fits, kernels=()), layers)
    opened(rig, path, verify=digest)


def test_a_plan_in_a_bundle_is_verified_by_its_manifest(rig):
    source = bundle(rig)
    path = source.path / "fp32" / "engines" / "e.plan"
    opened(rig, path, target=rig.target)
    shutil.copy(path, path.with_name("stranger.plan"))
    with pytest.raises(UsageError, match="no bundle around it"):
        Session(path.with_name("stranger.plan"), target=rig.target)
    path.write_bytes(path.read_bytes() + b"!")
    with pytest.raises(ArtefactError, match="its SHA-256 is"):
        Session(path, target=rig.target)


@pytest.mark.parametrize(
    ("option", "value"), [("contexts", 0), ("wait_seconds", -1), ("cuda_graphs", -1)]
)
def test_options_out_of_range(option, value):
    with pytest.raises(UsageError, match=f"{option}.*{value}"):
        SessionOptions(**{option: value})
    SessionOptions(**{option: value + 1})
