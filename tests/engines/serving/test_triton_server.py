"""Packed models in the real Triton server: it loads them, warms them up with the golden inputs, and answers as ONNX Runtime."""

import asyncio
import hashlib
import json
import shutil

import numpy as np
import onnxruntime
import pytest
from serving_bundles import CASES, hidden
from triton_server import INSTALL, triton_server, wheel_folder

from blockforge.engines.serving.triton_repository import PackOptions, pack_triton
from blockforge.engines.target import Target

client = pytest.importorskip("tritonclient.http", reason="needs blockforge[triton]")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(wheel_folder() is None, reason=f"no Triton server binary here: {INSTALL}"),
]
CONFIG = "config.pbtxt"
# what is spoiled -> (text of the configuration and what takes its place, words of Triton's reason)
SPOILED = {
    "preferred": ("[ 2, 8 ]", "[ 2, 9 ]", "preferred size must be <= max batch size"),
    "zero": ("dims: [ -1, 64 ]", "dims: [ 0, 64 ]", "dimension must be integer >= 1"),
    "type": ("TYPE_FP32", "TYPE_FP8", "failed to read text proto"),
    "platform": ("onnxruntime_onnx", "tensorrt_plan", "unexpected 'platform' and 'backend' pair"),
    "profile": ("count: 1", 'count: 1 profile: "0"', "only supported for TensorRT"),
    "warm-up": ("dims: [ 16, 64 ]", "dims: [ 17, 64 ]", "warmup setting expects"),
}


@pytest.fixture(scope="module")
def repository(bundle, tmp_path_factory):
    """The model in two versions, and a spoiled copy for each rule."""
    folder = tmp_path_factory.mktemp("repository")
    for version in (1, 2):
        options = PackOptions(version=version, delay=1_000_000)
        (model,) = pack_triton(bundle, folder, targets=[Target.parse("onnxruntime:cpu")], options=options)  # fmt: skip
    for name, (old, new, _) in SPOILED.items():
        shutil.copytree(model.path, folder / name)
        text = (folder / name / CONFIG).read_text().replace('name: "chain"', f'name: "{name}"')
        assert old in text
        (folder / name / CONFIG).write_text(text.replace(old, new))
    return folder


@pytest.fixture(scope="module")
def server(repository, tmp_path_factory):
    with triton_server(repository, tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def asked(server):
    made = client.InferenceServerClient(server.url)
    yield made
    made.close()


def test_the_newest_version_is_ready_and_its_signature_is_ours(asked):
    index = {(m["name"], m.get("version")): m for m in asked.get_model_repository_index()}
    assert index["chain", "2"]["state"] == "READY"
    assert ("chain", "1") not in index  # the version policy
    metadata = asked.get_model_metadata("chain")
    assert metadata["inputs"] == [
        {"name": "hidden_states", "datatype": "FP32", "shape": [-1, -1, 64]}
    ]
    assert metadata["outputs"] == [{"name": "output", "datatype": "FP32", "shape": [-1, -1, 64]}]
    assert asked.get_model_config("chain")["max_batch_size"] == 8


@pytest.mark.parametrize("name", SPOILED)
def test_triton_refuses_what_our_rules_refuse(asked, server, name):
    models = [m for m in asked.get_model_repository_index() if m["name"] == name]
    assert all(m.get("state") != "READY" for m in models), models
    lines = [line for line in server.log.read_text().splitlines() if name in line]
    assert any(SPOILED[name][2] in line for line in lines), lines


def test_it_was_warmed_up_with_the_golden_inputs(asked, server):
    lines = [json.loads(line) for line in server.seen.read_text().splitlines()]
    expected = []
    for number, (name, (batch, sequence)) in enumerate(CASES.items()):
        row = hidden(batch, sequence, seed=number)[:1]
        digest = hashlib.sha256(row.astype("<f4").tobytes()).hexdigest()
        if name != "text 1/2":
            expected.append([[[[1, sequence, 64], digest]]] * batch)
    assert [line for line in lines if line in expected][:3] == expected


def test_answers_are_onnxruntimes_and_requests_are_joined(asked, server, bundle):
    before = len(server.seen.read_text().splitlines())
    inputs, answers = [], []
    for s in (3, 9, 16):  # one size at a time: another one ends the batch that is waiting
        round_ = [hidden(b, s, seed=7 * b + s) for b in (1, 2, 3, 1)]
        answers += asyncio.run(infer_all(server.url, round_))
        inputs += round_
    direct = onnxruntime.InferenceSession(bundle.path / "fp32/model.onnx")
    for x, found in zip(inputs, answers, strict=True):
        (expected,) = direct.run(None, {"hidden_states": x})
        bound = 10 * np.sqrt(128) * np.finfo(np.float32).eps * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
    runs = [json.loads(line) for line in server.seen.read_text().splitlines()[before:]]
    assert sum(map(len, runs)) == len(inputs) and max(map(len, runs)) > 1
    for run in runs:  # Triton joins equal sizes only, and never past the limit
        assert len({tuple(shape[1:]) for ((shape, _),) in run}) == 1
        assert sum(shape[0] for ((shape, _),) in run) <= 8


async def infer_all(url, inputs):
    """All at once, through Triton's asyncio client."""
    from tritonclient.http.aio import InferenceServerClient

    async def one(asked, x):
        given = client.InferInput("hidden_states", list(x.shape), "FP32")
        given.set_data_from_numpy(x)
        return (await asked.infer("chain", [given])).as_numpy("output")

    async with InferenceServerClient(url) as asked:
        return await asyncio.gather(*(one(asked, x) for x in inputs))


def test_a_request_beyond_the_batch_is_refused(asked):
    x = hidden(9, 3)
    given = client.InferInput("hidden_states", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    with pytest.raises(client.InferenceServerException, match="batch-size must be <= 8"):
        asked.infer("chain", [given])
