"""TensorRT's plugin layer takes every operator: shapes, types, launch, PTX; the launch gives right numbers."""

import inspect
from math import prod

import pytest
import torch
from plugin_samples import FLOATS, NAMES, assert_close, make_case
from tensorrt_stand_in import DataType, drive

from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.plugins import OPERATORS
from blockforge.plugins.checks import output_dtypes
from blockforge.plugins.launch import tuning
from blockforge.plugins.ptx import parameters
from blockforge.plugins.registry import plugin_named
from blockforge.plugins.tensorrt_layer import (
    node_attributes,
    register_with_tensorrt,
    type_combinations,
)

pytest.importorskip("triton")
ARCH = 89


def trt_type(dtype):
    return DataType[dtype.tensorrt]


def plan(layer, case, dynamic=(0, 1)):
    """Drive the registered plugin for the case's own types and shapes."""
    table = case.plugin.table
    dtypes = [next(d for d in DType if d.torch == t.dtype) for t in case.inputs]
    return drive(
        layer,
        table.identifier,
        [trt_type(d) for d in dtypes],
        [tuple(t.shape) for t in case.inputs],
        dynamic,
        {k: v for k, v in node_attributes(table, case.attributes).items() if k in case.attributes},
        [trt_type(d) for d in output_dtypes(table, dtypes)],
    )


def planned(layer, name, lead=(2, 3), row=40, dtype=DType.FP16, **attributes):
    case = make_case(plugin_named(name), lead, row, dtype, **attributes)
    register_with_tensorrt(layer, case.plugin, ARCH)
    return case, plan(layer, case, dynamic=range(len(lead)))


@pytest.mark.parametrize("name", NAMES)
def test_everything_tensorrt_asks(trtp, interpret, name):
    """Shapes, types, launch and PTX agree with the table; the launch, interpreted, with the reference."""
    case, found = planned(trtp, name)
    table = case.plugin.table
    expected = case.reference()
    assert found.output_shapes == [e.shape for e in expected]
    dtypes = [next(d for d in DType if d.torch == t.dtype) for t in case.inputs]
    assert found.output_types == [trt_type(d) for d in output_dtypes(table, dtypes)]
    assert found.combinations == {
        tuple(trt_type(d) for d in dtypes) for dtypes in type_combinations(table)
    }
    rows = prod(case.inputs[0].shape[:-1])
    assert found.extras == [rows]
    pointers = ["u64"] * len(table.inputs), ["u64"] * len(table.outputs)
    assert list(parameters(found.ptx.decode())) == [*pointers[0], "u32", *pointers[1]]
    assert f".entry {found.kernel}(" in found.ptx.decode()
    assert f".reqntid {found.launch['block_x']}\n" in found.ptx.decode()
    assert found.launch["block_y"] == found.launch["block_z"] == 1
    assert found.launch["grid_y"] == found.launch["grid_z"] == 1
    outputs = interpret(
        case.plugin,
        case.inputs,
        case.attributes,
        arch=ARCH,
        grid=found.launch["grid_x"],
        extras=found.extras,
    )
    assert_close(case, outputs)


@pytest.mark.parametrize(
    ("lead", "row"), [((1,), 4096), ((7, 129), 64), ((3, 5, 2), 1000), ((0, 4), 256)], ids=str
)
@pytest.mark.parametrize("name", ["AddRMSNormQuantize", "SwiGLUPacked"])
def test_launch_covers_every_element_once(trtp, name, lead, row):
    case, found = planned(trtp, name, lead, row)
    rows = prod(lead)
    launch = case.plugin.launch({"N": row, "itemsize": 2}, tuning(case.plugin.family, ARCH))
    blocks = -(-row // launch.constants["BLOCK"]) if name.startswith("SwiGLU") else 1
    assert found.extras == [rows]
    assert found.launch["grid_x"] == max(-(-rows // launch.constants["ROWS"]) * blocks, 1)


@pytest.mark.parametrize("name", NAMES)
def test_attribute_order_is_the_tables(trtp, name):
    """TensorRT hands attributes over by position: three places must list them alike."""
    plugin = plugin_named(name)
    register_with_tensorrt(trtp, plugin, ARCH)
    order = [a.name for a in plugin.table.attributes]
    definition = getattr(trtp.op.blockforge, name)
    assert list(definition.input_attrs) == order
    assert list(definition.aot_impl_attr_names) == order
    tensors = [t.name for t in plugin.table.inputs]
    signature = list(inspect.signature(definition.aot_impl_func).parameters)
    assert signature == [*tensors, *order, "outputs", "tactic"]


def test_attributes_change_the_kernel(trtp):
    case = make_case(plugin_named("RMSNorm"), (2, 3), 40, DType.FP16)
    register_with_tensorrt(trtp, case.plugin, ARCH)
    kernels = set()
    for attributes in ({}, {"epsilon": 1e-3}, {"epsilon_outside": 1e-3}, {"weight_offset": 1.0}):
        case.attributes.update({"epsilon": 1e-5, "epsilon_outside": 0.0, "weight_offset": 0.0})
        case.attributes.update(attributes)
        kernels.add(plan(trtp, case).ptx)
    assert len(kernels) == 4


def test_every_dtype_reaches_the_kernel(trtp):
    register_with_tensorrt(trtp, plugin_named("RMSNorm"), ARCH)
    kernels = {
        plan(trtp, make_case(plugin_named("RMSNorm"), (2,), 64, d, weight=w), dynamic=(0,)).ptx
        for d in FLOATS
        for w in FLOATS
    }
    assert len(kernels) == 9


def test_all_operators_register_together(trtp):
    for plugin in OPERATORS:
        register_with_tensorrt(trtp, plugin, ARCH)
    with pytest.raises(ValueError, match="already has a defintion"):
        register_with_tensorrt(trtp, OPERATORS[0], ARCH)


def test_a_dynamic_row_is_refused(trtp):
    case = make_case(plugin_named("SwiGLU"), (2, 3), 40, DType.FP16)
    register_with_tensorrt(trtp, case.plugin, ARCH)
    with pytest.raises(UsageError, match="dynamic size N"):
        plan(trtp, case, dynamic=(0, 1, 2))


def test_fp8_on_sm80_is_refused(trtp):
    case = make_case(plugin_named("SwiGLUQuantize"), (2, 3), 40, DType.FP16)
    register_with_tensorrt(trtp, case.plugin, 80)
    with pytest.raises(UsageError, match="Known: sm_89"):
        plan(trtp, case)


def test_node_attributes_are_spelled_out():
    found = node_attributes(plugin_named("RMSNorm").table, {"epsilon": 1e-6})
    assert found == {
        "epsilon": 1e-6,
        "epsilon_outside": 0.0,
        "weight_offset": 0.0,
        "plugin_namespace": "blockforge",
        "aot": 1,
    }


def test_the_stand_in_leaves_no_trace(trtp):
    import sys

    assert "tensorrt" not in sys.modules
    assert trtp.TensorDesc.__module__ == "tensorrt.plugin._tensor"
    assert torch.float8_e4m3fn
