"""JUnit files: what junitparser reads is what was judged, and nothing is in them that pytest does not write."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime

import junitparser
import pytest

from blockforge.core.errors import BuildError, UsageError
from blockforge.core.manifest import GateRecord
from blockforge.validate.junit import (
    Check,
    bench_checks,
    bundle_checks,
    junit_xml,
    limit_check,
    not_run,
)
from blockforge.validate.latency import BenchRecord

from ..report.latencies import bench
from ..report.pages import HOSTILE, engine, manifest, variant, verdict

NOW = datetime(2026, 11, 30, 8, 30, tzinfo=UTC)
GATE = GateRecord(
    name="logits: error over floor", value=7.25, relation="<=", limit=2.0, passed=False
)
CHECKS = (
    Check(
        "tiny.fp16.typed-evaluator", "cosine", "passed", "cosine is 0.99999, the limit is >= 0.999"
    ),
    limit_check("tiny.fp16.typed-evaluator", GATE),
    not_run("tiny.fp16.tensorrt-rtx:sm89", "numbers", "a plan needs its GPU", seconds=1.5),
    Check("tiny", "build", "error", "builder: it died.\nlast words"),
)


def read(text):
    """(suite, cases) as junitparser sees them."""
    (suite,) = junitparser.JUnitXml.fromstring(text.encode())
    return suite, list(suite)


def test_states_messages_and_counts():
    suite, cases = read(junit_xml("blockforge build", CHECKS, NOW, 2.25))
    assert (suite.name, suite.tests, suite.failures, suite.errors, suite.skipped) == (
        *("blockforge build", 4, 1, 1, 1),
    )
    assert suite.timestamp == "2026-11-30T08:30:00+00:00" and suite.time == 2.25
    assert [(c.classname, c.name) for c in cases] == [(c.group, c.name) for c in CHECKS]
    assert cases[0].is_passed and cases[0].system_out.startswith("cosine is 0.99999")
    assert [c.time for c in cases] == [None, None, 1.5, None]  # where a time was measured
    assert "time" not in ElementTree.fromstring(junit_xml("x", CHECKS[:2], NOW))[0].attrib
    (failure,), (skipped,), (error,) = (case.result for case in cases[1:])
    assert isinstance(failure, junitparser.Failure)
    assert failure.message == "logits: error over floor is 7.25, the limit is <= 2"
    assert isinstance(skipped, junitparser.Skipped) and skipped.message == "a plan needs its GPU"
    assert isinstance(error, junitparser.Error) and error.message == "builder: it died."
    assert error.text == "builder: it died.\nlast words"


def shape(text):
    """Element -> (attributes, elements inside) that occur anywhere in the file."""
    found = {}
    for element in ElementTree.fromstring(text).iter():
        attributes, inner = found.setdefault(element.tag, (set(), set()))
        attributes |= set(element.attrib)
        inner |= {child.tag for child in element}
    return found


def test_everything_in_the_file_is_in_one_that_pytest_writes(tmp_path):
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_good(): print('words')\n"
        "def test_bad(): assert 0\n"
        "def test_skipped(): pytest.skip('reason')\n"
        "@pytest.fixture\ndef broken(): raise ValueError\n"
        "def test_error(broken): pass\n"
    )
    written = tmp_path / "pytest.xml"
    words = ["-q", f"--junitxml={written}", "-o", "junit_logging=system-out", "-p", "no:xdist"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-c", "/dev/null", tmp_path],
        capture_output=True, check=False,
    )  # fmt: skip
    theirs = shape(written.read_text())
    for tag, (attributes, inner) in shape(junit_xml("suite", CHECKS, NOW, 0.5)).items():
        assert tag in theirs and attributes <= theirs[tag][0] and inner <= theirs[tag][1], tag


@pytest.mark.parametrize(
    "name", [HOSTILE, "a\x00b\x1b\ud800\ufffe", "two\nlines\tand ]]> &amp; é 漢 𝄞"]
)
def test_hostile_names_come_back(name):
    checks = [Check(name, name, state, name) for state in ("passed", "failed", "skipped", "error")]
    suite, cases = read(junit_xml(name, checks, NOW))
    expected = name
    for character in "\x00\x1b\ud800\ufffe":
        expected = expected.replace(character, f"#x{ord(character):02X}")
    assert suite.name == expected
    for case in cases:
        assert (case.classname, case.name) == (expected, expected)
        for result in case.result:
            assert result.message == expected.partition("\n")[0]


def states(checks):
    return {(c.group.removeprefix("smollm2-135m."), c.name): c.state for c in checks}


def test_a_bundle_gives_a_case_for_each_limit_and_target():
    recipe = {
        "validate": {
            "limits": {"max_error_over_floor": 2.0, "max_overflows": 0},
            "limits_for": {"fp32": {"max_error_over_floor": 4.0}},
        },
        "engines": {"check_dtype": True, "max_kernels_per_block": 12.0, "require_fused": ["norm"]},
    }
    record = manifest(variant("fp32", verdicts=(verdict(),), engines=()), variant(), recipe=recipe)
    over, run, plan = "logits: error over floor", "fp16.onnxruntime:cpu", "fp16.tensorrt-rtx:sm89"
    assert states(bundle_checks(record)) == {
        ("fp32.typed-evaluator", over): "passed",
        ("fp16.typed-evaluator", over): "passed",
        ("fp16.typed-evaluator", "values that overflow"): "skipped",
        (run, "numbers"): "skipped",
        (run, "planned kernels"): "skipped",
        (plan, "max_kernels_per_block"): "passed",
        (plan, 'require_fused = ["norm"]'): "passed",
        (plan, "element types of the kernels"): "passed",
        (plan, "numbers"): "skipped",
    }
    reasons = {c.name: c.text for c in bundle_checks(record) if c.state == "skipped"}
    times = {
        (c.group.split(".", 1)[1], c.name): c.seconds for c in bundle_checks(record) if c.seconds
    }
    built = {e.target: e.build_seconds for e in record.variants[1].engines}
    assert times == {
        (run, "planned kernels"): built["onnxruntime:cpu"],
        (plan, "max_kernels_per_block"): built["tensorrt-rtx:sm89"],
    }
    assert "its GPU" in reasons["numbers"] and "no inner values" in reasons["values that overflow"]


def test_violations_fail_their_own_demand():
    recipe = {
        "engines": {
            "max_kernels_per_block": 9,
            "require_fused": ["norm", "rope"],
            "require_dtype": {"gemm": "fp8"},
        }
    }
    found = (
        "max_kernels_per_block = 9: 11, in block 1: a, b",
        'require_fused = ["rope"]: 2 of 3 are not: x',
        'require_dtype = { gemm = "fp8_e4m3" }: 1 of 9 compute in fp16: y',
        "a gemm computes in fp32",
    )
    record = manifest(variant(verdicts=(), engines=(engine(violations=found),)), recipe=recipe)
    checks = {c.name: c for c in bundle_checks(record)}
    assert {n for n, c in checks.items() if c.state == "failed"} == {
        "max_kernels_per_block",
        'require_fused = ["rope"]',
        'require_dtype = { gemm = "fp8" }',
        "element types of the kernels",
    }
    assert "is 11, the limit is <= 9" in checks["max_kernels_per_block"].text
    assert checks["element types of the kernels"].text == "a gemm computes in fp32"
    assert checks['require_fused = ["norm"]'].state == "passed"
    assert checks["numbers"].state == "skipped"


def test_types_that_the_recipe_does_not_ask_about_are_skipped():
    record = manifest(variant(engines=(engine(),)), recipe={"engines": {"check_dtype": False}})
    found = next(c for c in bundle_checks(record) if c.name == "element types of the kernels")
    assert found.state == "skipped" and "check_dtype" in found.text


def test_every_failure_of_a_manifest_fails_a_case():
    missed = variant(
        verdicts=(verdict(passed=False, ratio=7.25),), engines=(engine(violations=("wrong type",)),)
    )
    record = manifest(missed)
    failed = [c for c in bundle_checks(record) if c.state == "failed"]
    assert len(failed) == len(record.failures) == 2


def test_a_failed_verdict_without_a_missed_gate_is_a_case():
    broken = verdict(passed=False).model_copy(update={"gates": (), "notes": ("it broke",)})
    (found,) = bundle_checks(manifest(variant(verdicts=(broken,), engines=())))
    assert (found.name, found.state, found.text) == ("verdict", "failed", "it broke")


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The command line over a pipeline that gives a ready manifest, or the error it is told to raise."""
    from types import SimpleNamespace

    from typer.testing import CliRunner

    from blockforge import pipeline
    from blockforge.cli import app
    from blockforge.core.bundle import Bundle, seal

    seal(tmp_path, manifest(variant(engines=()), recipe={}))

    def commands(*words, record=None, error=None):
        def run(*arguments, **options):
            if error is not None:
                raise error
            return SimpleNamespace(path=tmp_path, manifest=record)

        for name in ("build", "compile_bundle", "validate_bundle"):
            monkeypatch.setattr(pipeline, name, run)
        monkeypatch.setattr(Bundle, "open", lambda path: None)
        return CliRunner().invoke(app, [*map(str, words)])

    return commands


@pytest.mark.parametrize(
    "words", [("build", "smollm2"), ("validate", "x"), ("compile", "x", "-t", "y")]
)
def test_the_commands_write_it(commands, tmp_path, words):
    """A limit that holds, one that is missed, an error, and a file that cannot be written."""
    path = tmp_path / "out.xml"
    good = manifest(variant(engines=()))
    assert commands(*words, "--junit", path, record=good).exit_code == 0
    suite, cases = read(path.read_text())
    assert suite.name == f"blockforge {words[0]}" and suite.failures == 0
    assert len(cases) == len(bundle_checks(good)) == 2
    assert suite.time is not None and 0 <= suite.time < 60 and cases[0].time is None
    bad = manifest(variant(verdicts=(verdict(passed=False, ratio=7.25),), engines=()))
    assert commands(*words, "--junit", path, record=bad).exit_code == 1
    assert read(path.read_text())[0].failures == 1
    done = commands(
        *words, "--junit", path, error=BuildError("engine", found="it died", fix="Help it")
    )
    assert isinstance(done.exception, BuildError)
    suite, (case,) = read(path.read_text())
    took = float(ElementTree.parse(path).find("testsuite").attrib["time"])
    assert took >= case.time >= 0
    assert suite.errors == 1 and case.result[0].message == "engine: it died. Help it"
    lost = commands(*words, "--junit", tmp_path / "no" / "out.xml", record=good)
    assert isinstance(lost.exception, UsageError) and "no folder" in str(lost.exception)
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".out")]


def test_latencies_pass_only_where_a_limit_was_set(tmp_path):
    record = BenchRecord.model_validate_json((tmp_path / bench(tmp_path)).read_text())
    found = {c.name: c for c in bench_checks(record)}
    first = found.pop("median of fp32 onnxruntime:cpu at batch 1, sequence 16, ms")
    assert first.state == "failed" and "is 1.1696, the limit is <= 1" in first.text
    assert first.seconds == pytest.approx(0.0731 * 16 / 1000)
    assert {c.seconds is None for n, c in found.items() if n.startswith("ratio")} == {True}
    assert len(found) == 3 + 2 + 1 and {c.state for c in found.values()} == {"skipped"}
    assert (
        "9.357 ms; no limit"
        in found["median of fp32 onnxruntime:cpu at batch 1, sequence 128"].text
    )
    assert "no NVIDIA GPU" in found["median of fp16 tensorrt-rtx:sm89"].text
