"""A stand-in for the library below TensorRT's Python plugin layer, and a driver that calls it as a build does.

The plugin layer itself is NVIDIA's, from the wheel tensorrt-cu13-bindings; only what it imports from the
compiled module is imitated. Shape expressions are evaluated as they are built: a dynamic size is a number that
says it is no constant.
"""

import importlib.util
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import ModuleType

import numpy as np

DataType = Enum("DataType", "FLOAT HALF INT8 INT32 BOOL UINT8 FP8 BF16 INT64 INT4 FP4")
TensorFormat = Enum("TensorFormat", "LINEAR HWC CHW4")
PluginFieldType = Enum(
    "PluginFieldType", "FLOAT16 FLOAT32 FLOAT64 INT8 INT16 INT32 CHAR DIMS UNKNOWN BF16 INT64"
)
DimensionOperation = Enum(
    "DimensionOperation", "SUM PROD MAX MIN SUB EQUAL LESS FLOOR_DIV CEIL_DIV"
)
QuickPluginCreationRequest = Enum(
    "QuickPluginCreationRequest", "UNKNOWN PREFER_JIT PREFER_AOT STRICT_JIT STRICT_AOT"
)
TensorRTPhase = Enum("TensorRTPhase", "BUILD RUNTIME")
PluginArgType = Enum("PluginArgType", "INT")
PluginArgDataType = Enum("PluginArgDataType", "INT8 INT16 INT32")

_EVALUATE = {
    DimensionOperation.SUM: lambda a, b: a + b,
    DimensionOperation.PROD: lambda a, b: a * b,
    DimensionOperation.MAX: max,
    DimensionOperation.MIN: min,
    DimensionOperation.SUB: lambda a, b: a - b,
    DimensionOperation.EQUAL: lambda a, b: int(a == b),
    DimensionOperation.LESS: lambda a, b: int(a < b),
    DimensionOperation.FLOOR_DIV: lambda a, b: a // b,
    DimensionOperation.CEIL_DIV: lambda a, b: -(-a // b),
}


@dataclass
class IDimensionExpr:
    value: int
    constant: bool = True

    def is_constant(self):
        return self.constant

    def get_constant_value(self):
        assert self.constant, "TensorRT knows no value yet"
        return self.value


class IExprBuilder:
    def constant(self, value):
        return IDimensionExpr(int(value))

    def operation(self, op, a, b):
        return IDimensionExpr(_EVALUATE[op](a.value, b.value), a.constant and b.constant)


class Base:
    def __init__(self, *_):
        pass


class ISymExpr(Base):
    pass


class Dims(list):
    MAX_DIMS = 8


class DimsExprs(list):
    def __init__(self, length):
        super().__init__([None] * length)


@dataclass
class PluginTensorDesc:
    dims: tuple = ()
    type: DataType | None = None
    format: TensorFormat = TensorFormat.LINEAR
    scale: float = 1.0


@dataclass
class DynamicPluginTensorDesc:
    desc: PluginTensorDesc
    min: tuple
    opt: tuple
    max: tuple


class PluginField:
    def __init__(self, name, data, type):
        self.name, self.type = name, type
        self.data = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data


class Registry:
    def __init__(self):
        self.creators = {}

    def register_creator(self, creator, namespace):
        self.creators[creator.name, namespace] = creator

    def get_creator(self, name, version, namespace):
        return self.creators[name, namespace]


class Logger:
    WARNING = 2

    def log(self, severity, message):
        pass


def stand_in():
    """A module `tensorrt` with a registry of its own."""
    module, registry = ModuleType("tensorrt"), Registry()
    for value in (DataType, TensorFormat, PluginFieldType, DimensionOperation, TensorRTPhase):
        setattr(module, value.__name__, value)
    for value in (QuickPluginCreationRequest, PluginArgType, PluginArgDataType, IDimensionExpr):
        setattr(module, value.__name__, value)
    for value in (ISymExpr, Dims, DimsExprs, PluginTensorDesc, DynamicPluginTensorDesc, Logger):
        setattr(module, value.__name__, value)
    for name in [
        "IPluginV3",
        "IPluginV3QuickCore",
        "IPluginV3QuickBuild",
        "IPluginV3QuickAOTBuild",
        "IPluginV3QuickRuntime",
        "IPluginCreatorV3Quick",
        "ITensor",
    ]:
        setattr(module, name, type(name, (Base,), {}))
    module.PluginField, module.PluginFieldCollection = PluginField, list
    module.get_plugin_registry = lambda: registry
    module.int32 = DataType.INT32
    return module


def load_plugin_layer():
    """`tensorrt.plugin`, fresh, over a fresh stand-in; None without the wheel. sys.modules stays as it was."""
    found = importlib.util.find_spec("tensorrt_bindings")
    if not found:
        return None
    before = {k: v for k, v in sys.modules.items() if k.split(".")[0] == "tensorrt"}
    try:
        for name in before:
            del sys.modules[name]
        sys.modules["tensorrt"] = trt = stand_in()
        folder = Path(found.submodule_search_locations[0]) / "plugin"
        spec = importlib.util.spec_from_file_location(
            "tensorrt.plugin", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        layer = sys.modules["tensorrt.plugin"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(layer)
        layer.trt = trt
        return layer
    finally:
        for name in [k for k in sys.modules if k.split(".")[0] == "tensorrt"]:
            del sys.modules[name]
        sys.modules.update(before)


@dataclass
class Setter:
    """What TensorRT hands out for extra arguments."""

    nbSymExprs: int = 0  # noqa: N815 (TensorRT's name)
    items: dict = field(default_factory=dict)

    def __setitem__(self, index, value):
        self.items[index] = value


class LaunchParams:
    pass


@dataclass
class Planned:
    """What TensorRT knows after asking the plugin about one call."""

    output_shapes: list
    output_types: list
    combinations: set
    kernel: str
    ptx: bytes
    launch: dict
    extras: list


def drive(layer, name, types, shapes, dynamic, attributes, output_types):
    """Create the plugin ahead of time and ask everything, in TensorRT's order.

    types: DataType per input; shapes: the runtime sizes; dynamic: axes that are no constants at build time;
    attributes: in the node's order; output_types: what configure chose.
    """
    trt, (namespace, op) = layer.trt, name.split("::")
    creator = trt.get_plugin_registry().get_creator(op, "1", namespace)
    given = dict(attributes)
    fields = []
    for known in creator.field_names:  # the parser walks the creator's fields
        value = given.pop(known.name)
        data = value.encode() if isinstance(value, str) else np.array([value])
        fields.append(PluginField(known.name, data, known.type))
    assert not given, f"the plugin has no {list(given)}"
    request = QuickPluginCreationRequest.STRICT_AOT
    plugin = creator.create_plugin(op, namespace, fields, TensorRTPhase.BUILD, request)
    found = plugin.get_output_data_types(list(types), [len(s) for s in shapes])
    exprs = []
    for shape in shapes:
        dims = DimsExprs(len(shape))
        for axis, size in enumerate(shape):
            dims[axis] = IDimensionExpr(size, axis not in dynamic or len(shape) < 2)
        exprs.append(dims)
    outputs = plugin.get_output_shapes(exprs, [], IExprBuilder())
    output_shapes = [tuple(d.value for d in dims) for dims in outputs]
    descs = [
        DynamicPluginTensorDesc(PluginTensorDesc(Dims(s), t), s, s, s)
        for s, t in zip([*shapes, *output_shapes], [*types, *output_types], strict=True)
    ]
    flat = plugin.get_supported_format_combinations(descs, len(shapes))
    width = len(descs)
    combinations = {tuple(d.type for d in flat[i : i + width]) for i in range(0, len(flat), width)}
    assert all(d.format is TensorFormat.LINEAR for d in flat)
    plugin.configure_plugin(descs[: len(shapes)], descs[len(shapes) :])
    tactics = plugin.get_valid_tactics()
    plugin.set_tactic(tactics[0] if tactics else 0)
    launch, setter = LaunchParams(), Setter()
    plugin.get_launch_params(exprs, descs, len(shapes), launch, setter, IExprBuilder())
    kernel, ptx = plugin.get_kernel(
        [d.desc for d in descs[: len(shapes)]], [d.desc for d in descs[len(shapes) :]]
    )
    return Planned(
        output_shapes,
        found,
        combinations,
        kernel,
        ptx,
        {key: value.expr.value for key, value in vars(launch).items()},
        [setter.items[i].expr.value for i in range(setter.nbSymExprs)],
    )
