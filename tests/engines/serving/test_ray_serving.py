"""A bundle on Ray Serve under load, asked by Triton's own client: right answers, joined runs, clean refusals, no process left."""

import asyncio
import dataclasses
import os
import re
import shutil
import socket
import time
import urllib.request
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from serving_bundles import hidden

from blockforge.core.bundle import Bundle, seal
from blockforge.core.errors import ArtefactError
from blockforge.engines.serving.ray_deployment import ReplicaOptions, deployment
from blockforge.engines.serving.ray_server import Address, deploy, serving
from blockforge.engines.serving.served_model import ServeOptions

ray = pytest.importorskip("ray", reason="needs blockforge[serve]")
client = pytest.importorskip("tritonclient.http", reason="needs blockforge[triton]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`"),  # Ray's own
]
REQUESTS = 200
MAX_BYTES = 3 << 30  # of all processes together, while under load


@dataclasses.dataclass
class Server:
    """host:port of the proxy, and the cluster's processes."""

    url: str
    processes: set


def children():
    """Every process that this one has started, at any depth."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    found, more = set(), {os.getpid()}
    while more:
        more = {child for child, parent in parents.items() if parent in more} - found
        found |= more
    return found


def resident_bytes(processes):
    """Memory of these processes, what they share counted once."""
    total = 0
    for process in processes:
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        total += int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1]) * 1024
    return total


@pytest.fixture(scope="module")
def server(bundle):
    before = children()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    replicas = ReplicaOptions(max_queued=REQUESTS, max_ongoing=32, cpus=0.5)
    address = Address(port=port, cpus=2)
    with serving(bundle.path, ServeOptions(wait_ms=5), replicas, address) as url:
        assert url == f"http://127.0.0.1:{port}/v2/models/chain"
        started = children() - before
        yield Server(f"127.0.0.1:{port}", started)
    deadline = time.monotonic() + 60
    while (left := started & children()) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left, [Path(f"/proc/{p}/cmdline").read_text()[:200] for p in left]


def at(server):
    return Address(port=int(server.url.rpartition(":")[2]))


async def infer(asked, x, **options):
    given = client.InferInput("hidden_states", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    return (await asked.infer("chain", [given], **options)).as_numpy("output")


async def storm(url, inputs):
    """All at once; the outputs, or what was raised."""
    from tritonclient.http.aio import InferenceServerClient

    async with InferenceServerClient(url, conn_limit=64) as asked:
        return await asyncio.gather(*(infer(asked, x) for x in inputs), return_exceptions=True)


def test_health_and_metadata(server):
    asked = client.InferenceServerClient(server.url)
    assert asked.is_server_live() and asked.is_server_ready() and asked.is_model_ready("chain")
    assert not asked.is_model_ready("chain", "2") and not asked.is_model_ready("other")
    metadata = asked.get_model_metadata("chain")
    assert metadata["inputs"] == [
        {"name": "hidden_states", "datatype": "FP32", "shape": [-1, -1, 64]}
    ]
    assert "binary_tensor_data" in asked.get_server_metadata()["extensions"]
    asked.close()


def test_answers_under_load_are_onnxruntimes(server, bundle):
    random = np.random.default_rng(0)
    shapes = [(random.integers(1, 4), random.choice([3, 5, 16])) for _ in range(REQUESTS)]
    inputs = [hidden(b, s, seed=n) for n, (b, s) in enumerate(shapes)]
    answers = asyncio.run(storm(server.url, inputs))
    assert resident_bytes(server.processes | children()) < MAX_BYTES
    direct = onnxruntime.InferenceSession(bundle.path / "fp32/model.onnx")
    for x, answer in zip(inputs, answers, strict=True):
        assert isinstance(answer, np.ndarray), answer
        (expected,) = direct.run(None, {"hidden_states": x})
        # Joined rows may be summed in another order: sqrt(128) terms of eps each, through ten products.
        bound = 10 * np.sqrt(128) * np.finfo(np.float32).eps * np.abs(expected).max()
        np.testing.assert_allclose(answer, expected, rtol=0, atol=bound)


def test_bad_requests_are_refused_and_the_replica_lives(server):
    wrong = [hidden(1, 17), hidden(9, 3), hidden(1, 3)[:, :, :32]]
    answers = asyncio.run(storm(server.url, [*wrong, hidden(1, 3)]))
    assert [a.status() for a in answers[:3]] == ["400"] * 3
    for answer, words in zip(
        answers, ("outside the profile", "outside the profile", "axis 2"), strict=False
    ):
        assert words in answer.message()
    assert answers[3].shape == (1, 3, 64)
    asked = client.InferenceServerClient(server.url)
    assert asked.is_model_ready("chain")
    asked.close()


def test_the_metrics_count_requests_and_joined_runs(server):
    """Ray's own exporter, as Prometheus reads it; it is fed every few seconds."""
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    deadline = time.monotonic() + 120
    found, wanted = {}, {"200": REQUESTS + 1, "400": 3}  # by the tests before
    while time.monotonic() < deadline:
        text = urllib.request.urlopen(url, timeout=5).read().decode()
        rows = re.findall(r"^ray_(blockforge_\w+)\{([^}]*)\} ([\d.e+]+)$", text, re.M)
        found = {(n, *re.findall(r'status="(\d+)"', tags)): float(v) for n, tags, v in rows}
        if all(found.get(("blockforge_requests_total", s), 0) >= n for s, n in wanted.items()):
            break
        time.sleep(1)
    requests = {k[1]: v for k, v in found.items() if k[0] == "blockforge_requests_total"}
    assert requests["200"] >= REQUESTS and requests["400"] == 3, found
    assert found["blockforge_request_seconds_count",] == requests["200"] + requests["400"]
    runs = found["blockforge_batch_requests_count",]
    assert 0 < runs == found["blockforge_batch_rows_count",] < requests["200"] / 2  # joined


def test_beyond_its_queue_a_server_says_503(server, bundle):
    """One request inside, one that waits, and each takes two seconds: most of ten at once are turned away at once."""
    narrow = ReplicaOptions(max_queued=1, max_ongoing=1, cpus=0.1)
    application = deployment(bundle.path, options=ServeOptions(wait_ms=2000), replicas=narrow)
    deploy(application, at(server), "serve", name="narrow", route="/narrow")
    answers = asyncio.run(storm(f"{server.url}/narrow", [hidden(1, 3)] * 10))
    good = [a for a in answers if isinstance(a, np.ndarray)]
    assert {a.status() for a in answers if not isinstance(a, np.ndarray)} == {"503"}
    assert 1 <= len(good) <= 5 and all(a.shape == (1, 3, 64) for a in good)


def test_a_replica_that_is_not_what_was_judged_never_answers(server, bundle, tmp_path):
    """On the cluster that runs: the deployment fails with the readiness check's own words, and the other one goes on."""
    shutil.copytree(bundle.path, tmp_path / "b")
    data = tmp_path / "b/fp32/model.onnx.data"
    content = bytearray(data.read_bytes())
    content[len(content) // 2 + 3] ^= 0x80  # the sign of one weight
    data.write_bytes(content)
    seal(tmp_path / "b", Bundle.open(tmp_path / "b").manifest)
    application = deployment(tmp_path / "b", replicas=ReplicaOptions(cpus=0.1))
    with pytest.raises(ArtefactError, match="not what was judged"):
        deploy(application, at(server), "serve b", name="b", route="/b")
    (answer,) = asyncio.run(storm(server.url, [hidden(1, 3)]))
    assert answer.shape == (1, 3, 64)
