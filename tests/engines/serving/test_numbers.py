"""Token ids that no vocabulary has: one clear error of the caller's, whether or not the manifest knows the range."""

import json

import numpy as np
import pytest
from engine_graphs import model_of, write
from onnx import TensorProto, helper
from serving_bundles import make_bundle, tensor
from test_endpoints import INFER, Counts, ask
from typer.testing import CliRunner

from blockforge.cli import app
from blockforge.core.dtypes import DType
from blockforge.core.errors import BuildError, UsageError
from blockforge.engines.feeds import check_numbers
from blockforge.engines.serving.served_model import ServedModel, ServeOptions
from blockforge.engines.session import Session
from blockforge.engines.views import View

ROWS = 10
TABLE = np.arange(ROWS * 4, dtype=np.float32).reshape(ROWS, 4)
IDS, OUT = (TensorProto.INT64, ["batch", "sequence"]), ("fp32", ["batch", "sequence", 4])


def embedding():
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"], name="embed")]
    return model_of(nodes, {"ids": IDS}, {"rows": OUT}, {"table": TABLE})


@pytest.fixture(scope="module", params=[ROWS, None], ids=["known", "unknown"])
def embedded(request, tmp_path_factory):
    """A bundle whose manifest knows how many rows the table has, or does not."""
    ids = tensor("ids", ("batch", "sequence"), "int64").model_copy(update={"below": request.param})
    return make_bundle(
        tmp_path_factory.mktemp("embedded") / "b", model=embedding(), golden=False, inputs=(ids,),
        profile={"ids": ((1, 1), (2, 4), (8, 16))},
    )  # fmt: skip


def words_of(bundle):
    known = bundle.manifest.variants[0].inputs[0].below is not None
    return (
        r"'ids': {} at \[1, 2\]\. Give whole numbers from 0 to 9"
        if known
        else r"no index of the model's table \(onnxruntime .*idx={} .*vocabulary"
    )


@pytest.mark.parametrize("wrong", [ROWS, 2**40, -ROWS - 1])
def test_a_session_refuses_it(embedded, wrong):
    ids = np.zeros((2, 4), np.int64)
    ids[1, 2] = wrong
    with Session(embedded) as session:
        with pytest.raises(UsageError, match=words_of(embedded).format(wrong)) as refused:
            session.run({"ids": ids})
        assert refused.value.exit_code == 2
        ids[1, 2], ids[0, 0] = ROWS - 1, 0
        np.testing.assert_array_equal(session.run({"ids": ids})["rows"], TABLE[ids])
        assert session.run({"ids": ids[:1, :1]})["rows"].shape == (1, 1, 4)


def body(*ids):
    entry = {"name": "ids", "datatype": "INT64", "shape": [1, len(ids)], "data": list(ids)}
    return json.dumps({"inputs": [entry]}).encode()


def test_over_http_it_is_the_clients_fault_and_nobody_elses(embedded):
    watch = Counts()
    model = ServedModel(embedded.path, ServeOptions(wait_ms=100), watch)
    answers = ask(model, *(("POST", INFER, body(*ids)) for ids in ((1, 2), (3, 50), (9, 0))))
    assert [a.status for a in answers] == [200, 400, 200]
    assert sorted(watch.statuses) == [200, 200, 400]
    error = json.loads(answers[1].body)["error"]
    assert "50" in error and ("from 0 to 9" in error or "vocabulary" in error)
    (first,) = json.loads(answers[0].body)["outputs"]
    np.testing.assert_array_equal(np.reshape(first["data"], first["shape"]), TABLE[[[1, 2]]])


def test_the_command_ends_with_exit_code_2(embedded, tmp_path):
    np.savez(tmp_path / "in.npz", ids=np.array([[1, 50]]))
    done = CliRunner().invoke(app, ["run", str(embedded.path), "--inputs", str(tmp_path / "in.npz")])  # fmt: skip
    assert isinstance(done.exception, UsageError) and done.exception.exit_code == 2
    assert "50" in str(done.exception)


@pytest.mark.parametrize(
    ("operator", "shape", "attributes"),
    [("GatherElements", ["batch", "sequence"], {"axis": 0}), ("GatherND", ["batch"], {})],
)
def test_every_look_up_of_onnx_runtime(tmp_path, operator, shape, attributes):
    node = helper.make_node(operator, ["table", "ids"], ["rows"], name="look", **attributes)
    model = model_of([node], {"ids": IDS}, {"rows": ("fp32", shape)}, {"table": TABLE[:, :2]})
    with Session(write(model, tmp_path)) as session:
        session.run({"ids": np.array([[9, 1]])})
        with pytest.raises(UsageError, match="no index of the model's table"):
            session.run({"ids": np.array([[10, 1]])})


def test_another_failure_of_the_runtime_is_none_of_the_callers(tmp_path):
    node = helper.make_node("Reshape", ["x", "to"], ["y"], name="shape")
    model = model_of(
        [node], {"x": ("fp32", ["batch", 4])}, {"y": ("fp32", [3, "n"])},
        {"to": np.array([3, -1])},
    )  # fmt: skip
    with Session(write(model, tmp_path)) as session:
        session.run({"x": np.zeros((3, 4), np.float32)})
        with pytest.raises(BuildError, match="Reshape"):
            session.run({"x": np.zeros((2, 4), np.float32)})


def test_what_lies_on_a_gpu_is_not_read():
    record = tensor("ids", ("batch",), "int64").model_copy(update={"below": 4})
    check_numbers({"ids": View(4096, (2,), DType.INT64)}, [record])
    check_numbers({"ids": View(0, (0,), DType.INT64, np.zeros(0, np.int64))}, [record])
    with pytest.raises(UsageError, match=r"4 at \[1\]"):
        check_numbers({"ids": View(0, (2,), DType.INT64, np.array([3, 4]))}, [record])
