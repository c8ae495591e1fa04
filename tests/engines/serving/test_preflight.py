"""What `serve` and `pack` refuse before Ray starts and before anything is written, and the near misses that they take."""

import contextlib
import json
import socket
from types import SimpleNamespace

import pytest
from serving_bundles import Parts, make_bundle, plan
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.bundle import Bundle
from blockforge.core.errors import UnavailableError, UsageError
from blockforge.engines.gpu import gpus
from blockforge.engines.serving import ray_server
from blockforge.engines.serving.model_name import LONGEST
from blockforge.engines.serving.ray_server import Address, serving
from blockforge.engines.serving.served_model import ServeOptions
from blockforge.engines.serving.triton_repository import PackOptions, pack_triton
from blockforge.engines.session import Session
from blockforge.engines.target import Target
from blockforge.engines.tensorrt_api import is_installed, load_api

CPU = [Target.parse("onnxruntime:cpu")]


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    """Whoever loads Ray has let something through."""
    for name in ("load_serve", "cluster", "deployment"):
        monkeypatch.setattr(ray_server, name, lambda *_, **__: pytest.fail("it went on to Ray"))


@pytest.fixture(scope="module")
def rtx(tmp_path_factory):
    """A bundle with an engine of the TensorRT-RTX that is installed, so that a session gets as far as the GPU."""
    installed = is_installed("tensorrt-rtx")
    runtime = load_api("tensorrt-rtx").version if installed else "tensorrt-rtx 1.7.1"
    engines = (plan("tensorrt-rtx:sm89", runtime),)
    return make_bundle(tmp_path_factory.mktemp("rtx") / "chain", Parts(engines=engines))


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def serve(bundle, *options):
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        taken = str(listening.getsockname()[1])
        options = [taken if option == "TAKEN" else option for option in options]
        return CliRunner().invoke(app, ["serve", str(bundle.path), *options])


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (["--port", "99999"], UsageError, r"port 99999: out of range\. Give 1 to 65535"),
        (["--port", "0"], UsageError, "port 0: out of range"),
        (["--port", "TAKEN"], UsageError, "cannot listen there: .*in use"),
        (["--host", "203.0.113.1"], UsageError, "cannot listen there"),
        (["--max-batch", "9"], UsageError, "the profile ends at 8"),
        (["--name", "a/b"], UsageError, "model name 'a/b'"),
        (["--name", "n" * (LONGEST + 1)], UsageError, "Give a shorter --name"),
        (["--precision", "fp16"], UsageError, "the bundle has fp32"),
        (["-t", "tensorrt:sm89"], UsageError, "the bundle has none.*blockforge compile"),
    ],
)
def test_serve_refuses_before_ray_starts(bundle, options, kind, words):
    done = serve(bundle, *options)
    assert type(done.exception) is kind or done.exit_code == kind.exit_code
    with pytest.raises(kind, match=words):
        raise done.exception


def test_a_free_port_and_the_largest_batch_go_on_to_ray(bundle):
    with (
        pytest.raises(pytest.fail.Exception, match="went on to Ray"),
        serving(
            bundle.path, ServeOptions(max_batch=8, name="a.b"), address=Address(port=free_port())
        ),
    ):
        pass


@pytest.mark.skipif(bool(gpus()), reason="needs a machine without a GPU")
def test_an_engine_that_cannot_run_here_is_the_sessions_error(rtx):
    options, port = ServeOptions(target="tensorrt-rtx:sm89"), free_port()
    with (
        pytest.raises(UnavailableError, match=r"not installed here|needs its GPU") as served,
        serving(rtx.path, options, address=Address(port=port)),
    ):
        pass
    assert served.value.exit_code == 3
    if is_installed("tensorrt-rtx"):
        with pytest.raises(UnavailableError) as session:
            Session(rtx, target="tensorrt-rtx:sm89")
        assert str(served.value) == str(session.value)
    elsewhere = Address(port=port, ray="10.0.0.1:6379")  # whose nodes may have the GPU
    with (
        pytest.raises(pytest.fail.Exception, match="went on to Ray"),
        serving(rtx.path, options, address=elsewhere),
    ):
        pass


class Cluster:
    """What deploy asks of ray.serve; the application has this status and its deployment says `words`."""

    RunTarget = SimpleNamespace

    def __init__(self, words, *statuses):
        self.words, self.statuses = words, list(statuses)

    def start(self, **_):
        pass

    def status(self):
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        replicas = {"d": SimpleNamespace(message=self.words)}
        found = SimpleNamespace(status=status, message="", deployments=replicas)
        return SimpleNamespace(applications={"blockforge": found})

    def run_many(self, targets, **_):
        pass


SLOW = (
    "Deployment 'd' has 1 replicas that have taken more than 30s to be scheduled. Resources required for each replica: "
    '{"CPU": 1.0, "GPU": 1}, total resources available: {"CPU": 2.0}. Use `ray status`.'
)


def test_a_cluster_without_room_is_waited_for_so_long(monkeypatch):
    monkeypatch.setattr(ray_server, "POLL_SECONDS", 0.01)
    for cluster, seconds, error in (
        (Cluster(SLOW, "DEPLOYING"), 0.05, UnavailableError),
        (Cluster(SLOW, *["DEPLOYING"] * 3, "RUNNING"), 600, None),  # room came
        (Cluster("initialize", *["DEPLOYING"] * 9, "RUNNING"), 0.0, None),  # it has its place
    ):
        monkeypatch.setattr(ray_server, "load_serve", lambda cluster=cluster: cluster)
        raises = pytest.raises(error, match=r"\"GPU\": 1.*free: .*2\.0") if error else contextlib.nullcontext()  # fmt: skip
        with raises:
            ray_server.deploy(None, Address(scheduling_seconds=seconds), "serve b")


def test_help_keeps_the_brackets():
    assert "blockforge[serve]" in CliRunner().invoke(app, ["serve", "--help"]).output


def test_pack_refuses_a_repository_inside_a_bundle(bundle, tmp_path):
    for inside in (bundle.path, bundle.path / "models", bundle.path / "fp32/models"):
        with pytest.raises(UsageError, match="it would lie in the bundle"):
            pack_triton(bundle, inside, targets=CPU)
    assert Bundle.open(bundle.path).verify() is None
    (tmp_path / "manifest.json").write_text(json.dumps({"name": "a web page"}))
    pack_triton(bundle, tmp_path / "models", targets=CPU)


def test_pack_refuses_a_target_that_the_bundle_lacks(blockforge, bundle, tmp_path):
    done = blockforge("pack", bundle.path, "-o", tmp_path / "r", "-t", "tensorrt:sm89")
    assert done.returncode == 2 and "the bundle has none" in done.stderr
    assert not (tmp_path / "r").exists()


def test_the_longest_name_and_version_are_written(bundle, tmp_path):
    longest = PackOptions(name="n" * LONGEST, version=2**63 - 1)
    (model,) = pack_triton(bundle, tmp_path, targets=CPU, options=longest)
    assert (model.path / str(2**63 - 1) / "model.onnx").is_file()
    with pytest.raises(UsageError, match="64-bit"):
        PackOptions(version=2**63)
    two = [*CPU, Target.parse("onnxruntime:cuda")]
    with pytest.raises(
        UsageError, match="Give a shorter --name"
    ):  # with the target's name behind it
        pack_triton(bundle, tmp_path / "r", targets=two, options=longest)
    assert not (tmp_path / "r").exists()


def test_one_name_has_one_precision(bundle, tmp_path):
    for version in (1, 2):
        pack_triton(bundle, tmp_path, targets=CPU, options=PackOptions(version=version))
    other = make_bundle(tmp_path / "other", Parts(precision="fp16"))  # of the same signature
    before = (tmp_path / "chain/config.pbtxt").read_bytes()
    with pytest.raises(UsageError, match=r"versions 1 and 2 there have the precision fp32.*--name"):
        pack_triton(other, tmp_path, targets=CPU, options=PackOptions(version=3))
    assert (tmp_path / "chain/config.pbtxt").read_bytes() == before
    pack_triton(other, tmp_path, targets=CPU, options=PackOptions(version=3, name="chain-fp16"))
