"""A served model without a server: every endpoint's answer, the readiness check, and ONNX Runtime as the oracle."""

import asyncio
import json
import shutil

import numpy as np
import onnxruntime
import pytest
from serving_bundles import HIDDEN, hidden, make_bundle, tensor

from blockforge.core.bundle import Bundle, seal
from blockforge.core.errors import ArtefactError, BuildError, UsageError
from blockforge.engines.serving.endpoints import respond
from blockforge.engines.serving.served_model import ServedModel, ServeOptions


class Counts:
    """What a watch was told."""

    def __init__(self):
        self.statuses, self.runs = [], []

    def request(self, status, seconds):
        assert seconds >= 0
        self.statuses.append(status)

    def run(self, requests, rows):
        self.runs.append((requests, rows))


def ask(model, *requests, close=True):
    """Answers of (method, path, body) in one event loop, all asked at once."""

    async def main():
        try:
            return await asyncio.gather(
                *(respond(model, method, path, {}, body) for method, path, body in requests)
            )
        finally:
            if close:
                await model.close()

    return asyncio.run(main())


def infer_body(array, **changes):
    entry = {"name": "hidden_states", "datatype": "FP32", "shape": list(array.shape)}
    return json.dumps({"inputs": [entry | {"data": array.reshape(-1).tolist()} | changes]}).encode()


INFER = "/v2/models/chain/infer"


def test_answers_are_onnxruntimes_and_requests_are_joined(bundle):
    watch = Counts()
    model = ServedModel(bundle.path, ServeOptions(wait_ms=100), watch)
    inputs = [hidden(b, s, seed=b * s) for b, s in ((1, 5), (2, 5), (3, 5), (1, 7))]
    answers = ask(model, *(("POST", INFER, infer_body(x)) for x in inputs))
    direct = onnxruntime.InferenceSession(bundle.path / "fp32/model.onnx")
    for x, answer in zip(inputs, answers, strict=True):
        assert answer.status == 200, answer.body
        (output,) = json.loads(answer.body)["outputs"]
        found = np.array(output["data"], np.float32).reshape(output["shape"])
        (expected,) = direct.run(None, {"hidden_states": x})
        # Joined rows may be summed in another order: sqrt(128) terms of eps each, through ten products.
        bound = 10 * np.sqrt(128) * np.finfo(np.float32).eps * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
    assert sorted(watch.runs) == [(1, 1), (3, 6)] and watch.statuses == [200] * 4


def test_one_bad_request_among_good_ones(bundle):
    watch = Counts()
    model = ServedModel(bundle.path, ServeOptions(wait_ms=50), watch)
    good = infer_body(hidden(1, 5))
    bad = infer_body(hidden(1, 5)[:, :, :32])
    answers = ask(model, *(("POST", INFER, b) for b in (good, bad, good)))
    assert [a.status for a in answers] == [200, 400, 200]
    assert f"axis 2 has 32, not {HIDDEN}" in json.loads(answers[1].body)["error"]
    assert watch.runs == [(2, 2)]


# what is asked -> (method, path, status, words of the body)
ENDPOINTS = {
    "server": ("GET", "/v2", 200, "binary_tensor_data"),
    "trailing slash": ("GET", "/v2/", 200, "blockforge"),
    "live": ("GET", "/v2/health/live", 200, "true"),
    "ready": ("GET", "/v2/health/ready", 200, "true"),
    "model": ("GET", "/v2/models/chain", 200, '"shape": [-1, -1, 64]'),
    "version": ("GET", "/v2/models/chain/versions/1", 200, '"versions": ["1"]'),
    "model ready": ("GET", "/v2/models/chain/versions/1/ready", 200, '"ready": true'),
    "another version": ("GET", "/v2/models/chain/versions/2", 404, "The version is 1"),
    "another model": ("POST", "/v2/models/other/infer", 404, "The model is 'chain'"),
    "unknown path": ("GET", "/metrics", 404, "/metrics"),
    "unknown action": ("GET", "/v2/models/chain/stats", 404, "infer and ready"),
    "root": ("GET", "/", 404, "not found"),
    "wrong method": ("GET", INFER, 405, "POST"),
    "posted health": ("POST", "/v2/health/live", 405, "GET"),
    "empty body": ("POST", INFER, 400, "no JSON"),
    "out of profile": ("POST", INFER, 400, "outside the profile"),
}


@pytest.mark.parametrize(("method", "path", "status", "words"), ENDPOINTS.values(), ids=ENDPOINTS)
def test_endpoints(served, method, path, status, words):
    body = infer_body(hidden(1, 17)) if words == "outside the profile" else b""
    (answer,) = ask(served, (method, path, body), close=False)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    assert words in answer.body.decode()
    assert ("error" in json.loads(answer.body)) == (status >= 400)


@pytest.fixture(scope="module")
def served(bundle):
    return ServedModel(bundle.path)


def test_a_closed_model_is_live_but_not_ready(bundle):
    model = ServedModel(bundle.path)
    asyncio.run(model.close())
    answers = ask(model, ("GET", "/v2/health/live", b""), ("GET", "/v2/health/ready", b""), ("GET", "/v2/models/chain/ready", b""), ("POST", INFER, infer_body(hidden())), close=False)  # fmt: skip
    assert [a.status for a in answers] == [200, 503, 503, 503]


def test_the_runtimes_failure_is_a_500(bundle, monkeypatch):
    model = ServedModel(bundle.path)

    def fail(feeds):
        raise BuildError("run", found="the device is lost")

    monkeypatch.setattr(model._session, "run", fail)
    (answer,) = ask(model, ("POST", INFER, infer_body(hidden())))
    assert answer.status == 500 and b"the device is lost" in answer.body


def test_a_fault_of_ours_is_a_500_without_its_insides(bundle, monkeypatch):
    model = ServedModel(bundle.path)
    monkeypatch.setattr(model, "infer", lambda feeds: [].pop())
    (answer,) = ask(model, ("POST", INFER, infer_body(hidden())))
    assert answer.status == 500 and b"IndexError" in answer.body and b"pop" not in answer.body


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"inputs": []}', "nothing for hidden_states"),
        (infer_body(np.float32(1)), "shape scalar"),
        (infer_body(hidden(1, 3), name="other"), "unknown input other"),
        (infer_body(hidden(1, 3), datatype="FP64"), "float64"),
    ],
)
def test_feeds_are_checked_before_they_are_joined(served, body, words):
    (answer,) = ask(served, ("POST", INFER, body), close=False)
    assert answer.status == 400 and words in json.loads(answer.body)["error"]


def test_more_rows_than_are_joined(bundle):
    model = ServedModel(bundle.path, ServeOptions(max_batch=2))
    answers = ask(model, *(("POST", INFER, infer_body(hidden(n, 5))) for n in (2, 3)))
    assert [a.status for a in answers] == [200, 400] and b"3 rows" in answers[1].body


def test_a_compressed_body_is_refused(bundle, served):
    answer = asyncio.run(respond(served, "POST", INFER, {"content-encoding": "gzip"}, b"\x1f\x8b"))
    assert answer.status == 400 and b"compressed" in answer.body


def test_the_golden_outputs_are_compared_before_it_is_ready(bundle):
    model = ServedModel(bundle.path)
    assert {check.case for check in model.checks} == {"small", "odd", "text 1/2", "large"}
    assert all(check.rms <= check.allowed / 3 for check in model.checks)
    asyncio.run(model.close())


def test_a_bundle_that_computes_something_else_never_gets_ready(bundle, tmp_path):
    """One weight with another sign: the file is whole, its hash is right, and its numbers are not what was judged."""
    shutil.copytree(bundle.path, tmp_path / "b")
    data = tmp_path / "b/fp32/model.onnx.data"
    content = bytearray(data.read_bytes())
    content[len(content) // 2 + 3] ^= 0x80
    data.write_bytes(content)
    seal(tmp_path / "b", Bundle.open(tmp_path / "b").manifest)
    Bundle.open(tmp_path / "b").verify()
    with pytest.raises(ArtefactError, match=r"golden case.*not what was judged"):
        ServedModel(tmp_path / "b")


def test_a_bundle_without_golden_outputs_is_served_unchecked(tmp_path):
    model = ServedModel(make_bundle(tmp_path / "b", golden=False).path, ServeOptions(name="other"))
    assert model.checks == ()
    (answer,) = ask(model, ("POST", "/v2/models/other/infer", infer_body(hidden())))
    assert answer.status == 200


def test_a_type_that_the_protocol_lacks_is_refused_at_once(tmp_path):
    records = (tensor("hidden_states", ("batch", "sequence", HIDDEN), "fp8_e4m3"),)
    made = make_bundle(tmp_path / "b", golden=False, inputs=records)
    with pytest.raises(UsageError, match=r'no type for fp8_e4m3.*io = "fp32"'):
        ServedModel(made.path)
