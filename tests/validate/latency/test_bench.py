"""The whole command on a tiny bundle: rows, comparisons, limits, refusals before anything is opened."""

import json
import shutil
import statistics
from dataclasses import replace

import junitparser
import onnxruntime
import pytest
import torch
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.cli_bench import _reference_of
from blockforge.core.bundle import Bundle
from blockforge.core.dtypes import DType
from blockforge.core.errors import ArtefactError, BuildError, UnavailableError, UsageError
from blockforge.core.shapes import ShapeRange
from blockforge.validate.latency import BenchRecord, BenchRequest, Effort, bench, opening
from blockforge.validate.latency.bench import grid_of
from blockforge.validate.latency.module import module_workload
from blockforge.validate.latency.sides import ModuleSide, subjects_of

from ..conftest import RECIPE, no_figures

QUICK = Effort(seconds=0.01, warmup_seconds=(0.0, 0.2), slot_seconds=1e-6)
CPU = "onnxruntime:cpu"


def run(bundle, **request):
    request = {"precisions": ["fp32"], "targets": [CPU], "effort": QUICK, "threads": 1} | request
    return bench(bundle, BenchRequest(**request), _reference_of(bundle))


def test_a_grid_against_eager_and_a_second_copy(tiny_bundle):
    threads = torch.get_num_threads()
    record = run(
        tiny_bundle, batches=[1, 3], sequences=[8, 64], against=["eager", str(tiny_bundle.path)]
    )
    copy = f"{tiny_bundle.path}: fp32 {CPU}"
    rows = [(r.side, r.role, r.batch, r.sequence) for r in record.latencies]
    sizes = [(1, 8), (1, 64), (3, 8), (3, 64)]
    names = [(f"fp32 {CPU}", "subject"), ("eager fp32", "baseline"), (copy, "baseline")]
    assert rows == [(*name, *size) for size in sizes for name in names]
    for row in record.latencies:
        assert 0 < row.median <= row.p90 and row.first > 0 and row.calls >= 24
        assert row.p99 is None or row.calls >= 100
        assert row.tokens_per_second == pytest.approx(row.batch * row.sequence / row.median * 1000)
        assert row.clock == "monotonic clock" and row.roofline is None and len(row.rounds) >= 12
    assert [(r.subject, r.baseline) for r in record.ratios] == 4 * [
        (f"fp32 {CPU}", "eager fp32"),
        (f"fp32 {CPU}", copy),
    ]
    for ratio in record.ratios:
        assert ratio.interval[0] <= ratio.ratio <= ratio.interval[1]
    assert record.machine.versions["onnxruntime"] == onnxruntime.__version__
    assert record.machine.onnxruntime_threads == record.machine.torch_threads == 1
    assert record.files[f"fp32 {CPU}"] == tiny_bundle.manifest.files["fp32/model.onnx"].sha256
    assert torch.get_num_threads() == threads, "put back"
    assert BenchRecord.model_validate_json(record.model_dump_json()) == record


def test_the_profile_gives_the_sizes_that_nobody_named(tiny_bundle):
    subject, _ = subjects_of(tiny_bundle, (), [CPU])
    assert grid_of(subject, BenchRequest()) == [{"batch": 1, "sequence": 16}]
    assert grid_of(subject, BenchRequest(batches=[4])) == [{"batch": 4, "sequence": 16}]


def test_sizes_may_lie_in_any_profile(tiny_bundle):
    """What nobody named is usual in the first profile that holds the rest; what lies in none names them all."""
    subject, _ = subjects_of(tiny_bundle, (), [CPU])
    (wide,) = subject.profiles
    tall = {n: ShapeRange((1, 1), (16, 1), (64, 1)) for n in wide}
    both = replace(subject, profiles=(wide, tall))
    assert grid_of(both, BenchRequest()) == [{"batch": 1, "sequence": 16}]
    grid = grid_of(both, BenchRequest(batches=[4, 32]))
    assert grid == [{"batch": 4, "sequence": 16}, {"batch": 32, "sequence": 1}]
    for sizes in grid:
        assert opening.feeds_for(both, {n: torch.zeros(tuple(sizes.values()), dtype=torch.int64) for n in wide})  # fmt: skip
    (point,) = grid_of(both, BenchRequest(batches=[32], sequences=[16]))
    with pytest.raises(UsageError, match=r"none of the 2 profiles.*profile 0.*profile 1"):
        opening.feeds_for(both, {n: torch.zeros(tuple(point.values()), dtype=torch.int64) for n in wide})  # fmt: skip


def test_an_onnx_file_is_a_baseline(tiny_bundle):
    path = str(tiny_bundle.path / "fp32" / "model.onnx")
    record = run(tiny_bundle, against=[path])
    assert [r.baseline for r in record.ratios] == [f"{path} {CPU}"]


def test_the_sides_see_the_same_inputs_and_eager_computes_the_same(tiny_bundle, monkeypatch):
    """What is timed is the model: outputs of the timed calls agree to FP32's rounding."""
    outputs = {}
    build = opening.CallWorkload

    class Spy(build):
        def __init__(self, label, bind, clock):
            def spied(feeds):
                call = bind(feeds)

                def kept():
                    outputs[label] = call()

                return kept

            super().__init__(label, spied, clock)

    monkeypatch.setattr(opening, "CallWorkload", Spy)
    monkeypatch.setattr("blockforge.validate.latency.module.CallWorkload", Spy)
    run(tiny_bundle, against=["eager"])
    (graph,) = outputs[f"fp32 {CPU}"]
    torch.testing.assert_close(torch.from_numpy(graph), outputs["eager fp32"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        ({"targets": ["onnxruntime:gpu"]}, UsageError, "has no 'gpu'"),
        ({"targets": ["tensorrt-rtx:sm89"]}, UnavailableError, "GPU"),
        ({"targets": []}, UnavailableError, "none of its engines runs here.*has none"),
        ({"precisions": ["int4-weights"]}, UsageError, "the bundle has fp32"),
        ({"batches": [5]}, UsageError, r"fp32 onnxruntime:cpu.*\(batch\) has 5, outside"),
        ({"sequences": [65]}, UsageError, r"\(sequence\) has 65, outside"),
        ({"against": ["nonsense"]}, UsageError, "neither a bundle"),
        ({"against": [CPU]}, UsageError, "itself"),
        ({"against": ["onnxruntime:tpu"]}, UsageError, "has no 'tpu'"),
    ],
)
def test_refused_before_anything_is_opened(tiny_bundle, monkeypatch, request_, error, words):
    monkeypatch.setattr(opening, "open_session", lambda *a, **k: pytest.fail("opened"))
    with pytest.raises(error, match=words):
        run(tiny_bundle, **request_)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"batches": [0]}, "batch 0"),
        ({"threads": 0}, "threads"),
        ({"max_ms": -1.0}, "max-ms"),
        ({"threshold": 1.5}, "threshold"),
        ({"max_ratio": 1.1}, "nothing to compare with"),
    ],
)
def test_a_request_is_checked(request_, words):
    with pytest.raises(UsageError, match=words):
        BenchRequest(**request_)


def test_a_graph_that_fails_closes_what_was_opened(tiny_bundle, monkeypatch):
    closed = []

    class Session:
        def get_outputs(self):
            return []

        def run(self, *arguments):
            raise RuntimeError("node x\nfailed")

    monkeypatch.setattr(opening, "open_session", lambda *a, **k: Session())
    monkeypatch.setattr(opening.CallWorkload, "close", lambda self: closed.append(self.label))
    with pytest.raises(BuildError, match="node x failed"):
        run(tiny_bundle, against=["eager"])
    assert closed == [f"fp32 {CPU}", "eager fp32"]


def test_a_damaged_bundle_is_not_measured(tiny_bundle, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(tiny_bundle.path, copy)
    with (copy / "fp32" / "model.onnx").open("r+b") as file:
        file.write(b"\0")
    with pytest.raises(ArtefactError, match="SHA-256"):
        run(Bundle.open(copy))


def test_limits_pass_and_fail(tiny_bundle):
    record = run(tiny_bundle, against=["eager"], max_ms=1e6, max_ratio=100.0)
    assert [g.passed for g in record.gates] == [True, True] and record.failures == ()
    record = run(tiny_bundle, against=["eager"], max_ms=1e-6, max_ratio=1e-6)
    assert len(record.failures) == 2
    assert "median of fp32 onnxruntime:cpu at batch 1, sequence 16" in record.failures[0]
    assert "<= 1e-06" in record.failures[1] and "eager fp32" in record.failures[1]


def test_a_recipe_of_one_block_has_an_eager_baseline_too(tmp_path):
    from blockforge.pipeline import export

    shapes = {"min": "hidden_states:1x1x64", "opt": "hidden_states:1x8x64"}
    shapes["max"] = "hidden_states:2x16x64"
    model = {"preset": "llama-tiny", "part": "block"}
    block = export(RECIPE | {"model": model, "shapes": shapes}, tmp_path / "block")
    record = run(block, against=["eager"], sequences=[16])
    assert [r.sizes for r in record.ratios] == [{"batch": 1, "sequence": 16}]


def test_compile_is_a_baseline_of_its_own(tiny_bundle, monkeypatch):
    """Rows and comparison, with a compiler that gives the module back; the real one is below."""
    seen = []
    compiled = lambda label, module, given: seen.append((label, module, given[0].shape)) or module  # noqa: E731
    monkeypatch.setattr("blockforge.validate.latency.module.compiled", compiled)
    record = run(tiny_bundle, against=["compile", "eager"], sequences=[8])
    assert [r.side for r in record.latencies] == [f"fp32 {CPU}", "compile fp32", "eager fp32"]
    assert [r.baseline for r in record.ratios] == ["compile fp32", "eager fp32"]
    (((label, module, shape)),) = seen
    assert label == "compile fp32" and tuple(shape) == (1, 8)
    assert module.__class__.__name__ == "Decoder"


@pytest.mark.slow
def test_torch_compile_pays_in_its_first_call():
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.SiLU()).eval()
    workload = module_workload("compile fp32", module, "compile", ["x"])
    x = torch.ones(2, 8)
    workload.prepare({"x": x})
    first, *later = (workload.time() for _ in range(24))
    assert first > 20 * statistics.median(later)
    torch.testing.assert_close(workload._call(), module(x))


def test_a_module_on_a_gpu_is_not_the_one_on_the_cpu(tiny_bundle, monkeypatch):
    """A GPU's workload moves its module there: the CPU's baseline needs its own."""
    modules = []

    class Fake:
        label, clock = "fake", "none"

        def __init__(self, label, module, *_):
            modules.append(module)

    monkeypatch.setattr(opening, "CudaModuleWorkload", Fake)
    monkeypatch.setattr(opening, "module_workload", Fake)
    sides = [ModuleSide(d, "eager", DType.FP32, d) for d in ("cpu", "cuda", "cpu")]
    opened = []
    opening.open_sides(sides, _reference_of(tiny_bundle), clock="wall", threads=1, opened=opened)
    assert modules[0] is modules[2] and modules[0] is not modules[1]


def command(*words):
    """The command line in this process: exit code and both streams, an error as the entry point prints it."""
    return CliRunner().invoke(app, ["bench", *map(str, words)])


def test_the_command_prints_saves_and_fails_a_limit(tiny_bundle, tmp_path, fits_schema):
    saved, junit = tmp_path / "bench.json", tmp_path / "bench.xml"
    words = [tiny_bundle.path, "-p", "fp32", "-t", CPU, "--seconds", "0.05", "-o", saved]
    done = command(*words, "--max-ms", "0.000001", "--junit", junit)
    assert done.exit_code == 1 and "the limit is <= 1e-06" in done.stderr
    assert f"fp32 {CPU}" in done.stdout and "tokens/s" in done.stdout
    text = saved.read_text()
    record = BenchRecord.model_validate_json(text)
    assert record.latencies[0].batch == 1 and not record.gates[0].passed
    fits_schema("bench", json.loads(text))
    assert [c.is_failure for s in junitparser.JUnitXml.fromfile(str(junit)) for c in s] == [True]
    assert sorted(tmp_path.iterdir()) == [saved, junit]


def test_a_bundle_keeps_its_latencies_and_shows_them(tiny_bundle, tmp_path):
    copy = tmp_path / "kept"
    shutil.copytree(tiny_bundle.path, copy)
    words = [copy, "-p", "fp16", "-t", CPU, "--seconds", "0.05", "--save"]
    for _ in range(2):  # a later record takes the place of the earlier
        with no_figures():
            done = command(*words, "--json")
        assert done.exit_code == 0, done.output
    kept = Bundle.open(copy)
    kept.verify()
    assert kept.manifest.bench == "bench.json" and kept.strangers() == []
    assert (
        json.loads((copy / "bench.json").read_text())["created"]
        == json.loads(done.stdout)["created"]
    )
    assert f"fp16 {CPU}" in (copy / "report.html").read_text().split('id="latency"')[1]
    verdicts = [v.verdicts for v in kept.manifest.variants]
    assert verdicts == [v.verdicts for v in tiny_bundle.manifest.variants]


def test_the_command_refuses_wrong_sizes(tiny_bundle):
    wrong = command(tiny_bundle.path, "--batch", "1,x", "--json").exception
    assert isinstance(wrong, UsageError) and "1,x" in wrong.asked
