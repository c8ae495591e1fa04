"""Several optimisation profiles behind a server: limits, joining, warm-up and refusals honour each of them."""

import json

import numpy as np
import onnxruntime
import pytest
from serving_bundles import HIDDEN, hidden, make_bundle, plan, tensor
from test_batcher import session, submit_all, x
from test_endpoints import INFER, Counts, ask, infer_body
from test_triton_config import pack
from triton_rules import faults, read_config

from blockforge.core.errors import UsageError
from blockforge.core.shapes import ShapeRange
from blockforge.engines.serving.batching import batching_of
from blockforge.engines.serving.served_model import ServedModel, ServeOptions

WIDE = ((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 16, HIDDEN))
TALL = ((1, 1, HIDDEN), (8, 1, HIDDEN), (16, 1, HIDDEN))
SM90 = "tensorrt:sm90"


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """The chain with two profiles, and a plan of it."""
    return make_bundle(
        tmp_path_factory.mktemp("several") / "chain", engines=(plan(SM90),),
        profile={"hidden_states": WIDE}, more=({"hidden_states": TALL},),
    )  # fmt: skip


def batching(*sizes, most=None):
    """Of one input [batch, sequence]; each of `sizes` is (batch, sequence) at min, opt and max."""
    edge = tensor("x", ("batch", "sequence"))
    return batching_of((edge,), (edge,), [{"x": ShapeRange(*s)} for s in sizes], most)


LONG, ONE = ((1, 1), (2, 8), (4, 16)), ((1, 1), (8, 1), (16, 1))
HIGH, SMALL = ((5, 1), (6, 8), (8, 16)), ((1, 1), (1, 1), (1, 1))
# profiles -> (limit, joined at every size, room at sequences of 1, 8 and 17)
ROOMS = {
    "one": ([LONG], 4, 4, (4, 4, 0)),
    "more rows of one token": ([LONG, ONE], 16, 4, (16, 4, 0)),
    "a smaller one inside": ([LONG, SMALL], 4, 4, (4, 4, 0)),
    "one that goes on where another ends": ([LONG, HIGH], 8, 8, (8, 8, 0)),
    "a gap between two": ([LONG, ((6, 1), (6, 8), (8, 16))], 8, 4, (4, 4, 0)),
    "sizes that start at five rows": ([ONE, HIGH], 16, 0, (16, 0, 0)),
}


@pytest.mark.parametrize(("sizes", "limit", "joined", "rooms"), ROOMS.values(), ids=ROOMS)
def test_how_many_rows_are_joined(sizes, limit, joined, rooms):
    found = batching(*sizes)
    assert (found.limit, found.joined) == (limit, joined)
    assert tuple(found.room_for({"x": (1, s)}) for s in (1, 8, 17)) == rooms


def test_a_cap_holds_for_all_and_may_reach_the_widest():
    capped = batching(LONG, ONE, most=3)
    assert (capped.limit, capped.joined, capped.usual) == (3, 3, (2, 3))
    assert capped.room_for({"x": (1, 1)}) == 3
    assert batching(LONG, ONE, most=16).limit == 16
    with pytest.raises(UsageError, match="the widest of 2 profiles ends at 16"):
        batching(LONG, ONE, most=17)
    assert "the lowest of 2 profiles starts at a batch of 5" in batching(HIGH, ((6, 1), (6, 1), (6, 1))).reason  # fmt: skip


def test_a_line_is_joined_up_to_its_own_room():
    feeds = [x(n, rows=2, length=n % 2 + 1) for n in range(8)]
    room = {1: 8, 2: 3}
    run, results, _ = session(
        8, submit_all(*feeds, x(9, rows=5, length=2)), wait_seconds=0.05,
        room=lambda shapes: room[shapes["x"][1]],
    )  # fmt: skip
    assert sorted(run.shapes) == [(2, 2)] * 4 + [(5, 2), (8, 1)]
    for fed, result in zip(feeds, results, strict=False):
        np.testing.assert_array_equal(result["y"], fed["x"] * 2)


def test_a_server_takes_what_any_profile_holds(several):
    watch = Counts()
    model = ServedModel(several.path, ServeOptions(wait_ms=100), watch)
    inputs = [hidden(b, s, seed=b * s) for b, s in ((8, 1), (6, 1), (2, 8), (1, 8), (3, 8))]
    wrong = [hidden(5, 8), hidden(17, 1)]
    answers = ask(model, *(("POST", INFER, infer_body(each)) for each in (*inputs, *wrong)))
    assert [a.status for a in answers] == [200] * 5 + [400] * 2
    direct = onnxruntime.InferenceSession(several.path / "fp32/model.onnx")
    for given, answer in zip(inputs, answers, strict=False):
        (output,) = json.loads(answer.body)["outputs"]
        found = np.array(output["data"], np.float32).reshape(output["shape"])
        (expected,) = direct.run(None, {"hidden_states": given})
        bound = 10 * np.sqrt(128) * np.finfo(np.float32).eps * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound)
    assert sorted(watch.runs) == [(1, 3), (2, 3), (2, 14)], (
        "14 rows of one token, 4 at most of eight"
    )
    for answer in answers[5:]:
        error = json.loads(answer.body)["error"]
        assert "none of the 2 profiles" in error and "profile 0" in error and "profile 1" in error


def test_a_plan_is_served_with_all_its_profiles(several, tmp_path):
    (model,) = pack(several, tmp_path, SM90)
    config = read_config(model.path)
    assert faults(model.path, config) == []
    assert list(config.instance_group[0].profile) == ["0", "1"]
    assert config.max_batch_size == 16 and list(config.input[0].dims) == [-1, HIDDEN]
    assert not config.HasField("dynamic_batching"), "Triton would join 16 rows of eight tokens"
    assert any("do not hold a batch of 16" in note and "--max-batch 4" in note for note in model.notes)  # fmt: skip
    sizes = {w.name: (w.batch_size, w.inputs["hidden_states"].dims[0]) for w in config.model_warmup}
    assert sizes["profile 0"] == (2, 8) and sizes["profile 1"] == (8, 1)
    first = hidden(1, 1, seed=0)[0]
    for name, rows in (("profile 0", np.repeat(first, 8, axis=0)), ("profile 1", first)):
        entry = next(w for w in config.model_warmup if w.name == name).inputs["hidden_states"]
        stored = np.fromfile(model.path / "warmup" / entry.input_data_file, "<f4")
        np.testing.assert_array_equal(stored.reshape(list(entry.dims)), rows)


def test_a_batch_that_all_profiles_hold_is_joined(several, tmp_path):
    (model,) = pack(several, tmp_path, SM90, max_batch=4)
    config = read_config(model.path)
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 4]
    assert {w.name: w.batch_size for w in config.model_warmup}["profile 1"] == 4
    assert faults(model.path, config) == [] and not any("not joined" in n for n in model.notes)
    (onnx,) = pack(several, tmp_path, "onnxruntime:cpu", name="onnx")
    assert not read_config(onnx.path).instance_group[0].profile


def test_versions_of_one_model_have_the_same_profiles(several, tmp_path):
    pack(several, tmp_path, SM90, max_batch=4)
    one = make_bundle(tmp_path / "b", engines=(plan(SM90),), profile={"hidden_states": WIDE})
    with pytest.raises(UsageError, match=r'the profiles "0", "1", this one has 1.*--name'):
        pack(one, tmp_path, SM90, version=2, max_batch=4)
    pack(several, tmp_path, SM90, version=2, max_batch=4)
