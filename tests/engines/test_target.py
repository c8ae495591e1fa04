"""Targets: what can be named, what is refused, and that the lists agree with the runtimes."""

import pytest

from blockforge.core.errors import UnavailableError, UsageError
from blockforge.engines.gpu import Gpu
from blockforge.engines.requirements import check_available, check_runnable
from blockforge.engines.target import DEVICES, Target, all_targets
from blockforge.engines.tensorrt_api import load_api


@pytest.mark.parametrize("text", all_targets())
def test_text_and_target_are_one_to_one(text):
    target = Target.parse(text)
    assert str(target) == text
    assert target.slug == text.replace(":", "-")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tensorrt-rtx:sm90", ["sm90", "tensorrt-rtx:sm89", "tensorrt-rtx:sm120"]),
        ("tensorrt:sm88", ["sm88", "tensorrt:sm90"]),
        ("onnxruntime:gpu", ["gpu", "onnxruntime:cuda"]),
        ("onnxruntime", ["no device"]),
        ("openvino:cpu", ["openvino", "onnxruntime:cpu"]),
        ("", ["no runtime"]),
        ("tensorrt-rtx:sm89+sm90", ["sm90", "tensorrt-rtx:sm120"]),
        ("tensorrt-rtx:sm89+", ["no device"]),
        ("tensorrt-rtx:sm89+sm89", ["an architecture twice"]),
        ("tensorrt:sm89+sm90", ["several devices", "the one GPU it runs on"]),
        ("onnxruntime:cpu+cuda", ["several devices", "builds no engines"]),
    ],
)
def test_unknown_target_lists_what_exists(text, words):
    with pytest.raises(UsageError) as error:
        Target.parse(text)
    assert all(word in str(error.value) for word in words)


def test_several_architectures_are_one_target_in_one_order():
    target = Target.parse("tensorrt-rtx:sm120+sm89")
    assert target == Target.parse("tensorrt-rtx:sm89+sm120") and target.is_tensorrt
    assert str(target) == "tensorrt-rtx:sm89+sm120" and target.slug == "tensorrt-rtx-sm89+sm120"
    assert target.architectures == ("sm89", "sm120")
    assert [str(each) for each in target.apart] == ["tensorrt-rtx:sm89", "tensorrt-rtx:sm120"]
    assert Target.parse("onnxruntime:cpu").architectures == ()


def test_the_list_is_what_tensorrt_rtx_offers():
    assert DEVICES["tensorrt-rtx"] == load_api("tensorrt-rtx").architectures()


def test_full_tensorrt_is_a_target_that_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("blockforge.engines.requirements.is_installed", lambda runtime: False)
    for check in (check_available, check_runnable):
        with pytest.raises(UnavailableError, match=r"not installed here.*pip install"):
            check(Target.parse("tensorrt:sm90"))


def test_tensorrt_rtx_builds_without_a_gpu_and_runs_only_with_one(monkeypatch):
    monkeypatch.setattr("blockforge.engines.requirements.gpus", tuple)
    target = Target.parse("tensorrt-rtx:sm89")
    check_available(target)
    with pytest.raises(UnavailableError, match="no NVIDIA GPU"):
        check_runnable(target)


def test_a_gpu_of_another_architecture_does_not_do(monkeypatch):
    gpu = Gpu("H200", "sm90", 1)
    monkeypatch.setattr("blockforge.engines.requirements.gpus", lambda: (gpu,))
    with pytest.raises(UnavailableError, match=r"H200 \(sm90\)"):
        check_runnable(Target.parse("tensorrt-rtx:sm89"))


def test_one_of_several_architectures_does(monkeypatch):
    gpu = Gpu("L4", "sm89", 1)
    monkeypatch.setattr("blockforge.engines.requirements.gpus", lambda: (gpu,))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    check_runnable(Target.parse("tensorrt-rtx:sm89+sm120"))
    with pytest.raises(UnavailableError, match=r"L4 \(sm89\)"):
        check_runnable(Target.parse("tensorrt-rtx:sm86+sm120"))


def test_onnxruntime_without_the_provider_says_so(monkeypatch):
    only_cpu = lambda: ("CPUExecutionProvider",)  # noqa: E731
    monkeypatch.setattr("blockforge.engines.onnxruntime_api.providers", only_cpu)
    check_available(Target.parse("onnxruntime:cpu"))
    with pytest.raises(UnavailableError, match=r"CUDAExecutionProvider.*onnxruntime-gpu"):
        check_available(Target.parse("onnxruntime:cuda"))
