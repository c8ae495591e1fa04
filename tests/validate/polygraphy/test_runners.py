"""Our runners in Polygraphy's Comparator, and Polygraphy's in ours, on the graphs of a tiny bundle."""

import ml_dtypes
import numpy as np
import pytest
import torch
from polygraphy.backend.onnxrt import OnnxrtRunner, SessionFromOnnx
from polygraphy.comparator import Comparator, SimpleCompareFunc
from polygraphy.exception import PolygraphyException

from blockforge.core.dtypes import DType
from blockforge.core.errors import ArtefactError, UnavailableError, UsageError
from blockforge.core.manifest import TensorRecord
from blockforge.validate.judge import Variant, Way, judge_variant
from blockforge.validate.polygraphy.runners import (
    BlockforgeRunner,
    FromPolygraphy,
    bundle_runner,
    module_runner,
    onnxruntime_runner,
    plan_runner,
    reference_runner,
    typed_runner,
)
from blockforge.validate.runners import ModuleRunner, numpy_from_tensor, tensor_from_numpy

from .conftest import LIMITS


@pytest.fixture(scope="module")
def model(decoder):
    bundle, _, _ = decoder
    return bundle.file("fp32/model.onnx")


def test_all_ways_agree_in_the_comparator(decoder, model):
    """float64 module, float32 module, typed evaluator (both), onnx.reference, ONNX Runtime, Polygraphy's own."""
    bundle, truth, _ = decoder
    variant = bundle.manifest.variant("fp32")
    cases = [{n: v.numpy() for n, v in case.feeds.items()} for case in truth.cases]
    runners = [
        module_runner(truth.load, variant.inputs, ["logits"]),
        module_runner(truth.load, variant.inputs, ["logits"], torch.float32, name="float32"),
        typed_runner(model, name="typed"),
        typed_runner(model, exact=True, name="exact"),
        reference_runner(model, name="reference"),
        onnxruntime_runner(model, name="ours"),
        bundle_runner(bundle, "onnxruntime:cpu", precision="fp32", name="session"),
        OnnxrtRunner(SessionFromOnnx(str(model)), name="theirs"),
    ]
    results = Comparator.run(runners, data_loader=cases)
    assert len(results) == len(runners)
    accuracy = Comparator.compare_accuracy(
        results, compare_func=SimpleCompareFunc(atol=1e-5, rtol=0)
    )
    assert accuracy
    exact = dict(results.items())["exact"]
    for case, outputs in zip(truth.cases, exact, strict=True):
        difference = np.abs(outputs["logits"] - truth.results[case.name]["logits"].numpy())
        # the graph's weights are float32; its arithmetic is float64
        assert difference.max() < 1e-6
    assert all(r.last_inference_time is not None and not r.is_active for r in runners)
    typed = dict(results.items())["typed"][0]
    assert typed.runtime > 0 and typed["logits"].dtype == np.float32


def test_protocol(model):
    runner = typed_runner(model)
    assert isinstance(runner, BlockforgeRunner) and runner.name.startswith("typed-evaluator-N")
    with pytest.raises(PolygraphyException):
        runner.infer({})
    with runner:
        metadata = runner.get_input_metadata(use_numpy_dtypes=False)
        assert list(metadata) == ["input_ids"]
        assert str(metadata["input_ids"].dtype) == "int64"
        assert tuple(metadata["input_ids"].shape) == (None, None)
        ids = torch.tensor([[1, 2, 3]])
        out = runner.infer({"input_ids": ids})
        assert isinstance(out["logits"], torch.Tensor) and out["logits"].shape == (1, 3, 256)
        again = runner.infer({"input_ids": ids.numpy()})
        assert np.array_equal(again["logits"], out["logits"].numpy())
        with pytest.raises(PolygraphyException):
            runner.infer({"input_ids": ids.float()})
    with runner:  # a second life
        assert runner.infer({"input_ids": ids})["logits"].equal(out["logits"])


def test_bf16_goes_through_as_torch_tensors(block):
    bundle, truth, _ = block
    feeds = {n: v.to(torch.bfloat16) for n, v in truth.cases[0].feeds.items()}
    with bundle_runner(bundle, "typed-evaluator", precision="bf16") as runner:
        (name,) = [record.name for record in bundle.manifest.variant("bf16").outputs]
        out = runner.infer(feeds)[name]
    assert out.dtype == torch.bfloat16
    expected = truth.results[truth.cases[0].name][name]
    assert (out.double() - expected).abs().max() < 0.1 * expected.abs().max()


def test_a_polygraphy_runner_in_our_verdict(decoder, model):
    bundle, truth, _ = decoder
    record = bundle.manifest.variant("fp32")
    variant = Variant(DType.FP32, model, record.inputs, record.outputs)
    theirs = lambda: FromPolygraphy(OnnxrtRunner(SessionFromOnnx(str(model)), name="theirs"))  # noqa: E731
    (verdict,) = judge_variant(truth, variant, LIMITS, ways=[Way("polygraphy", theirs)])
    assert verdict.passed and verdict.runner == "polygraphy" and verdict.outputs
    with pytest.raises(UsageError, match="no BaseRunner"):
        FromPolygraphy(object())


def test_outputs_are_copies_of_reused_buffers(model):
    class Reuses(BlockforgeRunner):
        def infer_impl(self, feed_dict):
            self.buffer = getattr(self, "buffer", np.zeros(1, "f4"))
            self.buffer += 1
            self.inference_time = 0.0
            return {"y": self.buffer}

    with typed_runner(model) as real:
        metadata_records = real._records
    runner = FromPolygraphy(
        Reuses(lambda: ModuleRunner(lambda _: torch.nn.Identity(), (), ()), metadata_records)
    )
    feeds = {"input_ids": torch.ones(1, 1, dtype=torch.int64)}
    first = runner.run(feeds, ()).outputs["y"]
    runner.run(feeds, ())
    runner.close()
    assert first.item() == 1


def test_what_is_missing_here_is_one_error(tmp_path, decoder, model):
    bundle, _, _ = decoder
    plan = tmp_path / "x.plan"
    plan.write_bytes(b"plan")
    inputs = bundle.manifest.variants[0].inputs
    cases = (
        (plan_runner(plan, "tensorrt-rtx", inputs), UnavailableError, "GPU"),
        (plan_runner(tmp_path / "no.plan", "tensorrt-rtx", inputs), UsageError, "no such file"),
        (onnxruntime_runner(model, "NoProvider"), UnavailableError, "CPUExecutionProvider"),
        (bundle_runner(bundle, "tensorrt-rtx:sm89"), ArtefactError, "the bundle has none"),
        (bundle_runner(bundle, "tensorrt-rtx:sm9"), UsageError, "sm9"),
    )
    for runner, kind, words in cases:
        if kind is UnavailableError and torch.cuda.is_available():
            continue
        with pytest.raises(kind, match=words), runner:
            pass
        assert not runner.is_active
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(ArtefactError):
        typed_runner(broken)


def test_a_module_with_other_outputs_is_refused():
    inputs = (TensorRecord(name="x", dtype="fp32", dims=(1,)),)
    runner = ModuleRunner(lambda _: torch.nn.Identity(), inputs, ("one", "two"))
    with pytest.raises(UsageError, match="1 outputs, one, two were named"):
        runner.run({"x": torch.ones(1)}, ())


@pytest.mark.parametrize(
    "dtype", ["float32", "int64", "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_conversion_keeps_shape_and_bits(dtype, shape):
    array = np.zeros(shape, getattr(ml_dtypes, dtype, dtype))
    tensor = tensor_from_numpy(array)
    assert tuple(tensor.shape) == shape and str(tensor.dtype) == f"torch.{dtype}"
    back = numpy_from_tensor(tensor)
    assert back.shape == shape and back.dtype == array.dtype
