"""Truth and floor: equal to running the module by hand, computed once, one module in memory at a time."""

import gc
import math
import weakref

import numpy as np
import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.validate.reference import compute_truth


def test_truth_is_the_float64_module(tiny):
    truth = tiny.truth()
    module = tiny.load(torch.float64)
    assert [c.name for c in truth.cases] == [
        "text tokens 0-39", "text tokens 40-79", "seeded odd", "seeded smallest",
    ]  # fmt: skip
    for case in truth.cases:
        expected = module(case.feeds["input_ids"])
        assert expected.dtype == torch.float64
        assert torch.equal(truth.results[case.name]["logits"], expected)
    x = module.embed(truth.cases[0].feeds["input_ids"])
    for name, layer in zip(("layers.0", "layers.1", "layers.2"), module.layers, strict=True):
        x = layer(x)
        assert torch.equal(truth.layers[name], x)
    assert list(truth.layers) == ["layers.0", "layers.1", "layers.2"]


def test_reference_perplexity_equals_numpy(tiny):
    truth = tiny.truth()
    nll = []
    for case in truth.cases[:2]:
        logits = truth.results[case.name]["logits"][0].numpy()
        ids = case.feeds["input_ids"][0].numpy()
        for row, target in zip(logits[:-1], ids[1:], strict=True):
            nll.append(np.log(np.exp(row).sum()) - row[target])
    assert truth.perplexity == pytest.approx(math.exp(np.mean(nll)), rel=1e-12)


def test_floor_is_what_the_module_loses_in_that_dtype(tiny):
    truth = tiny.truth()
    floor = truth.floor(DType.FP16, DType.FP16)
    module = tiny.load(torch.float16)
    for case in truth.cases:
        got = module(case.feeds["input_ids"]).detach().numpy().astype(np.float64)
        error = np.abs(got - truth.results[case.name]["logits"].numpy())
        spread = floor.spreads[case.name]["logits"]
        assert spread.rms == pytest.approx(np.sqrt((error**2).mean()), rel=1e-12)
        assert spread.max_abs == error.max()
    # one rounding to fp16 is 2^-11 relative at most; a few layers of them stay within some tens
    assert 2**-13 < floor.layers["layers.0"] < floor.layers["layers.2"] < 2**-6
    assert floor.language.perplexity == pytest.approx(truth.perplexity, rel=1e-2)


def test_floors_are_ordered_and_outputs_rounded_to_the_io_type(tiny):
    truth = tiny.truth()
    rms = {
        (precision, io): truth.floor(precision, io).pooled("logits").rms
        for precision in (DType.FP32, DType.FP16, DType.BF16)
        for io in (DType.FP32, DType.FP16)
    }
    assert rms[DType.FP32, DType.FP32] < rms[DType.FP32, DType.FP16] / 50
    assert rms[DType.FP32, DType.FP16] < rms[DType.FP16, DType.FP16] < rms[DType.BF16, DType.FP32]


def test_modules_are_loaded_once_per_dtype_and_one_at_a_time(tiny):
    loaded, alive = [], []

    def load(dtype):
        gc.collect()
        assert not [ref for ref in alive if ref() is not None], "two modules in memory"
        module = tiny.load(dtype)
        loaded.append(dtype)
        alive.append(weakref.ref(module))
        return module

    truth = tiny.truth(load=load)
    for _ in range(2):
        truth.floor(DType.FP16, DType.FP32)
        truth.floor(DType.FP32, DType.FP32)
    assert loaded == [torch.float64, torch.float16, torch.float32]


def test_a_broken_reference_is_no_truth(tiny):
    broken = tiny.model(tiny.fault(nan_token=int(tiny.cases[0].feeds["input_ids"][0, 0])))
    with pytest.raises(UsageError, match="not finite"):
        tiny.truth(load=lambda dtype: broken.to(dtype))
    with pytest.raises(UsageError, match="no inputs"):
        compute_truth(tiny.load, tiny.outputs, ())


def test_progress_names_each_case(tiny):
    steps = []
    compute_truth(tiny.load, tiny.outputs, tiny.cases, progress=steps.append)
    assert [(s.stage, s.done, s.total) for s in steps] == [("validate", i, 4) for i in range(5)]
    assert "truth: text tokens 0-39" in steps[0].detail
