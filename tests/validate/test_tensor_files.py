"""Tensor files: round trips of every format and type, the libraries as oracle, one error for each wrong file."""

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from polygraphy.comparator import IterationResult, RunResults
from polygraphy.json import load_json, save_json
from safetensors.torch import load as torch_load
from safetensors.torch import save as torch_save

from blockforge.core.errors import ArtefactError, UsageError
from blockforge.validate.tensor_files import load_run_results, load_tensors, save_tensors

FOREIGN = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
NATIVE = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")


@st.composite
def arrays(draw, foreign=True):
    """Any bit pattern (NaN payloads too) of any type, 0 to 3 axes, row-major or not."""
    dtype = np.dtype(draw(st.sampled_from((*NATIVE, *FOREIGN) if foreign else NATIVE)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    if dtype == np.bool_:
        array = draw(hnp.arrays(np.bool_, shape))
    else:
        array = draw(hnp.arrays(f"u{dtype.itemsize}", shape)).view(dtype)
    return array.T if draw(st.booleans()) else array


def sets(foreign=True):
    names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
    names = names.filter(lambda name: name != "__metadata__")
    return st.dictionaries(names, arrays(foreign), min_size=1, max_size=3)


def same(one, other):
    """Same names, types, shapes and bits."""
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert other[name].dtype == array.dtype and other[name].shape == array.shape
        assert other[name].tobytes() == array.tobytes()
        assert other[name].flags.c_contiguous and other[name].flags.writeable


@pytest.mark.parametrize(
    ("suffix", "foreign"), [(".npz", False), (".safetensors", True), (".json", True)]
)
def test_round_trip(tmp_path_factory, suffix, foreign):
    path = tmp_path_factory.mktemp("trip") / f"x{suffix}"

    @settings(max_examples=40, deadline=None)
    @given(sets(foreign))
    def trip(tensors):
        save_tensors(path, tensors)
        (found,) = load_tensors(path)
        same(tensors, found)

    trip()
    assert [p.name for p in path.parent.iterdir()] == [path.name]  # no half file beside it


@settings(max_examples=15, deadline=None)
@given(st.lists(sets(), min_size=1, max_size=3))
def test_folders_and_lists_round_trip(tmp_path_factory, several):
    folder = tmp_path_factory.mktemp("sets")
    for path in (folder / "new", folder / "all.json"):
        save_tensors(path, several)
        for tensors, found in zip(several, load_tensors(path), strict=True):
            same(tensors, found)


def test_folder_is_read_in_the_order_of_names(tmp_path):
    for at in (2, 10, 1):
        save_tensors(tmp_path / f"{at:03}.npz", {"x": np.array(at)})
    save_tensors(tmp_path / "020.json", [{"x": np.array(20)}, {"x": np.array(21)}])
    assert [int(t["x"]) for t in load_tensors(tmp_path)] == [1, 2, 10, 20, 21]


@settings(max_examples=25, deadline=None)
@given(sets())
def test_safetensors_is_the_librarys_file(tmp_path_factory, tensors):
    """The library reads ours bit for bit, and we the library's."""
    theirs = {}
    for name, array in tensors.items():
        theirs[name] = torch.empty(array.shape, dtype=getattr(torch, array.dtype.name))
        if array.size:
            raw = torch.frombuffer(bytearray(array.tobytes()), dtype=theirs[name].dtype)
            theirs[name] = raw.reshape(array.shape)
    path = tmp_path_factory.mktemp("st") / "x.safetensors"
    save_tensors(path, tensors)
    found = torch_load(path.read_bytes())
    assert found.keys() == tensors.keys()
    for name, tensor in found.items():
        assert (tensor.dtype, tensor.shape) == (theirs[name].dtype, theirs[name].shape)
    assert torch_save(found) == torch_save(theirs)  # the same bits
    path.write_bytes(torch_save(theirs, {"format": "pt"}))
    (found,) = load_tensors(path)
    same(tensors, found)


def test_npz_is_numpys_file(tmp_path):
    tensors = {"file": np.arange(3), "allow_pickle": np.ones((2, 2), "f2"), "a/b": np.array(1.5)}
    save_tensors(tmp_path / "x.npz", tensors)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as archive:
        same(tensors, dict(archive))
    np.savez_compressed(tmp_path / "y.npz", big=np.arange(4, dtype=">f4"), f=np.eye(3, order="F"))
    (found,) = load_tensors(tmp_path / "y.npz")
    assert found["big"].dtype == np.dtype("<f4") and found["big"].tolist() == [0, 1, 2, 3]
    assert np.array_equal(found["f"], np.eye(3))


def test_polygraphy_reads_ours(tmp_path):
    tensors = {"x": np.arange(6.0).reshape(2, 3), "b": np.array([1.5, -2], ml_dtypes.bfloat16)}
    save_tensors(tmp_path / "in.json", [tensors, tensors])
    found = load_json(str(tmp_path / "in.json"))
    assert len(found) == 2 and np.array_equal(found[0]["x"], tensors["x"])
    assert found[1]["b"].dtype == torch.bfloat16 and found[1]["b"].tolist() == [1.5, -2]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).reshape(3, 4).T,
        torch.arange(70_000)[5:],
        torch.zeros(2, 0, 3, dtype=torch.float16),
        torch.tensor(1.25, dtype=torch.bfloat16),
        torch.ones(2, 3).to(torch.float8_e4m3fn),
        torch.ones(3).to(torch.float8_e5m2),
        torch.tensor([0, 1, 2], dtype=torch.uint16),
        torch.tensor([True, False]).expand(3, 2),
    ],
    ids=lambda t: f"{t.dtype}{list(t.shape)}",
)
def test_ours_reads_polygraphys_torch_tensors(tmp_path, tensor):
    save_json([{"x": tensor}], str(tmp_path / "in.json"))
    array = load_tensors(tmp_path / "in.json")[0]["x"]
    assert array.dtype.name == str(tensor.dtype).removeprefix("torch.")
    assert array.shape == tuple(tensor.shape)
    assert array.astype("f8").tolist() == tensor.double().tolist()


def results(*runners):
    made = RunResults()
    for name, values in runners:
        steps = [IterationResult({"y": np.float32([v])}, 0.5, name) for v in values]
        made.append((name, steps))
    return made


def test_run_results(tmp_path):
    path = tmp_path / "out.json"
    results(("ort", [1, 2]), ("trt", [3, 4])).save(str(path))
    ort, trt = load_run_results(path)
    assert (ort.runner, ort.seconds) == ("ort", (0.5, 0.5))
    assert [float(t["y"][0]) for t in trt.outputs] == [3, 4]
    assert [float(t["y"][0]) for t in load_tensors(path, runner="ort")] == [1, 2]
    with pytest.raises(UsageError, match=r"outputs of 2 runners: \['ort', 'trt'\]"):
        load_tensors(path)
    with pytest.raises(UsageError, match=r"'x' .*has \['ort', 'trt'\]"):
        load_tensors(path, runner="x")
    results(("ort", [1])).save(str(path))
    assert load_tensors(path)[0]["y"].tolist() == [1]
    results(("ort", [1]), ("ort", [2])).save(str(path))
    with pytest.raises(ArtefactError, match="two entries named 'ort'"):
        load_run_results(path)


def test_scripts_run_only_when_allowed(tmp_path):
    script = tmp_path / "data_loader.py"
    script.write_text(
        "import numpy as np, torch\n"
        "def load_data():\n"
        "    for n in (1, 2):\n"
        "        yield {'x': np.full((n,), n), 'b': torch.ones(2, dtype=torch.bfloat16)}\n"
        "def other():\n    return [{'x': [1]}]\n"
        "def broken():\n    return 1 / 0\n"
    )
    with pytest.raises(UsageError, match="a script, and reading it runs it"):
        load_tensors(script)
    one, two = load_tensors(script, allow_script=True)
    assert one["x"].tolist() == [1] and two["x"].tolist() == [2, 2]
    assert two["b"].dtype == ml_dtypes.bfloat16
    for function, message in (
        ("other", "'x', set 0 .*: list, not an array"),
        ("broken", r"ZeroDivisionError in data_loader.py, line 8"),
        ("absent", "no function absent; it has load_data, other, broken"),
    ):
        with pytest.raises(UsageError, match=message):
            load_tensors(f"{script}:{function}", allow_script=True)
    save_tensors(tmp_path / "in.npz", one | {"b": np.ones(1)})
    with pytest.raises(UsageError, match=r"suffix '\.py'"):
        load_tensors(tmp_path)  # a folder of files runs none


def test_wrong_paths(tmp_path):
    x = {"x": np.ones(1, "f4")}
    for name, message in (("absent.npz", "no such file"), ("", "no set of tensors")):
        with pytest.raises((UsageError, ArtefactError), match=message):
            load_tensors(tmp_path / name)
    (tmp_path / "x.txt").write_text("")
    for path in ("x.txt",):
        with pytest.raises(UsageError, match=r"suffix '.txt'.*Use .npz"):
            load_tensors(tmp_path / path)
        with pytest.raises(UsageError, match=r"suffix '.txt'.*Use .npz"):
            save_tensors(tmp_path / path, x)
    cases = (
        ("x.npz", [x, x], "2 sets"),
        ("x.npz", {}, "no tensor"),
        ("x.json", [], "no tensor"),
        ("x.npz", {"": np.ones(1)}, "without a name"),
        ("x.npz", {"x": np.ones(1, FOREIGN[0])}, "lose the type"),
        ("x.safetensors", {"__metadata__": np.ones(1)}, "uses this name itself"),
        ("x.npz", {"x": np.array([None])}, "Python objects"),
        ("no/x.npz", x, "cannot write"),
        ("", x, "cannot write|it exists"),
    )
    for name, tensors, message in cases:
        with pytest.raises((UsageError, ArtefactError), match=message):
            save_tensors(tmp_path / name, tensors)
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]
