"""Many linears: gradients say which are close to the cut, and what comes out is what measuring every one gives."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from blockforge.core.dtypes import DType
from blockforge.core.progress import silent
from blockforge.export.export import export_variant
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.search.cost import roofline
from blockforge.export.search.gradients import estimated_gains
from blockforge.export.search.judge import Judge
from blockforge.export.search.measures import distance
from blockforge.export.search.ranking import Budget, rank, ranking
from blockforge.export.search.rounded import Switchboard
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.io import load_model
from blockforge.model.checkpoints import preset_checkpoint

WIDTH, LINEARS, ROWS = 32, 24, 64
OPTIONS = QuantizeOptions(rounding="nearest", observer="amax", head=True)
ROOFLINE = roofline("l4", 128)


def chain(path, bend="Tanh"):
    """x + 24 branches, each an Add of a linear of Tanh; every third input has a channel that is far too large."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for i in range(LINEARS):
        boost = np.ones(WIDTH, np.float32)
        boost[5] = 10.0 ** (i % 3 * (1 + i / LINEARS))
        weight = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
        weight[5] /= boost[5]
        weights.append(numpy_helper.from_array(boost, f"boost{i}"))
        weights.append(numpy_helper.from_array(weight, f"layers.{i}.proj.weight"))
        nodes += [
            helper.make_node(bend, [value], [f"bent{i}"]),
            helper.make_node("Mul", [f"bent{i}", f"boost{i}"], [f"in{i}"]),
            helper.make_node("MatMul", [f"in{i}", f"layers.{i}.proj.weight"], [f"out{i}"]),
            helper.make_node("Add", [value, f"out{i}"], [f"sum{i}"]),
        ]
        value = f"sum{i}"
    edges = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", WIDTH]) for n in ("x", value)]  # fmt: skip
    graph = helper.make_graph(nodes, "chain", edges[:1], edges[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def feeds(seed, count=2):
    generator = torch.Generator().manual_seed(seed)
    return [{"x": torch.randn(ROWS, WIDTH, generator=generator)} for _ in range(count)]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return chain(tmp_path_factory.mktemp("chain") / "model.onnx")


@pytest.fixture(scope="module", params=["kl", "error"])
def measured(request, path):
    """The measure, the graph, its plain outputs, and what each linear alone really does."""
    board = Switchboard(load_model(path), OPTIONS)
    board.calibrate(feeds(1), ir.DataType.FLOAT)
    reference = board.outputs(feeds(2), None)
    alone = board.alone(feeds(2), board.candidates)
    gains = {x: distance(request.param, reference, outputs) for x, outputs in alone}
    return request.param, board, reference, gains


def test_gradients_estimate_what_is_measured(measured):
    """Rows are independent here, so the mean is right: what is left is chance, sqrt(2 / n) of n squares, and the second
    order, which the errors of E4M3 (up to 6 % of a number) do not exceed by much."""
    measure, board, reference, gains = measured
    samples = 32
    found = estimated_gains(board, feeds(2), reference, measure, samples=samples, seed=0)
    assert list(found) != [] and set(found) == set(gains)
    chance = (2 / (samples * ROWS * 2)) ** 0.5
    for linear, gain in gains.items():
        assert found[linear] == pytest.approx(gain, rel=6 * chance + 0.1), linear.name
    few = [
        estimated_gains(board, feeds(2), reference, measure, samples=1, seed=s) for s in (0, 0, 1)
    ]
    assert few[0] == few[1] != few[2]


@pytest.mark.parametrize("share", [0.8, 0.5, 0.25])
def test_the_list_is_that_of_measuring_every_linear(path, share, monkeypatch):
    """Also what it costs: steps of the graph that are computed, gradients and bisection included."""
    steps = []
    advance = TypedEvaluator.advance
    monkeypatch.setattr(TypedEvaluator, "advance", lambda *a: (steps.append(1), advance(*a))[1])

    def ranked(finalists, limit):
        steps.clear()
        budget = Budget(limit, finalists=finalists)
        found = ranking(path, feeds(1), feeds(2), OPTIONS, budget, ROOFLINE, lambda _: None)
        return found, len(steps)

    whole, _ = ranked(LINEARS, 1e9)
    assert whole.count == 0 and all(x.measured for x in whole.order)
    exact, dear = ranked(LINEARS, whole.all_quantized.value * share)
    screened, cheap = ranked(6, whole.all_quantized.value * share)
    assert 0 < exact.count < LINEARS and cheap < dear
    kept = [{x.name for x in r.order[: r.count]} for r in (exact, screened)]
    assert kept[0] == kept[1]
    gains = {x.name: x.gain for x in exact.order}
    assert sum(x.measured for x in screened.order) == 6
    for entry in screened.order:
        bound = 1e-9 if entry.measured else 0.3
        assert entry.gain == pytest.approx(gains[entry.name], rel=bound)
    again, _ = ranked(6, whole.all_quantized.value * share)
    assert again.order == screened.order and again.count == screened.count


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """The tiny Llama, calibrated, 14 linears apart, and what a search reads."""
    folder = tmp_path_factory.mktemp("decoder") / "fp32"
    checkpoint = preset_checkpoint("llama-tiny")
    export_variant(checkpoint, layer=None, precision=DType.FP32, io=DType.FP32, folder=folder)
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(0, 250, (2, 24), generator=generator) for _ in range(4)]
    options = QuantizeOptions(rounding="nearest", pack=False)
    board = Switchboard(load_model(folder / "model.onnx"), options)
    board.calibrate([{"input_ids": x} for x in ids[:2]], ir.DataType.FLOAT)
    return board, [{"input_ids": x} for x in ids[2:]]


@pytest.mark.parametrize("measure", ["kl", "error"])
def test_a_decoder_whose_tokens_see_each_other(decoder, measure):
    """Attention mixes the rows: what they add or cancel in one another is missing from an estimate, by a factor of 1.7 here
    (v_proj), and in no list.
    """
    board, trial = decoder

    def ranked(limit, finalists):
        budget = Budget(limit, measure, finalists=finalists)
        return rank(board, Judge(board, trial, measure), budget, ROOFLINE, silent)

    exact, estimated = ranked(1e9, len(board.candidates)), ranked(1e9, 0)
    gains = {x.name: x.gain for x in exact.order}
    assert all(0.5 < x.gain / gains[x.name] < 1.5 for x in estimated.order)
    for share in (0.6, 0.2):
        lists = [ranked(exact.all_quantized.value * share, n) for n in (len(gains), 4)]
        kept = [{x.name for x in r.order[: r.count]} for r in lists]
        assert 0 < len(kept[0]) < len(gains) and kept[0] == kept[1]


def test_estimates_are_scaled_by_what_is_measured(path, monkeypatch):
    """Gradients that say three times too much change neither the list nor, but for what measuring shows, the gains."""

    def ranked():
        budget = Budget(0.01, finalists=6)
        return ranking(path, feeds(1), feeds(2), OPTIONS, budget, ROOFLINE, lambda _: None)

    plain = ranked()
    threefold = lambda *a, **k: {x: 3 * g for x, g in estimated_gains(*a, **k).items()}  # noqa: E731
    monkeypatch.setattr("blockforge.export.search.ranking.estimated_gains", threefold)
    again = ranked()
    assert 0 < plain.count < LINEARS and [x.name for x in again.order] == [
        x.name for x in plain.order
    ]
    assert [x.gain for x in again.order] == pytest.approx([x.gain for x in plain.order])


@pytest.mark.parametrize("bend", ["Floor", "whole"])
def test_a_graph_that_rounds_is_measured(tmp_path, bend):
    """Stairs have no slope, though the sum around them has: an estimate would leave out what they do."""
    path = chain(tmp_path / "model.onnx", bend="Tanh" if bend == "whole" else bend)
    if bend == "whole":  # a Cast to whole numbers and back, behind the first linears
        model = onnx.load(path)
        node = next(n for n in model.graph.node if n.output[0] == "bent9")
        node.output[0] = "smooth"
        at = list(model.graph.node).index(node) + 1
        model.graph.node.insert(at, helper.make_node("Cast", ["smooth"], ["int"], to=TensorProto.INT64))  # fmt: skip
        model.graph.node.insert(at + 1, helper.make_node("Cast", ["int"], ["bent9"], to=1))
        onnx.save(model, path)
    found = ranking(path, feeds(1), feeds(2), OPTIONS, Budget(0.0, finalists=2), ROOFLINE, lambda _: None)  # fmt: skip
    assert all(x.measured for x in found.order)


def test_a_graph_that_torch_cannot_differentiate_is_measured(path, monkeypatch):
    board = Switchboard(load_model(path), OPTIONS)
    board.calibrate(feeds(1), ir.DataType.FLOAT)
    reference = board.outputs(feeds(2), None)

    def refuses(*_, **__):
        raise RuntimeError("derivative for aten::something is not implemented")

    monkeypatch.setattr(torch.autograd, "grad", refuses)
    assert estimated_gains(board, feeds(2), reference, "kl", samples=1, seed=0) == {}
    budget = Budget(0.0, finalists=2)
    found = ranking(path, feeds(1), feeds(2), OPTIONS, budget, ROOFLINE, lambda _: None)
    assert all(x.measured for x in found.order) and found.count == len(found.order)
