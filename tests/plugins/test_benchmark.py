"""benchmarks/kernels.py goes through every step on a CPU, and judges timings as its goals say."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, str(FOLDER / "kernels.py"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_dry_run():
    pytest.importorskip("triton")
    done = run("AddRMSNormQuantize", "GeGLUPacked", "--dry-run", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "Dry run of 7 contenders (blockforge, eager, kernel, then quantise)"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU to measure")
def test_without_a_gpu_it_says_so():
    done = run()
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("No GPU here")


def test_goals(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    kernels = importlib.import_module("kernels")
    timing = kernels.Timing
    size = ("RMSNormQuantize", 4096, 8192)
    ours = timing(*size, "blockforge", 10.0, fraction=0.91)
    good = [ours, timing(*size, "liger", 10.1), timing(*size, "kernel, then quantise", 17.1)]
    assert kernels.verdicts([*good, timing(*size, "compile", note="failed")]) == []
    slow = timing(*size, "blockforge", 10.0, fraction=0.89)
    assert "0.89 of copy bandwidth" in kernels.verdicts([slow])[0]
    assert "0.99x over liger" in kernels.verdicts([ours, timing(*size, "liger", 9.9)])[0]
    close = timing(*size, "kernel, then quantise", 16.9)
    assert "1.69x over kernel, then quantise, the goal is 1.7" in kernels.verdicts([ours, close])[0]


def test_peers_compute_the_same(monkeypatch):
    """A peer that computes something else would be no peer."""
    monkeypatch.syspath_prepend(str(FOLDER))
    peers = importlib.import_module("kernel_peers")
    from plugin_samples import NAMES, make_case

    from blockforge.core.dtypes import DType
    from blockforge.plugins.registry import plugin_named

    for name in NAMES:
        case = make_case(plugin_named(name), (2, 3), 32, DType.FP32)
        for got, want in zip(peers.eager(name)(case.inputs), case.reference(), strict=True):
            if got.dtype is torch.float8_e4m3fn:
                distance = got.view(torch.uint8).numpy().astype(int) - want
                assert (abs(distance) <= 1).all()
            else:
                torch.testing.assert_close(
                    got.double(), torch.from_numpy(want), rtol=1e-5, atol=1e-5
                )
