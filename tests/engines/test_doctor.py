"""The doctor: every line has a status, whatever is missing has a command, and nothing makes it fall over."""

import pytest

from blockforge.engines import doctor
from blockforge.engines.doctor import probe
from blockforge.engines.target import Target, all_targets


@pytest.fixture
def found(monkeypatch):
    def look():
        return {f.name: f for f in probe()}

    return look


def test_every_finding_is_complete(found):
    for finding in found().values():
        assert finding.status in ("ok", "missing", "problem")
        assert finding.detail
        assert finding.status == "ok" or finding.fix, f"{finding.name} has no fix"
        assert finding.as_dict().keys() == {"name", "status", "detail", "fix"}


def test_it_really_makes_a_builder(found):
    finding = found()["TensorRT-RTX"]
    assert (
        finding.status == "ok" and "a builder starts" in finding.detail and "sm89" in finding.detail
    )


def test_every_target_is_answered_once(found):
    named = []
    for name in found():
        if name.startswith("target "):
            runtime, devices = name.removeprefix("target ").split(":")
            named += [f"{runtime}:{device}" for device in devices.split(", ")]
    assert sorted(named) == sorted(all_targets())


def test_without_a_gpu_it_says_what_can_be_built(found, monkeypatch):
    monkeypatch.setattr("blockforge.engines.requirements.gpus", tuple)
    monkeypatch.setattr(doctor, "driver_version", lambda: None)
    findings = found()
    assert findings["NVIDIA driver"].status == "missing"
    (rtx,) = (f for name, f in findings.items() if name.startswith("target tensorrt-rtx:"))
    assert rtx.status == "ok" and rtx.detail.startswith("build yes, run no")
    assert findings["target onnxruntime:cpu"].detail == "build yes, run yes"


def test_both_onnxruntimes_are_a_problem(found, monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: "1.0")
    finding = found()["onnxruntime"]
    assert finding.status == "problem" and "uninstall" in finding.fix


def test_a_missing_library_has_a_command(found, monkeypatch):
    monkeypatch.setattr(doctor, "is_installed", lambda runtime: False)
    monkeypatch.setattr("blockforge.engines.requirements.is_installed", lambda runtime: False)
    findings = found()
    for title in ("TensorRT", "TensorRT-RTX"):
        assert findings[title].status == "missing" and findings[title].fix.startswith("pip install")


def test_little_room_is_a_problem(found, monkeypatch):
    monkeypatch.setattr(doctor, "_available_memory", lambda: 10**9)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: type("U", (), {"free": 10**9}))
    findings = found()
    assert findings["memory"].status == findings["disk"].status == "problem"


def test_a_look_that_fails_is_a_finding_and_not_the_end(found, monkeypatch):
    def fail():
        raise OSError("driver says no")

    monkeypatch.setattr(doctor, "driver_version", fail)
    findings = found()
    assert any(f.status == "problem" and "driver says no" in f.detail for f in findings.values())
    assert "disk" in findings


def test_a_gpu_of_the_architecture_can_run(found, monkeypatch):
    from blockforge.engines.gpu import Gpu
    from blockforge.engines.requirements import check_runnable

    monkeypatch.setattr("blockforge.engines.requirements.gpus", lambda: (Gpu("L4", "sm89", 1),))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    check_runnable(Target.parse("tensorrt-rtx:sm89"))
