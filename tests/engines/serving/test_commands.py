"""`blockforge pack` and `blockforge serve`: what they print, and each refusal's message and exit code."""

import contextlib
import json
import os
import subprocess
import sys
import threading

import pytest
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.errors import UnavailableError, UsageError
from blockforge.engines.serving import ray_server
from blockforge.engines.serving.ray_api import cluster
from blockforge.engines.serving.ray_deployment import ReplicaOptions, deployment
from blockforge.engines.serving.served_model import ServeOptions


def test_pack_writes_and_prints(bundle, tmp_path):
    command = [
        "pack",
        str(bundle.path),
        "--format",
        "triton",
        "-o",
        str(tmp_path),
        "--max-batch",
        "4",
    ]
    done = CliRunner().invoke(app, [*command, "--instances", "2", "--json"])
    assert done.exit_code == 0, done.output
    (model,) = json.loads(done.stdout)["models"]
    assert (model["name"], model["version"], model["max_batch"]) == ("chain", 1, 4)
    assert model["path"] == str(tmp_path / "chain")
    assert "count: 2" in (tmp_path / "chain/config.pbtxt").read_text()
    shown = CliRunner().invoke(app, [*command, "--version", "2"])
    assert shown.exit_code == 0 and (tmp_path / "chain" / "2").is_dir()
    assert f"tritonserver --model-repository={tmp_path}" in shown.stdout.replace("\n", "")


def test_pack_of_an_engine_that_triton_cannot_load(blockforge, bundle, tmp_path):
    done = blockforge("pack", bundle.path, "-o", tmp_path / "r", "-t", "tensorrt-rtx:sm89")
    assert done.returncode == 2
    assert "libnvinfer" in done.stderr and "onnxruntime:cuda" in done.stderr
    assert not (tmp_path / "r").exists()


RECIPE = """
name = "tiny"
[model]
preset = "llama-tiny"
[shapes]
min = "input_ids:1x1"
opt = "input_ids:1x8"
max = "input_ids:2x16"
[validate.limits]
max_error_over_floor = 2.0
"""


@pytest.mark.parametrize("command", ["serve", "build"])
def test_without_ray_it_says_what_to_install(bundle, tmp_path, command):
    (tmp_path / "ray.py").write_text("raise ImportError('there is no ray here')")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    arguments = [command, str(bundle.path)]
    if command == "build":
        arguments = [command, "recipe.toml", "-o", "out", "--ray", "local"]
    before = sorted(tmp_path.iterdir())
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "blockforge", *arguments],
        capture_output=True, text=True, check=False, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "there is no ray here" in done.stderr and "blockforge[serve]" in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_build_hands_the_cluster_to_the_pipeline(tmp_path, monkeypatch):
    from blockforge import pipeline
    from blockforge.engines import ray_compile

    (tmp_path / "recipe.toml").write_text(RECIPE)
    seen = []

    def build(*_, compiler, **__):
        seen.append(compiler)
        raise UsageError("stop", found="here")

    monkeypatch.setattr(ray_compile, "ray_compiler", lambda address: f"on {address}")
    monkeypatch.setattr(pipeline, "build", build)
    for option in ([], ["--ray", "node:6379"]):
        CliRunner().invoke(app, ["build", str(tmp_path / "recipe.toml"), *option])
    assert seen == [None, "on node:6379"]


def test_serve_refuses_before_it_starts_anything(blockforge, bundle):
    pytest.importorskip("ray", reason="needs blockforge[serve]")
    done = blockforge("serve", bundle.path, "--precision", "fp16")
    assert done.returncode == 2 and "the bundle has fp32" in done.stderr
    for wrong, words in (
        (lambda: ReplicaOptions(replicas=0), "1 or more"),
        (lambda: ServeOptions(wait_ms=-1), "0 to 60,000"),
        (lambda: deployment(bundle.path, target="onnxruntime:tpu"), "onnxruntime:cpu"),
    ):
        with pytest.raises(UsageError, match=words):
            wrong()


def test_serve_says_where_and_ends_quietly_with_ctrl_c(bundle, monkeypatch):
    """The server itself is a stand-in; test_ray_serving has the real one."""
    seen = []

    @contextlib.contextmanager
    def serving(*arguments):
        seen.extend(arguments)
        try:
            yield "http://127.0.0.1:9/v2/models/chain"
        finally:
            seen.append("ended")

    def interrupted(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(ray_server, "serving", serving)
    monkeypatch.setattr(threading.Event, "wait", interrupted)
    done = CliRunner().invoke(
        app, ["serve", str(bundle.path), "--port", "9", "--replicas", "2", "--json"]
    )
    assert done.exit_code == 0 and json.loads(done.stdout)["url"].endswith("/chain")
    assert (seen[2].replicas, seen[3].port, seen[-1]) == (2, 9, "ended")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "127.0.0.1:port"])
def test_a_cluster_that_is_not_there_is_said_at_once(address, monkeypatch):
    """Ray itself, which would try for minutes, is not even asked."""
    ray = pytest.importorskip("ray", reason="needs blockforge[serve]")
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("it went on to Ray"))
    with pytest.raises(UnavailableError, match="ray start --head"), cluster(address):
        raise AssertionError
