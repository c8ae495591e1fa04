"""A bundle's graphs, its PyTorch reference, its golden inputs and its engines as sides of a comparison."""

import gc
import json
import shutil
import weakref

import pytest
import torch
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.bundle import Bundle, seal
from blockforge.core.errors import ArtefactError, UnavailableError, UsageError
from blockforge.core.manifest import EngineRecord
from blockforge.engines.gpu import gpus
from blockforge.engines.target import DEVICES
from blockforge.pipeline import build, compile_bundle
from blockforge.proof import open_side
from blockforge.validate.divergence import diff, open_source
from blockforge.validate.divergence import plan_side as plans
from blockforge.validate.runners import Ran, SessionRunner

from ..conftest import RECIPE
from .planted import attribute

RTX = "tensorrt-rtx:sm89"


@pytest.fixture(scope="module")
def bundle(tiny_bundle, tmp_path_factory):
    """Graphs, golden inputs, and in the manifest an engine of which there are only a few bytes."""
    path = tmp_path_factory.mktemp("sides") / "tiny"
    shutil.copytree(tiny_bundle.path, path)
    built = Bundle.open(path)
    half = built.manifest.variant("fp16")
    path = "fp16/engines/tensorrt-rtx-sm89.plan"
    (built.path / path).parent.mkdir()
    (built.path / path).write_bytes(b"no engine")
    engine = EngineRecord(
        target=RTX, runtime="none", path=path, layers=None, bytes=9, build_seconds=0.0
    )
    variants = tuple(
        v.model_copy(update={"engines": (engine,)}) if v is half else v
        for v in built.manifest.variants
    )
    seal(built.path, built.manifest.model_copy(update={"variants": variants}))
    return Bundle.open(built.path)


def test_a_graph_is_equal_to_the_bundles_reference_on_golden_inputs(bundle):
    """Loaded once, and freed where nothing is left to diagnose."""
    reference = open_side(f"{bundle.path}:reference")
    loads, load = [], reference.load

    def counted(dtype):
        module = load(dtype)
        loads.append(weakref.ref(module))
        return module

    reference.load = counted
    found = diff(reference, open_side(f"{bundle.path}:fp16"))
    assert found.equal, found.first
    assert found.inputs == "golden case 'seeded opt'"
    assert found.compared > 20 and list(found.totals) == ["layers.0", "layers.1", "logits"]
    assert 1e-5 < found.totals["logits"] < 1e-2
    gc.collect()
    assert len(loads) == 1 and loads[0]() is None


def test_the_first_precision_and_the_named_one(bundle):
    assert open_source(str(bundle.path)).label.endswith(":fp32")
    exact = diff(open_side(f"{bundle.path}:reference"), open_source(f"{bundle.path}:fp32"))
    assert exact.equal and exact.totals["logits"] < 1e-5
    with pytest.raises(UsageError, match="the bundle has fp32, fp16"):
        open_source(f"{bundle.path}:bf16")


def test_a_fault_in_a_bundles_graph_is_found_on_golden_inputs(bundle):
    side = open_side(f"{bundle.path}:fp16")
    attribute("layers.1.self_attn/Attention", scale=0.125)(side.model)
    reference = open_side(f"{bundle.path}:reference")
    first = diff(reference, side).first
    assert first.node == "layers.1.self_attn/Attention" and first.cause.kind == "scale"
    assert first.error_in < 0.002 < 0.02 < first.error_out
    assert "module" not in reference.__dict__


def test_the_reference_in_half_precision_is_equal_to_the_graph(bundle):
    from blockforge.core.dtypes import DType

    graph = open_side(f"{bundle.path}:fp16")
    half = open_side(f"{bundle.path}:reference", DType.FP16)
    assert diff(graph, half).equal


def test_the_command_on_a_bundle(bundle, tmp_path, fits_schema):
    """One JSON document that fits its schema, and a JUnit file with a case for each value."""
    import junitparser

    path = tmp_path / "diff.xml"
    words = ["diff", f"{bundle.path}:reference", f"{bundle.path}:fp16", "--junit", str(path)]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    body = json.loads(done.stdout)
    fits_schema("diff", body)
    (suite,) = junitparser.JUnitXml.fromfile(str(path))
    assert suite.tests == 1 + len(body["errors"]) and suite.failures == suite.skipped == 0


# Engines --------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(bool(gpus()), reason="there is a GPU here")
@pytest.mark.parametrize("form", [f"{{}}:fp16@{RTX}", "{}/fp16/engines/tensorrt-rtx-sm89.plan"])
def test_an_engine_needs_its_gpu_and_says_what_else_would_work(bundle, form):
    with pytest.raises(UnavailableError) as caught:
        open_source(form.format(bundle.path))
    assert "no NVIDIA GPU" in caught.value.found
    assert "blockforge run BUNDLE" in caught.value.fix and "architecture" in caught.value.fix


def test_engines_that_cannot_be_named(bundle, tmp_path):
    with pytest.raises(ArtefactError, match="the bundle has tensorrt-rtx:sm89"):
        open_source(f"{bundle.path}:fp16@tensorrt-rtx:sm120")
    with pytest.raises(ArtefactError, match="the bundle has none"):
        open_source(f"{bundle.path}@tensorrt-rtx:sm89")  # the first graph's
    with pytest.raises(UsageError, match="no bundle"):
        open_source(f"{tmp_path}:fp16@{RTX}")
    lone = tmp_path / "lone.plan"
    lone.write_bytes(b"plan")
    with pytest.raises(UnavailableError, match="outside a bundle"):
        open_source(str(lone))


@pytest.fixture
def engine(bundle, monkeypatch):
    """Opens the bundle's engine with a runner of ours in its place: the fp16 graph by ONNX Runtime, changed by `change`."""

    def opened(change=lambda logits: logits):
        class Runner:
            def __init__(self, plan, runtime):
                assert plan.name == "tensorrt-rtx-sm89.plan" and runtime == "tensorrt-rtx"
                self.inner = SessionRunner(bundle.file("fp16/model.onnx"))

            def run(self, feeds, keep):
                return Ran({n: change(v) for n, v in self.inner.run(feeds, keep).outputs.items()})

            def close(self):
                self.inner.close()

        monkeypatch.setattr(plans, "check_runnable", lambda target: None)
        monkeypatch.setattr(plans, "PlanRunner", Runner)
        return open_source(f"{bundle.path}:fp16@{RTX}")

    return opened


def test_an_honest_engine_is_equal_to_graph_and_reference(bundle, engine):
    for reference in (f"{bundle.path}:fp16", f"{bundle.path}:fp32", f"{bundle.path}:reference"):
        found = diff(open_side(reference), engine())
        assert found.equal, (reference, found.first)
        assert found.inputs.startswith("golden case") and found.compared == 1


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (lambda y: y * 1.05, "scale", "1.05 times"),
        (lambda y: torch.zeros_like(y), "unexplained", "no value is shown between it and the 4"),
        (lambda y: y.roll(1, -1), "unexplained", "relative error"),
    ],
    ids=["stronger", "zero", "shifted"],
)
def test_a_wrong_engine_is_found(bundle, engine, change, kind, words):
    """Nothing inside an engine can be seen: no repair is tried, and the numbers speak."""
    found = diff(open_side(f"{bundle.path}:fp16"), engine(change))
    assert found.first is not None and found.first.value == "logits"
    assert found.first.cause.kind == kind and words in found.first.cause.text
    found = diff(open_side(f"{bundle.path}:reference"), engine(change))
    assert found.first is not None and found.first.value == "logits"


@pytest.mark.gpu
def test_a_real_engine_is_equal_to_its_graph(bundle, tmp_path):
    """On a GPU: the bundle compiled for it, and its engine beside the graph and the reference."""
    here = gpus()
    if not here:
        pytest.skip("needs an NVIDIA GPU")
    runtimes = [r for r in ("tensorrt", "tensorrt-rtx") if here[0].architecture in DEVICES[r]]
    build(RECIPE, tmp_path / "real")
    target = f"{runtimes[0]}:{here[0].architecture}"
    try:
        compile_bundle(Bundle.open(tmp_path / "real"), [target])
        side = open_source(f"{tmp_path / 'real'}:fp16@{target}")
    except UnavailableError as error:
        pytest.skip(str(error))
    for reference in ("fp16", "reference"):
        found = diff(open_side(f"{tmp_path / 'real'}:{reference}"), side)
        assert found.equal, found.first
