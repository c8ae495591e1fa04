"""The table of element types agrees with torch, numpy, ml_dtypes and ONNX."""

import onnx
import pytest
import torch

from blockforge.core.dtypes import DType, dtype_from_name, dtype_from_onnx, dtype_from_torch
from blockforge.core.errors import UsageError


@pytest.mark.parametrize("dtype", DType)
def test_every_row_names_one_type_everywhere(dtype):
    assert dtype.torch.itemsize == dtype.numpy.itemsize == dtype.itemsize
    assert onnx.helper.tensor_dtype_to_np_dtype(dtype.onnx) == dtype.numpy
    assert dtype.torch.is_floating_point == dtype.floating
    assert dtype_from_torch(dtype.torch) is dtype_from_onnx(dtype.onnx) is dtype
    assert dtype_from_name(dtype.value) is dtype


def test_tensorrt_has_the_members():
    tensorrt = pytest.importorskip("tensorrt_rtx")
    for dtype in DType:
        assert dtype.tensorrt is None or hasattr(tensorrt.DataType, dtype.tensorrt)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda: dtype_from_name("fp17"),
        lambda: dtype_from_onnx(onnx.TensorProto.STRING),
        lambda: dtype_from_torch(torch.complex64),
    ],
)
def test_an_unknown_type_is_refused(look_up):
    with pytest.raises(UsageError):
        look_up()
