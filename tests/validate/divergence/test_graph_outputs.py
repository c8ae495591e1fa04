"""Outputs of small graphs through `blockforge diff`: one that a side lacks, or gives another shape, kind or numbers."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from .test_verdicts import run

RNG = np.random.default_rng(1)
WEIGHT = RNG.normal(size=(16, 16)).astype("f4")


def made(path: Path, nodes, outputs, weights=(), weight=WEIGHT) -> Path:
    """A graph that gives y = x w, and more."""
    info = helper.make_tensor_value_info
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    graph = helper.make_graph(
        [
            product,
            *(helper.make_node(*node[:3], name=node[0].lower(), **node[3]) for node in nodes),
        ],
        "g",
        [info("x", TensorProto.FLOAT, ["b", 16])],
        [info("y", TensorProto.FLOAT, ["b", 16]), *(info(*output) for output in outputs)],
        [
            numpy_helper.from_array(weight, "w"),
            *(numpy_helper.from_array(v, n) for n, v in weights),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ARGMAX = ([("ArgMax", ["y"], ["z"], {"axis": 1, "keepdims": 0})], [("z", I64, ["b"])])
GRAPHS = {
    "plain": ([], []),
    "argmax": ARGMAX,
    "argmax of int32": (
        [
            (*ARGMAX[0][0][:2], ["i"], ARGMAX[0][0][3]),
            ("Cast", ["i"], ["z"], {"to": TensorProto.INT32}),
        ],
        [("z", TensorProto.INT32, ["b"])],
    ),
    "argmin": ([("ArgMin", *ARGMAX[0][0][1:])], ARGMAX[1]),
    "renamed": ([("ArgMax", ["y"], ["ids"], ARGMAX[0][0][3])], [("ids", I64, ["b"])]),
    "copy": ([("Identity", ["y"], ["z"], {})], [("z", F32, ["b", 16])]),
    "transposed": ([("Transpose", ["y"], ["z"], {"perm": [1, 0]})], [("z", F32, [16, "b"])]),
    "greater": ([("Greater", ["y", "x"], ["z"], {})], [("z", BOOL, ["b", 16])]),
    "less": ([("Less", ["y", "x"], ["z"], {})], [("z", BOOL, ["b", 16])]),
    "nan": (
        [("Sub", ["x", "x"], ["n"], {}), ("Div", ["n", "n"], ["z"], {})],
        [("z", F32, ["b", 16])],
    ),
    "constant": ([], [("c", F32, [2])], [("c", np.float32([1, 2]))]),
    "other constant": ([], [("c", F32, [2])], [("c", np.float32([1, 3]))]),
}
PAIRS = {
    ("plain", "argmax"): "z: extra output",
    ("argmax", "plain"): "z: missing output",
    ("transposed", "copy"): "z: shape",
    ("copy", "transposed"): "z: shape",
    ("argmax", "copy"): "z: dtype",
    ("argmax", "argmax of int32"): "z: dtype",
    ("argmax", "argmin"): "z: integers",
    ("greater", "less"): "z: integers",
    ("nan", "nan"): "z: truth not finite",
    ("constant", "other constant"): "c: unmapped output",
    ("constant", "constant"): None,
    ("argmax", "argmax"): None,
    ("argmax", "renamed"): None,
    ("greater", "greater"): None,
}


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    return {
        name: made(folder / f"{name.replace(' ', '_')}.onnx", *parts)
        for name, parts in GRAPHS.items()
    }


@pytest.mark.parametrize("pair", PAIRS, ids=" - ".join)
def test_verdicts_on_graphs(graphs, fits_schema, pair):
    done = run(*(graphs[name] for name in pair), "--json")
    expected = PAIRS[pair]
    assert done.exit_code == (0 if expected is None else 1), done.output
    body = json.loads(done.stdout)
    fits_schema("diff", body)
    findings = [f"{f['output']}: {f['rule']}" for f in body["findings"]]
    assert findings == ([] if expected is None else [expected])


def test_saved_outputs_of_a_graph(graphs, tmp_path):
    """Every array must be a value of the graph, every output be saved; inputs may lie beside them."""
    x = RNG.normal(size=(3, 16)).astype("f4")
    y = x @ WEIGHT
    right = {"x": x, "y": y, "z": y.argmax(1)}
    changes = {
        "right": ({}, None),
        "extra": ({"q": y}, "q: extra output"),
        "shape": ({"z": right["z"][:2]}, "z: shape"),
        "type": ({"z": right["z"].astype("f4")}, "z: dtype"),
        "numbers": ({"z": right["z"] + 1}, "z: integers"),
        "missing": ({"z": None}, "z: missing output"),
    }
    for change, finding in changes.values():
        values = {n: v for n, v in (right | change).items() if v is not None}
        np.savez(tmp_path / "run.npz", **values)
        for words in (
            (graphs["argmax"], tmp_path / "run.npz"),
            (tmp_path / "run.npz", graphs["argmax"]),
        ):
            done = run(*words, "--json")
            assert done.exit_code == (0 if finding is None else 1), (finding, done.output)
            rules = [f"{f['output']}: {f['rule']}" for f in json.loads(done.stdout)["findings"]]
            wanted = [] if finding is None else [finding]
            if (
                words[0] != graphs["argmax"]
            ):  # what the file has over is then missing, and the other way round
                swap = {
                    "q: extra output": "q: missing output",
                    "z: missing output": "z: extra output",
                }
                wanted = [swap.get(rule, rule) for rule in wanted]
            assert rules == wanted


def test_ids_that_rounding_before_them_flips_are_a_note(tmp_path):
    """Of two columns that tie within rounding the saved run preferred the other: its ArgMax is right for its y."""
    weight = WEIGHT.copy()
    weight[:, 5] = weight[:, 9] * np.float32(1 + 2**-22)
    x = np.float32(weight[:, 9:10].T)  # so that these two are the largest
    y = x @ weight
    path = made(tmp_path / "tie.onnx", *ARGMAX, weight=weight)
    y[0, [5, 9]] = y[0, [9, 5]]
    z = y.argmax(1)
    assert z == [9]
    np.savez(tmp_path / "run.npz", x=x, y=y, z=z)
    done = run(path, tmp_path / "run.npz", "--json")
    body = json.loads(done.stdout)
    assert done.exit_code == 0 and body["findings"] == [], body
    assert any(note.startswith("z: integers: 1 of 1 differ") for note in body["notes"])
    np.savez(tmp_path / "run.npz", x=x, y=y, z=z - 1)
    assert run(path, tmp_path / "run.npz").exit_code == 1
