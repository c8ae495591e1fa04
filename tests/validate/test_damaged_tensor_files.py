"""Damaged and hostile tensor files: one error each, and nothing in them runs."""

import base64
import io
import json
import pickle
import zipfile
from collections import OrderedDict

import ml_dtypes
import numpy as np
import pytest
import torch

from blockforge.core.errors import ArtefactError
from blockforge.validate.tensor_files import load_tensors


def npy(array, **kwargs):
    stream = io.BytesIO()
    np.save(stream, array, **kwargs)
    return stream.getvalue()


def zipped(*members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()


def safetensors(header, data=bytes(8)):
    text = header.encode()
    return len(text).to_bytes(8, "little") + text + data


def json_array(data, key="array", kind="ndarray"):
    entry = {key: base64.b64encode(data).decode(), "polygraphy_class": kind}
    return json.dumps([{"x": entry}]).encode()


class Evil:
    def __reduce__(self):
        return (print, ("ran",))


ONE = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
TWO = '"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}'
WHOLE = safetensors("{" + ONE + "," + TWO + "}")
OBJECTS = npy(np.array([Evil()], object), allow_pickle=True)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.npz", b"", "cannot be read as an .npz"),
        ("x.npz", zipped(("x.npy", npy(np.ones(9))))[:-30], "cannot be read as an .npz"),
        ("x.npz", zipped(), "set 0 is empty"),
        ("x.npz", zipped(("x.npy", npy(np.ones(9))[:-8])), "64 bytes, but float64 of shape"),
        ("x.npz", zipped(("x.npy", npy(np.ones(9)) + b"!")), "73 bytes, but float64 of shape"),
        ("x.npz", zipped(("x.npy", b"no array")), "no .npy header"),
        ("x.npz", zipped(("x.npy", b"\x93NUMPY\x09\0" + bytes(99))), "version that is not known"),
        ("x.npz", zipped(("readme.txt", b"")), "'readme.txt' in it is no array"),
        ("x.npz", zipped(("x.npy", OBJECTS)), "Python objects"),
        ("x.npz", zipped(("x.npy", npy(np.array(["text"])))), "elements of type <U4"),
        ("x.npz", zipped(("x.npy", npy(np.ones(2, complex)))), "elements of type complex128"),
        ("x.npz", zipped(("x.npy", npy(np.ones(2, ml_dtypes.bfloat16)))), "raw bytes"),
        ("x.npz", zipped((".npy", npy(np.ones(1)))), "without a name"),
        ("x.safetensors", b"", "0 bytes hold no whole header"),
        ("x.safetensors", WHOLE[:40], "no whole header"),
        ("x.safetensors", WHOLE[:-1], "'b' ends after the file does"),
        ("x.safetensors", WHOLE + b"!", "bytes after the last tensor"),
        ("x.safetensors", safetensors("{" + ONE + "," + ONE + "}"), "two entries named 'a'"),
        ("x.safetensors", safetensors("{" + TWO + "}"), "a gap"),
        ("x.safetensors", safetensors("{" + ONE.replace("[1]", "[2]") + "}"), "another size"),
        ("x.safetensors", safetensors("{" + ONE.replace("[1]", "[-1]") + "}"), "no whole numbers"),
        ("x.safetensors", safetensors("{" + ONE.replace("F32", "F4") + "}"), "'a' has type F4"),
        ("x.safetensors", safetensors("[]"), "no JSON object"),
        ("x.safetensors", safetensors("{", b""), "header cannot be read"),
        ("x.safetensors", safetensors("{}", b""), "set 0 is empty"),
        ("x.json", b"", "no whole JSON file"),
        ("x.json", json_array(npy(np.ones(9)))[:-9], "no whole JSON file"),
        ("x.json", b"[" * 100_000, "no whole JSON file"),
        ("x.json", b"[]", "no set of tensors"),
        ("x.json", b"[{}]", "set 0 is empty"),
        ("x.json", b'{"x": 1, "x": 2}', "two entries named 'x'"),
        ("x.json", b'[{"x": [1, 2]}]', "'x', set 0 in .*: list, not an array"),
        ("x.json", b"[1]", "no object of tensors"),
        ("x.json", json_array(npy(np.ones(9))[:-8]), "64 bytes, but float64"),
        ("x.json", json_array(OBJECTS), "Python objects"),
        ("x.json", json_array(b"", "tensor", "Tensor"), "no tensor that torch.save wrote"),
        ("x.json", b'[{"x": {"array": "?", "polygraphy_class": "ndarray"}}]', "no base64"),
        ("x.json", b'[{"x": {"polygraphy_class": "ndarray"}}]', "no base64"),
        ("x.json", b'{"lst": [], "polygraphy_class": "RunResults"}', "no list of runners"),
        ("x.json", b'{"lst": 1, "polygraphy_class": "RunResults"}', "no list where one belongs"),
        ("x.json", b'{"lst": [["r", []]], "polygraphy_class": "RunResults"}', "no iteration"),
        ("x.json", b'{"lst": [["r", [1]]], "polygraphy_class": "RunResults"}', "IterationResult"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_damaged_files(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ArtefactError, match=message):
        load_tensors(tmp_path / name)


def test_two_members_of_one_name(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = zipped(("x.npy", npy(np.ones(1))), ("x.npy", npy(np.zeros(1))))
    (tmp_path / "x.npz").write_bytes(data)
    with pytest.raises(ArtefactError, match="two entries named 'x'"):
        load_tensors(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (pickle.dumps(Evil(), 2), "calls __builtin__ print"),
        (pickle.dumps(OrderedDict(a=1), 2), "uses opcode"),
        (b"cos\nsystem\n(S'true'\ntR.", "uses opcode STRING"),
        (b".", "IndexError"),
    ],
    ids=["call", "dictionary", "system", "nothing"],
)
def test_no_pickle_runs(tmp_path, capsys, program, message):
    data = json_array(zipped(("archive/data.pkl", program)), "tensor", "Tensor")
    (tmp_path / "x.json").write_bytes(data)
    with pytest.raises(ArtefactError, match=message):
        load_tensors(tmp_path / "x.json")
    assert "ran" not in capsys.readouterr().out


def test_torch_views_stay_inside(tmp_path):
    """A view that would read past its storage is refused; torch's own archive with 9 rows made of 3."""
    stream = io.BytesIO()
    torch.save(torch.zeros(3, 1), stream)
    with zipfile.ZipFile(stream) as archive:
        program = archive.read("archive/data.pkl")
    assert program.count(b"K\x03K\x01\x86") == 1  # the shape
    wide = program.replace(b"K\x03K\x01\x86", b"K\x09K\x01\x86")
    data = zipped(("archive/data.pkl", wide), ("archive/data/0", bytes(12)))
    (tmp_path / "x.json").write_bytes(json_array(data, "tensor", "Tensor"))
    with pytest.raises(ArtefactError, match="element 8 of 3"):
        load_tensors(tmp_path / "x.json")
