"""load_model believes nothing it has not checked; save_model writes all or nothing. Oracle: onnx itself."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockforge.core.errors import ArtefactError, UsageError
from blockforge.graph.io import PAGE, load_model, save_model

WEIGHT = np.arange(2048, dtype=np.float32).reshape(32, 64)


def model() -> onnx.ModelProto:
    proto = onnx.parser.parse_model(
        """<ir_version: 11, opset_import: ["" : 24]>
        g (float[n, 32] x) => (float[n, 64] y) {
            h = MatMul(x, w)
            b = Constant<value = float[1] {1.0}>()
            y = Add(h, b)
        }"""
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT, "w"))
    return proto


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The model with its weight outside, written by onnx."""
    path = tmp_path / "model.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="w.data", size_threshold=0)
    return path


def edited(path: Path, **entries: str) -> Path:
    """The stored model with other external data entries, for its weight."""
    proto = onnx.load(path, load_external_data=False)
    (tensor,) = proto.graph.initializer
    for key, value in entries.items():
        found = [e for e in tensor.external_data if e.key == key]
        entry = found[0] if found else tensor.external_data.add(key=key)
        entry.value = value
    path.write_bytes(proto.SerializeToString())
    return path


def test_weights_stay_on_disk_until_used(stored: Path):
    tensor = load_model(stored).graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor) and tensor.raw is None
    np.testing.assert_array_equal(tensor.numpy(), WEIGHT)


def test_a_relative_path_keeps_the_containment_check(stored: Path, monkeypatch):
    monkeypatch.chdir(stored.parent)
    tensor = load_model("model.onnx").graph.initializers["w"].const_value
    assert Path(tensor.base_dir).is_absolute()  # onnx_ir checks nothing for an empty one


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"not a model at all", "not an ONNX file"),
        (b"\x89PNG\r\n\x1a\n" + bytes(64), "not an ONNX file"),
        (onnx.TensorProto(dims=[3], data_type=1).SerializeToString(), "not an ONNX file"),
    ],
    ids=["empty", "text", "png", "another message"],
)
def test_another_file_is_no_model(tmp_path: Path, content: bytes, says: str):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ArtefactError, match=says):
        load_model(path)


def test_a_missing_file_and_a_folder_are_usage_errors(tmp_path: Path):
    with pytest.raises(UsageError, match="no such file"):
        load_model(tmp_path / "nothing.onnx")
    with pytest.raises(UsageError, match="a folder"):
        load_model(tmp_path)


@settings(max_examples=60, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_always_refused(tmp_path_factory, share: float):
    content = model().SerializeToString()
    path = tmp_path_factory.mktemp("cut") / "model.onnx"
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(ArtefactError):
        load_model(path)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"location": "other.data"}, "is missing"),
        ({"location": ""}, "not a file name"),
        ({"location": "."}, "not a file name"),
        ({"location": "../w.data"}, "leaves the model's folder"),
        ({"location": "sub/../../w.data"}, "leaves the model's folder"),
        ({"location": "/etc/passwd"}, "leaves the model's folder"),
        ({"location": "C:\\w.data"}, "leaves the model's folder"),
        ({"location": "n" * 5000}, "cannot be looked up"),
        ({"offset": "1"}, "bytes 1 to 8193 of 'w.data', which has 8192"),
        ({"offset": "-4096"}, "bytes -4096"),
        ({"offset": "9" * 30}, "which has 8192"),
        ({"offset": "many"}, "'many'"),
        ({"length": "4096"}, "4096 bytes where dimensions"),
        ({"length": "-1"}, "-1 bytes where"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_external_data_that_does_not_fit(stored: Path, entries: dict[str, str], says: str):
    with pytest.raises(ArtefactError, match="tensor 'w'") as caught:
        load_model(edited(stored, **entries))
    assert says in str(caught.value)


def test_links_may_stay_inside_the_folder_but_not_leave_it(stored: Path, tmp_path_factory):
    data, outside = stored.parent / "w.data", tmp_path_factory.mktemp("outside") / "secret"
    data.rename(stored.parent / "real.data")
    data.symlink_to(stored.parent / "real.data")
    np.testing.assert_array_equal(
        load_model(stored).graph.initializers["w"].const_value.numpy(), WEIGHT
    )
    data.unlink()
    outside.write_bytes(WEIGHT.tobytes())
    data.symlink_to(outside)
    with pytest.raises(ArtefactError, match="link that leaves"):
        load_model(stored)
    data.unlink()
    data.symlink_to(data)
    with pytest.raises(ArtefactError, match=r"w\.data"):
        load_model(stored)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_no_data_file(stored: Path):
    (stored.parent / "w.data").unlink()
    os.mkfifo(stored.parent / "w.data")
    with pytest.raises(ArtefactError, match="not a plain file"):
        load_model(stored)


def test_truncated_external_data(stored: Path):
    with (stored.parent / "w.data").open("r+b") as file:
        file.truncate(8191)
    with pytest.raises(ArtefactError, match="which has 8191"):
        load_model(stored)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.dims.__setitem__(0, 2**40),
        lambda t: t.dims.__setitem__(0, -32),
        lambda t: setattr(t, "data_type", 0),
        lambda t: setattr(t, "data_type", 99),
        lambda t: setattr(t, "raw_data", t.raw_data[:-1]),
        lambda t: (t.ClearField("raw_data"), t.float_data.extend([1.0])),
    ],
    ids=["2**45 elements", "negative size", "no type", "unknown type", "short", "too few floats"],
)
def test_inline_tensors_that_contradict_themselves(tmp_path: Path, change):
    proto = model()
    change(proto.graph.initializer[0])
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ArtefactError, match="tensor 'w'"):
        load_model(path)


def test_tensors_inside_nodes_and_functions_are_checked_too(tmp_path: Path):
    path = tmp_path / "model.onnx"
    proto = model()
    constant = next(n for n in proto.graph.node if n.op_type == "Constant")
    constant.attribute[0].t.dims[0] = 2**50
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ArtefactError, match="1125899906842624"):
        load_model(path)
    proto = model()
    function = onnx.helper.make_function("d", "F", [], ["b"], [constant], proto.opset_import)
    proto.functions.append(function)
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ArtefactError, match="1125899906842624"):
        load_model(path)


def test_saving_writes_what_onnx_reads(stored: Path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    loaded = load_model(stored)
    before = loaded.graph.initializers["w"].const_value
    save_model(loaded, folder / "copy.onnx")
    assert loaded.graph.initializers["w"].const_value is before
    copy = onnx.load(folder / "copy.onnx")
    onnx.checker.check_model(copy)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(copy.graph.initializer[0]), WEIGHT)
    assert sorted(p.name for p in folder.iterdir()) == ["copy.onnx", "copy.onnx.data"]


def test_a_small_tensor_in_another_folder_s_data_is_copied_too(tmp_path: Path, tmp_path_factory):
    small = onnx.parser.parse_model(
        '<ir_version: 11, opset_import: ["" : 24]> g (float[4] x) => (float[4] y) { y = Mul(x, w) }'
    )
    small.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT[0, :4], "w"))
    path = tmp_path / "model.onnx"
    onnx.save(small, path, save_as_external_data=True, location="w.data", size_threshold=0)
    folder = tmp_path_factory.mktemp("copy")
    save_model(load_model(path), folder / "copy.onnx")
    copy = onnx.load(folder / "copy.onnx")
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(copy.graph.initializer[0]), WEIGHT[0, :4]
    )


def test_data_in_the_same_folder_is_not_copied_nor_overwritten(stored: Path):
    loaded = load_model(stored)
    save_model(loaded, stored.parent / "again.onnx")
    assert not (stored.parent / "again.onnx.data").exists()

    save_model(
        load_model(stored), stored.parent / "w.onnx"
    )  # its data file would be w.onnx.data: free
    (stored.parent / "w.data").rename(stored.parent / "model.onnx.data")
    loaded = load_model(edited(stored, location="model.onnx.data"))
    new = ir.tensor(WEIGHT + 1, name="v")
    loaded.graph.register_initializer(
        ir.Value(name="v", const_value=new, type=ir.TensorType(new.dtype), shape=new.shape)
    )
    save_model(loaded, stored)
    assert sorted(p.name for p in stored.parent.glob("model*")) == [
        "model.onnx",
        "model.onnx.1.data",
        "model.onnx.data",
    ]
    values = load_model(stored).graph.initializers
    np.testing.assert_array_equal(values["w"].const_value.numpy(), WEIGHT)
    np.testing.assert_array_equal(values["v"].const_value.numpy(), WEIGHT + 1)


def test_stored_tensors_start_on_pages(tmp_path: Path):
    proto = model()
    proto.graph.initializer.append(onnx.numpy_helper.from_array(WEIGHT[:, :10].copy(), "v"))
    save_model(ir.serde.deserialize_model(proto), tmp_path / "model.onnx")
    tensors = [
        v.const_value for v in load_model(tmp_path / "model.onnx").graph.initializers.values()
    ]
    assert [t.offset % PAGE for t in tensors] == [0, 0]


def test_a_failed_save_leaves_the_old_file(stored: Path, monkeypatch):
    old = stored.read_bytes()
    loaded = load_model(stored)
    big = ir.tensor(WEIGHT, name="v")
    loaded.graph.register_initializer(
        ir.Value(name="v", const_value=big, type=ir.TensorType(big.dtype), shape=big.shape)
    )

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ir.Tensor, "tofile", full)
    with pytest.raises(UsageError, match="No space left"):
        save_model(loaded, stored)
    assert stored.read_bytes() == old
    assert sorted(p.name for p in stored.parent.iterdir()) == ["model.onnx", "w.data"]
    assert loaded.graph.initializers["v"].const_value is big


def test_an_unwritable_folder_and_a_missing_value(tmp_path: Path):
    loaded = ir.serde.deserialize_model(model())
    with pytest.raises(UsageError, match="cannot write"):
        save_model(loaded, tmp_path / "none" / "model.onnx")
    loaded.graph.initializers["w"].const_value = None
    with pytest.raises(UsageError, match="without a value: w"):
        save_model(loaded, tmp_path / "model.onnx")


SPARSE = """
import sys, onnx, pathlib
from blockforge.graph.io import load_model, save_model
import onnx_ir as ir
def peak():  # not ru_maxrss: that starts at the parent's
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
folder = pathlib.Path(sys.argv[1])
rows = 3 * 2**28  # 3 GiB of float32 in each of two tensors
with (folder / "w.data").open("wb") as file:
    file.truncate(2 * 4 * rows)
proto = onnx.parser.parse_model('<ir_version: 11, opset_import: ["" : 24]> g (float[n] x) => (float[n] y) { y = Add(x, x) }')
for i in range(2):
    tensor = onnx.TensorProto(name=f"w{i}", data_type=1, dims=[rows], data_location=1)
    for k, v in (("location", "w.data"), ("offset", str(4 * rows * i)), ("length", str(4 * rows))):
        tensor.external_data.add(key=k, value=v)
    proto.graph.initializer.append(tensor)
(folder / "big.onnx").write_bytes(proto.SerializeToString())
model = load_model(folder / "big.onnx")
save_model(model, folder / "again.onnx")
assert sum(v.const_value.nbytes for v in load_model(folder / "again.onnx").graph.initializers.values()) == 8 * rows
print(peak())
"""


def test_more_than_2_gib_of_weights_cost_no_memory(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", SPARSE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 1024  # MiB, of 6144 in the (sparse) data file
