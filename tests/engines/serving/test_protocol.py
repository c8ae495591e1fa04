"""The KServe v2 bodies: written and read by Triton's own client, and whatever does not fit is refused."""

import json

import ml_dtypes
import numpy as np
import pytest
from serving_bundles import tensor

from blockforge.core.errors import UsageError
from blockforge.engines.serving.protocol import HEADER_LENGTH, read_request, write_answer

client = pytest.importorskip("tritonclient.http", reason="needs blockforge[triton]")
ARRAYS = {
    "FP64": np.array([[1.5, -2.25]], np.float64),
    "FP32": np.array([[1.5, np.pi]], np.float32),
    "FP16": np.array([[65504, -0.1]], np.float16),
    "BF16": np.array([[3e38, -0.1]], ml_dtypes.bfloat16),
    "INT64": np.array([[2**62, -(2**63)]], np.int64),
    "INT32": np.array([[1, -(2**31)]], np.int32),
    "INT8": np.array([[127, -128]], np.int8),
    "UINT8": np.array([[0, 255]], np.uint8),
    "BOOL": np.array([[True, False]]),
}
OURS = {"FP64": "fp64", "FP32": "fp32", "FP16": "fp16", "BF16": "bf16", "INT64": "int64", "INT32": "int32", "INT8": "int8", "UINT8": "uint8", "BOOL": "bool"}  # fmt: skip


def asked_by_the_client(name, array, *, binary, outputs=None):
    given = client.InferInput("x", list(array.shape), name)
    given.set_data_from_numpy(array, binary_data=binary)
    body, length = client.InferenceServerClient.generate_request_body([given], outputs=outputs)
    return body, None if length is None else str(length)


BINARY_ONLY = ("FP16", "BF16")  # the client sends 16-bit floats in no other way


@pytest.mark.parametrize(
    ("name", "binary"),
    [
        (name, binary)
        for name in ARRAYS
        for binary in (True, False)
        if binary or name not in BINARY_ONLY
    ],
)
def test_the_clients_requests_are_read_and_it_reads_the_answers(name, binary):
    array = ARRAYS[name]
    wanted = [client.InferRequestedOutput("y", binary_data=binary)]
    request = read_request(*asked_by_the_client(name, array, binary=binary, outputs=wanted))
    np.testing.assert_array_equal(request.feeds["x"], array)
    assert request.feeds["x"].dtype == array.dtype and request.wanted == {"y": binary}
    record = tensor("y", ("batch", 2), OURS[name])
    answer = write_answer(request, "m", "1", [record], {"y": request.feeds["x"]})
    length = answer.headers.get(HEADER_LENGTH)
    assert (answer.status, length is None) == (200, not binary)
    result = client.InferenceServerClient.parse_response_body(
        answer.body, header_length=None if length is None else int(length)
    )
    np.testing.assert_array_equal(result.as_numpy("y"), array)
    assert result.as_numpy("y").shape == array.shape


def test_without_named_outputs_the_client_wants_all_as_binary():
    request = read_request(*asked_by_the_client("FP32", ARRAYS["FP32"], binary=True))
    records = [tensor("y", (1, 2)), tensor("z", (2,), "int32")]
    outputs = {"z": np.array([7, 8], np.int32), "y": ARRAYS["FP32"]}
    answer = write_answer(request, "m", "1", records, outputs)
    result = client.InferenceServerClient.parse_response_body(
        answer.body, header_length=int(answer.headers[HEADER_LENGTH])
    )
    np.testing.assert_array_equal(result.as_numpy("y"), outputs["y"])
    np.testing.assert_array_equal(result.as_numpy("z"), outputs["z"])


def body(**changes):
    entry = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5]} | changes
    return json.dumps(
        {"id": "7", "inputs": [{k: v for k, v in entry.items() if v is not ...}]}
    ).encode()


@pytest.mark.parametrize("data", [[1, 2.5], [[1, 2.5]]])
def test_flat_and_nested_data_are_one(data):
    request = read_request(body(data=data), None)
    np.testing.assert_array_equal(request.feeds["x"], np.array([[1, 2.5]], np.float32))
    assert request.id == "7"
    answer = json.loads(
        write_answer(request, "m", "1", [tensor("y", (1, 2))], {"y": request.feeds["x"]}).body
    )
    assert answer == {
        "model_name": "m",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, 2.5]}],
    }


# what is wrong -> (the body, the header, words of the message)
WRONG = {
    "no JSON": (b"{", None, "no JSON"),
    "deep": (b"[" * 100_000, None, "no JSON"),
    "a list": (b"[]", None, "no list of inputs"),
    "no name": (body(name=...), None, "without a name"),
    "no shape": (body(shape=...), None, "shape None"),
    "a negative size": (body(shape=[-1, 2]), None, r"shape \[-1, 2\]"),
    "a true size": (body(shape=[True, 2]), None, "shape"),
    "unknown type": (body(datatype="FP8"), None, "FP8.*Known: FP64"),
    "text": (body(datatype="BYTES", data=["a", "b"]), None, "BYTES"),
    "too few": (body(data=[1]), None, "1 numbers.*asks for 2"),
    "ragged": (body(data=[[1], [2, 3]]), None, "asks for 2"),
    "no data": (body(data=...), None, "asks for 2"),
    "fractions": (body(datatype="INT64"), None, "whole numbers"),
    "booleans as numbers": (body(datatype="FP32", data=[True, False]), None, "a boolean in the data"),
    "numbers as booleans": (body(datatype="BOOL", data=[1, 0]), None, "true and false"),
    "beyond int8": (body(datatype="INT8", data=[1, 128]), None, "beyond int8"),
    "below uint8": (body(datatype="UINT8", data=[1, -1]), None, "beyond uint8"),
    "beyond int64": (body(datatype="INT64", data=[2**63, 2**63]), None, "beyond int64"),
    "beyond everything": (body(datatype="INT64", data=[1, 2**80]), None, "beyond int64"),
    "beyond every float": (body(data=[1, 2**5000]), None, "beyond fp32"),
    "a boolean among numbers": (body(datatype="INT64", data=[1, True]), None, "a boolean.*whole numbers"),
    "a boolean among fractions": (body(data=[[1.5, True]]), None, "a boolean.*Give numbers"),
    "nothing": (body(data=[1, None]), None, "null in the data"),
    "beyond fp16": (body(datatype="FP16", data=[1, 65520]), None, "beyond fp16"),
    "twice": (json.dumps({"inputs": [json.loads(body())["inputs"][0]] * 2}).encode(), None, "twice"),
    "a header too long": (body(), "9999", "the body has"),
    "a header of words": (body(), "many", "the body has"),
    "binary cut short": (body(data=..., parameters={"binary_data_size": 8}), None, "8 bytes of 0 left"),
    "shared memory": (body(parameters={"shared_memory_region": "r"}), None, "shared_memory_region"),
    "parameters": (body(parameters=[1]), None, "parameters"),
    "a size of words": (body(data=..., parameters={"binary_data_size": "8"}), None, "8 bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "header", "words"), WRONG.values(), ids=WRONG)
def test_what_does_not_fit_is_refused(text, header, words):
    with pytest.raises(UsageError, match=words):
        read_request(text, header)


def test_the_largest_numbers_are_kept():
    for datatype, data in (
        ("INT64", [2**63 - 1, -(2**63)]),
        ("FP16", [65504, -65504]),
        ("INT8", [127, -128]),
    ):
        request = read_request(body(datatype=datatype, data=data), None)
        assert request.feeds["x"].tolist() == [data]


def test_binary_sizes_must_be_exact():
    head = body(data=..., parameters={"binary_data_size": 8})
    good = read_request(head + np.array([1, 2.5], "<f4").tobytes(), str(len(head)))
    assert good.feeds["x"].tolist() == [[1, 2.5]]
    for tail, words in (
        (b"\x00" * 7, "8 bytes of 7 left"),
        (b"\x00" * 9, "1 bytes that no input names"),
    ):
        with pytest.raises(UsageError, match=words):
            read_request(head + tail, str(len(head)))
    wrong = body(data=..., parameters={"binary_data_size": 4})
    with pytest.raises(UsageError, match="takes 8"):
        read_request(wrong + b"\x00" * 4, str(len(wrong)))
    truth = body(datatype="BOOL", data=..., parameters={"binary_data_size": 2})
    with pytest.raises(UsageError, match="neither 0 nor 1"):
        read_request(truth + b"\x01\x02", str(len(truth)))


def test_outputs_that_cannot_be_written_are_refused():
    record = tensor("y", (1, 2))
    request = read_request(body(), None)
    with pytest.raises(UsageError, match=r"NaN or infinities.*binary"):
        write_answer(request, "m", "1", [record], {"y": np.array([[1, np.nan]], np.float32)})
    asked = json.loads(body()) | {"outputs": [{"name": "z"}]}
    with pytest.raises(UsageError, match=r"no such output.*outputs are y"):
        write_answer(read_request(json.dumps(asked).encode(), None), "m", "1", [record], {})
