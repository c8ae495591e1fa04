"""Every operator against ONNX's own node tests: all that we run, with each deliberate difference and its reason."""

import re
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.case.test_case import TestCase as Case

from blockforge.core.errors import UsageError
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.evaluator.sizes import COUNTS, elements
from blockforge.graph.type_names import DataType
from blockforge.graph.values import Narrow, Value, data_type_of, value_from_numpy

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning:onnx"
)  # how onnx makes its own numbers

# Cases that differ on purpose. The test fails for one that is listed and agrees.
DELIBERATE = {
    r"bernoulli.*": "random numbers: no two runtimes draw the same",
    r"training_dropout(_default)?(_mask)?": "random numbers: no two runtimes draw the same",
    r"cast(like)?_FLOAT(16)?_to_U?INT[24](_expanded)?": "floats beyond an integer's range, which ONNX leaves "
    "undefined: we saturate as CUDA does, the reference wraps",
    r"cast(like)?_FLOAT(16)?_to_FLOAT4E2M1(_expanded)?": "NaN to FP4, which has none: we give the largest number "
    "as CUDA does, the reference gives zero",
    r"resize_downsample_scales_(linear|cubic)_align_corners": "the reference stretches by the unrounded length; "
    "torch and the operator's text take the length of the result",
    r"scan_sum": "Scan 8 runs over batches; opset 9 dropped that and we refuse it",
}
# Operators we do not run, and why. The test fails when the list and the truth part.
UNKNOWN = {
    "strings": {
        "LabelEncoder",
        "RegexFullMatch",
        "StringConcat",
        "StringNormalizer",
        "StringSplit",
        "TfIdfVectorizer",
    },
    "file decoders": {"ImageDecoder"},
    "classical machine learning": {"ArrayFeatureExtractor", "Binarizer", "TreeEnsemble"},
    "optimiser steps": {"Adagrad", "Adam", "Momentum"},
    "preview": {"FlexAttention"},
}
_NUMPY = {
    np.dtype(d.numpy()): d for d in DataType if d not in (DataType.UNDEFINED, DataType.STRING)
}
# The reference rounds to 16 bits between the steps of a composite operator, where a fused kernel does not:
# two roundings apart at most.
_SIXTEEN_BITS = {DataType.FLOAT16: 2 * 2.0**-10, DataType.BFLOAT16: 2 * 2.0**-7}


class _StringsError(Exception):
    """The case needs string tensors, which no engine of ours has."""


def as_value(data) -> Value:
    if data is None:
        return None
    if isinstance(data, list | tuple):
        return [as_value(item) for item in data]
    array = np.asarray(numpy_helper.to_array(data) if isinstance(data, onnx.TensorProto) else data)
    if array.dtype.kind in "OUS":
        raise _StringsError
    return value_from_numpy(np.array(array, copy=True), _NUMPY[array.dtype])


def as_numbers(value: torch.Tensor | Narrow) -> np.ndarray:
    tensor = value.data if isinstance(value, Narrow) else value
    return tensor.numpy() if tensor.is_complex() else tensor.double().numpy()


def differences(actual: Value, expected: Value, rtol: float, atol: float) -> Iterator[str]:
    if expected is None or actual is None:
        if actual is not expected:
            yield f"{actual} for {expected}"
    elif isinstance(expected, list):
        assert isinstance(actual, list)
        assert len(actual) == len(expected)
        for mine, theirs in zip(actual, expected, strict=True):
            yield from differences(mine, theirs, rtol, atol)
    else:
        assert isinstance(actual, torch.Tensor)
        kind = data_type_of(expected)
        if isinstance(expected, torch.Tensor) and data_type_of(actual) != kind:
            yield f"type {data_type_of(actual)} for {kind}"
        mine, theirs = as_numbers(actual), as_numbers(expected)
        if mine.shape != theirs.shape:
            yield f"shape {mine.shape} for {theirs.shape}"
            return
        close = np.isclose(
            mine, theirs, rtol=max(rtol, _SIXTEEN_BITS.get(kind, 0)), atol=atol, equal_nan=True
        )
        if not close.all():
            yield f"{int((~close).sum())} of {close.size} numbers, {mine[~close][0]} for {theirs[~close][0]}"


def run_case(case: Case) -> list[str]:
    """What is wrong with our outputs; raises UsageError where we cannot run the case."""
    evaluator = TypedEvaluator(ir.from_proto(case.model))
    found = []
    for inputs, outputs in case.data_sets:
        feeds = {
            info.name: as_value(data)
            for info, data in zip(case.model.graph.input, inputs, strict=False)
        }
        results = evaluator.run(feeds).outputs
        for info, expected in zip(case.model.graph.output, outputs, strict=True):
            # 2e-7: what the reference itself loses in fp32 where a sum cancels to zero
            found += differences(
                results[info.name], as_value(expected), case.rtol, max(case.atol, 2e-7)
            )
    return found


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [case for case in collect_testcases(None) if case.model is not None]


@pytest.fixture(scope="module")
def outcomes(cases) -> dict[str, tuple[str, str]]:
    """Name of the case -> ("ok", ""), ("differs", how), ("error", what) or ("unknown", operator)."""
    found = {}
    for case in cases:
        name = case.name.removeprefix("test_")
        try:
            wrong = run_case(case)
            found[name] = ("differs", wrong[0]) if wrong else ("ok", "")
        except _StringsError:
            found[name] = ("strings", "")
        except UsageError as error:
            unknown = re.match(r"operator (\w+) of domain", error.asked)
            found[name] = ("unknown", unknown[1]) if unknown else ("error", str(error))
    return found


def deliberate(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in DELIBERATE)


def test_cases_agree_but_for_the_deliberate_differences(outcomes):
    wrong = {
        n: o for n, o in outcomes.items() if o[0] in ("differs", "error") and not deliberate(n)
    }
    assert wrong == {}
    assert sum(o[0] == "ok" for o in outcomes.values()) > 1700


def test_each_deliberate_difference_is_one(outcomes):
    for pattern in DELIBERATE:
        matching = [o[0] for n, o in outcomes.items() if re.fullmatch(pattern, n)]
        assert "differs" in matching or "error" in matching, pattern


def test_unknown_operators_are_the_listed_ones(outcomes):
    unknown = {o[1] for o in outcomes.values() if o[0] == "unknown"}
    assert unknown == set().union(*UNKNOWN.values())


def test_no_estimate_of_a_size_is_below_the_truth(cases):
    """The elements that the evaluator expects before it computes, for the operators that can make more than they are given."""
    checked = set()
    for case in cases:
        if len(case.model.graph.node) != 1 or case.model.functions or not case.data_sets:
            continue
        (node,) = case.model.graph.node
        if node.op_type not in COUNTS or node.domain:
            continue
        try:
            named = dict(
                zip(
                    (i.name for i in case.model.graph.input),
                    map(as_value, case.data_sets[0][0]),
                    strict=True,
                )
            )
        except _StringsError:
            continue
        attributes = {a.name: ir.from_proto(a) for a in node.attribute}
        found = elements(node.op_type, [named.get(name) for name in node.input], attributes)
        assert found >= max(np.size(output) for output in case.data_sets[0][1]), case.name
        checked.add(node.op_type)
    assert len(checked) > 25
