"""On a GPU: every kernel for real against float64, as Triton launches it and as an engine would carry it."""

import ctypes
from math import prod

import pytest
import torch
from plugin_samples import FLOATS, NAMES, assert_close, make_case

from blockforge.core.dtypes import DType
from blockforge.plugins.aot import architecture_for, compile_kernel, supported_architectures
from blockforge.plugins.checks import Given, check_attributes, check_call
from blockforge.plugins.execute import empty_outputs, run_kernel
from blockforge.plugins.registry import plugin_named

pytestmark = pytest.mark.gpu
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

SHAPES = [((3,), 42), ((1,), 4096), ((257,), 128), ((5, 3), 11008), ((2,), 65536), ((2,), 16385)]


def this_arch():
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def cases(name, lead, row, dtype, **options):
    plugin = plugin_named(name)
    if this_arch() < supported_architectures(plugin)[0]:
        pytest.skip(f"no kernel for sm_{this_arch()}")
    if plugin.table.row == "D" and (row > 512 or row % 2):
        pytest.skip("no such head size")
    return make_case(plugin, lead, row, dtype, **options), architecture_for(plugin, this_arch())


@pytest.mark.parametrize("scale", [1, 300, 60000])
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.value)
@pytest.mark.parametrize(("lead", "row"), SHAPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_kernel_equals_reference(name, lead, row, dtype, scale):
    case, arch = cases(name, lead, row, dtype, scale=scale)
    outputs = run_kernel(case.plugin, [t.cuda() for t in case.inputs], case.attributes, arch)
    assert_close(case, [o.cpu() for o in outputs])


@pytest.mark.parametrize("name", NAMES)
def test_nan_and_infinity_stay_in_their_row(name):
    case, arch = cases(name, (1, 5), 256, DType.FP16)
    first = case.inputs[0][0]
    first[0, 3], first[1, 5], first[2, 7] = float("nan"), float("inf"), float("-inf")
    outputs = run_kernel(case.plugin, [t.cuda() for t in case.inputs], case.attributes, arch)
    assert_close(case, [o.cpu() for o in outputs])


def launch_ptx(built, tensors, rows):
    """Load the PTX with the driver and launch it with TensorRT's arguments: inputs, rows, outputs."""
    inputs, outputs = tensors
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuModuleLoadData(ctypes.byref(module), built.ptx.encode() + b"\0") == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, built.name.encode()) == 0
    values = [ctypes.c_void_p(t.data_ptr()) for t in inputs]
    values += [ctypes.c_int32(rows)] + [ctypes.c_void_p(t.data_ptr()) for t in outputs]
    pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(v) for v in values))
    grid, block = built.launch.grid(rows), built.launch.warps * 32
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert (
        cuda.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, built.shared, stream, pointers, None)
        == 0
    )
    torch.cuda.synchronize()
    assert cuda.cuModuleUnload(module) == 0


@pytest.mark.parametrize("row", [64, 4096, 4097])
@pytest.mark.parametrize("name", NAMES)
def test_ptx_as_an_engine_carries_it(name, row):
    case, arch = cases(name, (2, 9), row, DType.FP16)
    inputs = [t.cuda() for t in case.inputs]
    outputs = empty_outputs(case.plugin, inputs, case.attributes)
    dtypes = [next(d for d in DType if d.torch == t.dtype) for t in inputs]
    filled = check_attributes(case.plugin.table, case.attributes)
    given = [Given(d, tuple(t.shape)) for d, t in zip(dtypes, inputs, strict=True)]
    sizes = check_call(case.plugin.table, given, filled)
    built = compile_kernel(case.plugin, dtypes, sizes, filled, arch)
    launch_ptx(built, (inputs, outputs), prod(inputs[0].shape[:-1]))
    assert_close(case, [o.cpu() for o in outputs])
