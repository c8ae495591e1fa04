"""DLPack against torch and numpy, which wrote their own: values, layouts, lifetimes, in both directions."""

import gc
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.core.manifest import TensorRecord
from blockforge.engines import dlpack
from blockforge.engines.session_tensor import HostTensor
from blockforge.engines.views import Place, Pointer, View, array_at, view_of

TYPES = [d for d in DType if d is not DType.FP8_E4M3]
HOST = Place("test")


def record(dtype="fp32", dims=("a", "b")):
    return TensorRecord(name="x", dtype=dtype, dims=dims)


def torch_values(dtype):
    return torch.tensor([[0, 1, 0], [1, 1, 2]]).to(dtype.torch)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.value)
def test_a_tensor_of_torch_is_read_where_it_is(dtype):
    tensor = torch_values(dtype)
    view = view_of(tensor, record(dtype.value), HOST)
    assert view.address == tensor.data_ptr() and view.shape == (2, 3) and view.dtype is dtype
    np.testing.assert_array_equal(view.array.astype(np.float64), tensor.double().numpy())
    tensor[0, 0] = 1
    assert view.array.astype(np.float64)[0, 0] == 1, "the same memory"


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.value)
def test_torch_reads_what_we_hand_on(dtype):
    array = torch_values(dtype).float().numpy().astype(dtype.numpy)
    tensor = torch.from_dlpack(HostTensor(array, dtype))
    assert tensor.dtype == dtype.torch and tensor.data_ptr() == array.ctypes.data
    assert torch.equal(tensor, torch_values(dtype))


def test_fp8_goes_through_by_code():
    """torch hands its 8-bit floats on by the protocol's code for E4M3, which numpy and older consumers lack."""
    values = np.array([[1.5, -2, 448]], ml_dtypes.float8_e4m3fn)
    tensor = HostTensor(values, DType.FP8_E4M3)
    view = view_of(tensor, record("fp8_e4m3"), HOST)
    np.testing.assert_array_equal(view.array, values)
    back = torch.from_dlpack(tensor)
    assert back.dtype == torch.float8_e4m3fn and back.float().tolist() == [[1.5, -2, 448]]
    np.testing.assert_array_equal(view_of(back, record("fp8_e4m3"), HOST).array, values)


def test_numpy_reads_what_we_hand_on():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    got = np.from_dlpack(HostTensor(array, DType.FP32))
    np.testing.assert_array_equal(got, array)


class Only:
    """Hides everything of a tensor but DLPack. old: from before max_version."""

    def __init__(self, tensor, old=False):
        self.tensor, self.old = tensor, old

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **how):
        if self.old and "max_version" in how:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.tensor.__dlpack__(**how)


@pytest.mark.parametrize("old", [False, True])
def test_numpys_capsules_of_both_versions(old):
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    view = view_of(Only(array, old), record("int64"), HOST)
    np.testing.assert_array_equal(view.array, array)
    assert view.address == array.ctypes.data and view.writable


def test_numpys_read_only_array_is_no_output():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    array.flags.writeable = False
    for value in (array, Only(array)):
        assert not view_of(value, record(), HOST).writable
        with pytest.raises(UsageError, match="read-only"):
            view_of(value, record(), HOST, output=True)


@pytest.mark.parametrize(
    "make",
    [lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:].expand(3, 4), lambda t: t[:0]],
    ids=["transposed", "stepped", "expanded", "empty"],
)
def test_strides_are_followed(make):
    tensor = make(torch.arange(12.0).reshape(3, 4)[:2])
    view = view_of(tensor, record(), HOST)
    np.testing.assert_array_equal(view.array, tensor.numpy())
    assert view.array.flags.c_contiguous
    if not tensor.is_contiguous():
        with pytest.raises(UsageError, match="not row-major"):
            view_of(tensor, record(), HOST, output=True)


def test_the_producer_keeps_its_memory_until_we_let_go():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    alive, only = weakref.ref(array), Only(array)
    view = view_of(only, record(), HOST)
    part = view.array[1:]
    del array, only, view
    gc.collect()
    assert alive() is not None and part.tolist() == [[3, 4, 5]]
    del part
    gc.collect()
    assert alive() is None


def test_we_keep_our_memory_until_the_consumer_lets_go():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    alive = weakref.ref(array)
    tensor = torch.from_dlpack(HostTensor(array, DType.FP32))
    del array
    gc.collect()
    assert tensor[1].tolist() == [3, 4, 5] and alive() is not None
    del tensor
    gc.collect()
    assert alive() is None


def test_a_capsule_that_nobody_takes_leaves_nothing():
    array = np.zeros(4, np.float32)
    before = len(dlpack._EXPORTS)
    capsule = HostTensor(array, DType.FP32).__dlpack__()
    assert len(dlpack._EXPORTS) == before + 1
    del capsule
    gc.collect()
    assert len(dlpack._EXPORTS) == before


@pytest.mark.parametrize("how", [{"copy": True}, {"dl_device": (dlpack.CUDA, 0)}])
def test_what_we_cannot_do_is_refused_as_the_protocol_says(how):
    tensor = HostTensor(np.zeros(4, np.float32), DType.FP32)
    with pytest.raises(BufferError):
        tensor.__dlpack__(**how)
    tensor.__dlpack__(copy=False, dl_device=(dlpack.CPU, 0), max_version=(1, 1))


def test_a_capsule_is_taken_once():
    capsule = HostTensor(np.zeros(4, np.float32), DType.FP32).__dlpack__()

    class Twice:
        def __dlpack__(self, **_):
            return capsule

    dlpack.read(Twice())
    with pytest.raises(UsageError, match="was used before"):
        dlpack.read(Twice())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.zeros(2, 3, requires_grad=True), "it refuses: .*grad"),
        (torch.zeros(2, 3, dtype=torch.complex64), r"DLPack type 5 of 64 bits.*Give float32"),
        (torch.zeros(2, 3, dtype=torch.int16), r"DLPack type 0 of 16 bits"),
        (torch.zeros(2, 3, dtype=torch.float64), "float64 elements"),
        (np.zeros((2, 3), np.complex64), "complex64 elements"),
        (np.array([["a"]]), "<U1 elements"),
        ([[1, 2]], "int64 elements"),
        (Pointer(0, (2, 3), "bf16"), "bfloat16 elements"),
    ],
)
def test_elements_of_another_type(value, words):
    with pytest.raises(UsageError, match=words):
        view_of(value, record(), HOST)


def test_memory_of_a_gpu_is_no_host_memory():
    class OnGpu:
        def __dlpack_device__(self):
            return dlpack.CUDA, 0

        def __dlpack__(self, **_):
            raise AssertionError("not asked")

    class OnMetal(OnGpu):
        def __dlpack_device__(self):
            return 8, 0

    class Interface:
        __cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "data": (4096, False)}  # noqa: RUF012

    for value, words in (
        (OnGpu(), "memory of a GPU.*test takes host memory"),
        (Interface(), "memory of a GPU"),
        (OnMetal(), "DLPack device 8"),
    ):
        with pytest.raises(UsageError, match=words):
            view_of(value, record(), HOST)


def test_pointers_and_scalars():
    array = np.arange(6, dtype=np.float16).reshape(2, 3)
    view = view_of(Pointer(array.ctypes.data, (2, 3), "fp16"), record("fp16"), HOST)
    np.testing.assert_array_equal(view.array, array)
    scalar = view_of(np.int64(7), record("int64", ()), HOST)
    assert scalar.shape == () and int(scalar.array) == 7
    assert View(0, (2, 0), DType.FP32).nbytes == 0
    assert array_at(0, (2, 0), DType.FP32, None).shape == (2, 0)


def test_a_consumer_that_outlives_everything():
    """At the interpreter's end torch frees what it took after our module may be gone."""
    script = (
        "import numpy, torch\n"
        "from blockforge.core.dtypes import DType\n"
        "from blockforge.engines.session_tensor import HostTensor\n"
        "torch.kept = torch.from_dlpack(HostTensor(numpy.ones(4, 'float32'), DType.FP32))\n"
        "capsule = HostTensor(numpy.ones(4, 'float32'), DType.FP32).__dlpack__()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
