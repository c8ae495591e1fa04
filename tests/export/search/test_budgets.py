"""Budgets of perplexity and of error over the noise floor: a decoder of one token's memory, and numbers from torch and numpy."""

import json
from dataclasses import replace
from types import SimpleNamespace

import jsonschema
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.errors import UsageError
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.export.search.cost import roofline
from blockforge.export.search.judge import Judge
from blockforge.export.search.ranking import Budget
from blockforge.export.search.rounded import Switchboard
from blockforge.export.search.search import search_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model
from blockforge.schemas import schema_of

WORDS, WIDTH, LINEARS, PLANTED = 40, 32, 5, 2
OPTIONS = QuantizeOptions(rounding="nearest", observer="amax")
RNG = np.random.default_rng(0)
TABLE = RNG.standard_normal((WORDS, WIDTH)).astype(np.float16)
HEAD = (RNG.standard_normal((WIDTH, WORDS)) / 3).astype(np.float16)
BOOSTS = np.ones((LINEARS, WIDTH), np.float16)
BOOSTS[PLANTED] = 1 / 16
BOOSTS[PLANTED, 5] = 1e4  # pushes the other channels to the last subnormals of E4M3
WEIGHTS = (RNG.standard_normal((LINEARS, WIDTH, WIDTH)) / 4 / BOOSTS[:, :, None]).astype(np.float16)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """An FP16 decoder whose next token follows from the last one alone."""
    weights = {"table": TABLE, "head": HEAD}
    nodes = [helper.make_node("Gather", ["table", "input_ids"], ["h0"])]
    for i in range(LINEARS):
        weights |= {f"boost{i}": BOOSTS[i], f"layers.{i}.proj.weight": WEIGHTS[i]}
        nodes += [
            helper.make_node("Mul", [f"h{i}", f"boost{i}"], [f"in{i}"]),
            helper.make_node("MatMul", [f"in{i}", f"layers.{i}.proj.weight"], [f"out{i}"]),
            helper.make_node("Tanh", [f"out{i}"], [f"h{i + 1}"]),
        ]
    nodes.append(helper.make_node("MatMul", [f"h{LINEARS}", "head"], ["logits"]))
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "sequence"])
    logits = helper.make_tensor_value_info(
        "logits", TensorProto.FLOAT16, ["batch", "sequence", WORDS]
    )
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "decoder", [ids], [logits], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    path = tmp_path_factory.mktemp("decoder") / "model.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def exact_logits(ids):
    """The same in numpy's float64."""
    value = TABLE.astype(np.float64)[ids]
    for boost, weight in zip(BOOSTS.astype(np.float64), WEIGHTS.astype(np.float64), strict=True):
        value = np.tanh(value * boost @ weight)
    return value @ HEAD.astype(np.float64)


def texts(seed, count=2, length=150):
    """What the decoder itself would write, so that every change to it costs perplexity on the average."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.from_numpy(exact_logits(np.arange(WORDS))).softmax(-1)
    ids = [torch.randint(WORDS, (2,), generator=generator)]
    for _ in range(count * length - 1):
        ids.append(torch.multinomial(p[ids[-1]], 1, generator=generator)[:, 0])
    return [{"input_ids": part.contiguous()} for part in torch.stack(ids, 1).split(length, 1)]


FEEDS, TRIAL = texts(1), texts(2)


def search(path, output, measure, limit):
    return search_file(
        path, output, FEEDS, TRIAL, OPTIONS, Budget(limit, measure), roofline("l4", 128)
    )


def runs(path):
    return [TypedEvaluator(path).run(feed).outputs["logits"] for feed in TRIAL]


def losses(logits):
    """As transformers' causal language models take them."""
    return torch.cat(
        [
            torch.nn.functional.cross_entropy(
                found.float()[:, :-1].reshape(-1, WORDS),
                feed["input_ids"][:, 1:].reshape(-1),
                reduction="none",
            )
            for found, feed in zip(logits, TRIAL, strict=True)
        ]
    )


def ratio(plain, quantized):
    return float(losses(quantized).mean().exp() / losses(plain).mean().exp())


def over_floor(plain, quantized):
    exact = np.concatenate([exact_logits(feed["input_ids"].numpy()) for feed in TRIAL])
    lost, floor = (
        np.linalg.norm(torch.cat(x).double().numpy() - exact) for x in (quantized, plain)
    )
    return lost / floor


@pytest.mark.parametrize(("measure", "oracle"), [("perplexity", ratio), ("floor", over_floor)])
def test_the_written_file_meets_the_budget_by_the_planted_linear(path, tmp_path, measure, oracle):
    plain = runs(path)
    loose = search(path, tmp_path / "all.onnx", measure, 1e6)
    worst = oracle(plain, runs(tmp_path / "all.onnx"))
    assert loose.kept == () and worst > 1.01
    assert loose.reached == pytest.approx(worst, rel=1e-5)
    assert loose.all_quantized - 1 == pytest.approx(worst - 1, rel=5e-3)

    above = search(path, tmp_path / "above.onnx", measure, 1 + (worst - 1) * 1.01)
    assert above.kept == ()
    below = search(path, tmp_path / "below.onnx", measure, 1 + (worst - 1) * 0.99)
    reached = oracle(plain, runs(tmp_path / "below.onnx"))
    assert [c.name for c in below.kept] == [f"layers.{PLANTED}.proj"]
    assert below.reached == pytest.approx(reached, rel=1e-5) and reached <= below.budget.limit
    assert below.all_quantized > below.budget.limit

    ranked_by = {"perplexity": "kl", "floor": "error"}[measure]
    same = search(path, tmp_path / "same.onnx", ranked_by, 1e6)
    assert below.ranked_by == ranked_by and same.standard_error is None
    assert [c.gain for c in below.choices] == [c.gain for c in same.choices]
    assert below.ranked_all_quantized == same.ranked_all_quantized == same.all_quantized
    assert below.ranked_reached < below.ranked_all_quantized
    budget, line = below.lines("fp16")
    told = {"perplexity": "perplexity ratio", "floor": "error over noise floor"}[measure]
    name = {"kl": "KL", "error": "error"}[ranked_by]
    assert budget.startswith(
        f"budget: {told} at most {below.budget.limit:g}; {below.all_quantized:.5g} ({name} "
    )
    assert ("standard error" in budget) == (measure == "perplexity")
    assert budget.endswith("with 1 kept high")
    share = below.kept[0].gain / same.all_quantized
    assert f"fp16, gains {share:.2%} of the {name} that all cost together" in line


def test_as_many_are_kept_as_the_written_files_need(path, tmp_path):
    names = [c.name for c in search(path, tmp_path / "all.onnx", "floor", 1e6).choices]
    reached = []
    for count in range(LINEARS):
        output = tmp_path / f"{count}.onnx"
        quantize_file(path, output, FEEDS, replace(OPTIONS, keep=tuple(names[:count])))
        reached.append(over_floor(runs(path), runs(output)))
    assert reached == sorted(reached, reverse=True) and reached[-1] > 2
    for count in (3, 4):
        limit = 0.5 * (reached[count - 1] + reached[count])
        found = search(path, tmp_path / "q.onnx", "floor", limit)
        assert [c.name for c in found.kept] == names[:count]


def test_the_file_is_held_to_the_budget_not_its_forecast(path, tmp_path):
    loose = search(path, tmp_path / "all.onnx", "perplexity", 1e6)
    assert loose.all_quantized < loose.reached  # the file's scaled weights are rounded once more
    limit = (loose.all_quantized + loose.reached) / 2
    found = search(path, tmp_path / "q.onnx", "perplexity", limit)
    assert found.all_quantized < limit and len(found.kept) == 1
    assert ratio(runs(path), runs(tmp_path / "q.onnx")) <= limit


def test_perplexity_by_the_reference_evaluator_of_onnx(path, tmp_path):
    """Its products round otherwise: the ratio agrees to a few hundredths of what quantising costs."""
    found = search(path, tmp_path / "q.onnx", "perplexity", 1e6)
    logits = [
        [
            torch.from_numpy(ReferenceEvaluator(str(file)).run(None, {"input_ids": x["input_ids"].numpy()})[0])
            for x in TRIAL
        ]
        for file in (path, tmp_path / "q.onnx")
    ]  # fmt: skip
    assert found.reached - 1 == pytest.approx(ratio(*logits) - 1, rel=0.05)


def test_the_standard_error_is_that_of_means_of_neighbours(path, tmp_path):
    found = search(path, tmp_path / "q.onnx", "perplexity", 1e6)
    lost = (losses(runs(tmp_path / "q.onnx")) - losses(runs(path))).double().numpy()
    blocks = np.array([lost[i : i + 16].mean() for i in range(0, len(lost) - 15, 16)])
    expected = np.exp(lost.mean()) * blocks.std(ddof=1) / np.sqrt(len(blocks))
    assert found.standard_error == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("option", "loose", "measure", "ranked_by"),
    [
        ("--max-perplexity-ratio", "2", "perplexity", "kl"),
        ("--max-error-over-floor", "2000", "floor", "error"),
    ],
)
def test_the_command(path, tmp_path, option, loose, measure, ranked_by):
    data = tmp_path / "data"
    data.mkdir()
    for number, feed in enumerate([*FEEDS, *TRIAL]):
        np.savez(data / f"{number}.npz", input_ids=feed["input_ids"].numpy())
    words = ("--precision", "fp8", "--base", "keep", "--observer", "amax", "--rounding", "nearest")
    given = ("quantize", path, "-o", tmp_path / "q.onnx", *words, "--calibration", data)

    def searched(limit):
        done = CliRunner().invoke(app, [*map(str, given), option, limit, "--json"])
        body = json.loads(done.stdout)
        jsonschema.validate(body, schema_of("quantize"))
        return body["search"]

    found = searched(loose)
    assert found["budget"]["measure"] == measure and found["ranked_by"] == ranked_by
    assert not any(choice["kept"] for choice in found["choices"])
    assert (found["standard_error"] is None) == (measure == "floor")
    kept = [
        c["name"] for c in searched(f"{1 + 0.9 * (found['reached'] - 1)}")["choices"] if c["kept"]
    ]
    assert kept == [f"layers.{PLANTED}.proj"]


def ids(*shape, dtype=torch.int64):
    return torch.ones(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("feed", "logits", "words"),
    [
        ({"x": ids(1, 8)}, ids(1, 8, 9), "no token ids .* among x"),
        ({"input_ids": ids(1, 8, dtype=torch.float32)}, ids(1, 8, 9), "no token ids"),
        ({"input_ids": ids(1, 8)}, ids(1, 1, 9), r"outputs \[1, 1, 9\] for input_ids \[1, 8\]"),
        ({"input_ids": ids(1, 8)}, ids(1, 9), r"outputs \[1, 9\]"),
        ({"input_ids": ids(8)}, ids(1, 8, 9), r"for input_ids \[8\]"),
        ({"input_ids": 9 * ids(1, 8)}, ids(1, 8, 9), "token ids 9 to 9, but 9 logits"),
        ({"input_ids": -ids(1, 8)}, ids(1, 8, 9), "token ids -1 to -1"),
        ({"input_ids": ids(1, 2)}, ids(1, 2, 9), "less than two next tokens"),
        ({"decoder_input_ids": ids(1, 2), "input_ids": ids(1, 8)}, ids(1, 8, 9), "for decoder_input_ids"),
    ],
)  # fmt: skip
def test_what_has_no_perplexity_is_refused(feed, logits, words):
    def board(found):
        return SimpleNamespace(outputs=lambda *_: [{"logits": found.float()}])

    with pytest.raises(UsageError, match=words):
        Judge(board(logits), [feed], "perplexity")
    Judge(board(logits), [feed], "kl")
    fitting = {"decoder_input_ids": 8 * ids(1, 3), "input_ids": ids(1, 8)}
    judge = Judge(board(ids(1, 3, 9)), [fitting], "perplexity")
    assert judge.read(judge.reference).value == 1


def test_no_floor_is_refused_and_no_limit_at_one(path, tmp_path):
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        shape = numpy_helper.to_array(tensor).shape
        tensor.CopyFrom(numpy_helper.from_array(np.zeros(shape, np.float16), tensor.name))
    onnx.save(model, tmp_path / "zero.onnx")
    with pytest.raises(UsageError, match="against float64 is 0 on the trial"):
        search(tmp_path / "zero.onnx", tmp_path / "out.onnx", "floor", 2.0)
    assert not (tmp_path / "out.onnx").exists()
    judge = Judge(Switchboard(load_model(path), OPTIONS), TRIAL, "floor")
    assert judge.read(judge.reference).value == 1
    for measure in ("perplexity", "floor"):
        with pytest.raises(UsageError, match="the unquantised graph itself has 1"):
            Budget(1.0, measure)
        Budget(1.0001, measure)
