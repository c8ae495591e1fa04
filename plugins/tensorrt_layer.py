"""Hand an operator to full TensorRT: description, accepted types and an ahead-of-time kernel, from its table.

The module `tensorrt.plugin` comes in as an argument: engines imports it, tests put a stand-in below it.
TensorRT passes a kernel its inputs, then the extra integers, then its outputs; an engine built this way
carries the PTX and needs neither Python nor a library of ours. Attributes are in the table's order everywhere:
TensorRT hands them over by position.
"""

from collections.abc import Iterator, Mapping, Sequence
from inspect import Parameter, Signature
from itertools import product
from typing import Any

from ..core.domain import DOMAIN
from ..core.dtypes import DType
from ..core.errors import UsageError
from .aot import compile_kernel
from .checks import check_attributes, output_dtypes
from .registry import Plugin
from .shapes import bind_sizes, output_shapes
from .table import AttributeValue, Table

_PYTHON = {"float": float, "int": int, "string": str}
_AUTOTUNE_NAMES = {
    DType.FP32: "FP32",
    DType.FP16: "FP16",
    DType.BF16: "BF16",
    DType.FP8_E4M3: "FP8",
}


def register_with_tensorrt(trtp: Any, plugin: Plugin, arch: int) -> None:
    """Register description, types and kernel of one operator with `tensorrt.plugin`, for sm_<arch>.

    ValueError (TensorRT's own) when the operator is registered already.
    """
    table, name = plugin.table, plugin.table.identifier
    trtp.register(name)(_describe(trtp, table))
    trtp.autotune(name)(_accept(trtp, table))
    trtp.aot_impl(name)(_implement(trtp, plugin, arch))


def node_attributes(
    table: Table, attributes: Mapping[str, AttributeValue]
) -> dict[str, AttributeValue]:
    """The attributes that an ONNX node needs for TensorRT's parser to take the plugin's ahead-of-time kernel.

    Every attribute must be spelled out: the plugin layer knows no defaults.
    """
    return {**check_attributes(table, attributes), "plugin_namespace": DOMAIN, "aot": 1}


def type_combinations(table: Table) -> Iterator[tuple[DType, ...]]:
    """Every combination of element types that the table allows: inputs, then outputs."""
    letters = list(dict.fromkeys(t.type for t in table.tensors))
    for choice in product(*(table.types[letter] for letter in letters)):
        of = dict(zip(letters, choice, strict=True))
        yield tuple(of[t.type] for t in table.tensors)


def _describe(trtp: Any, table: Table) -> Any:
    def describe(*inputs: Any, **attributes: AttributeValue) -> Any:
        dtypes = [_dtype(d) for d in inputs]
        sizes = bind_sizes(table, [d.shape_expr for d in inputs], attributes, check=False)
        outputs = []
        for shape, dtype in zip(
            output_shapes(table, sizes, attributes), output_dtypes(table, dtypes), strict=True
        ):
            desc = inputs[0].like()
            desc.shape_expr = trtp.ShapeExprs.from_tuple(shape)
            desc.dtype = _tensorrt_type(inputs[0].dtype, dtype)
            outputs.append(desc)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    desc = trtp.TensorDesc
    returns = desc if len(table.outputs) == 1 else tuple[(desc,) * len(table.outputs)]  # type: ignore[misc]
    return _signed(describe, _parameters(table, desc), returns)


def _accept(trtp: Any, table: Table) -> Any:
    def accept(*_: Any) -> Any:
        return [
            trtp.AutoTuneCombination(", ".join(_AUTOTUNE_NAMES[d] for d in dtypes), "LINEAR")
            for dtypes in type_combinations(table)
        ]

    names = [_parameter(t.name) for t in table.inputs]
    return _signed(accept, [*names, _parameter("outputs")])


def _implement(trtp: Any, plugin: Plugin, arch: int) -> Any:
    table = plugin.table

    def implement(*arguments: Any) -> Any:
        *given, _outputs, _tactic = arguments
        inputs, values = given[: len(table.inputs)], given[len(table.inputs) :]
        names = [a.name for a in table.attributes]
        attributes = check_attributes(table, dict(zip(names, values, strict=True)))
        shapes = [tuple(d.shape_expr) for d in inputs]
        sizes = bind_sizes(table, shapes, attributes, check=False)
        sizes = {table.row: _constant(table, sizes[table.row])}
        built = compile_kernel(plugin, [_dtype(d) for d in inputs], sizes, attributes, arch)
        rows = trtp.ShapeExpr(1)
        for size in shapes[0][:-1]:
            rows = rows * size
        launch = trtp.KernelLaunchParams()
        programs = trtp.cdiv(rows, built.launch.per_program) * built.launch.columns
        launch.grid_x = trtp.max(programs, 1)
        launch.block_x = built.launch.warps * 32
        launch.shared_mem = built.shared
        extras = trtp.SymIntExprs(1)
        extras[0] = trtp.SymInt32(rows)
        return built.name, built.ptx, launch, extras

    returns = tuple[str, str, trtp.KernelLaunchParams, trtp.SymIntExprs]
    names = _parameters(table, trtp.TensorDesc)
    return _signed(implement, [*names, _parameter("outputs"), _parameter("tactic")], returns)


def _parameters(table: Table, desc: Any) -> list[Parameter]:
    inputs = [_parameter(t.name, desc) for t in table.inputs]
    return inputs + [_parameter(a.name, _PYTHON[a.kind]) for a in table.attributes]


def _parameter(name: str, annotation: Any = Parameter.empty) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)


def _signed(function: Any, parameters: Sequence[Parameter], returns: Any = Signature.empty) -> Any:
    """Give a function of any arguments the signature that TensorRT reads names and types from."""
    function.__signature__ = Signature(parameters, return_annotation=returns)
    return function


def _dtype(desc: Any) -> DType:
    for dtype in _AUTOTUNE_NAMES:
        if dtype.tensorrt == desc.dtype.name:
            return dtype
    known = ", ".join(str(d.tensorrt) for d in _AUTOTUNE_NAMES)
    raise UsageError("plugin tensor", found=f"type {desc.dtype.name}", fix=f"Known: {known}")


def _tensorrt_type(like: Any, dtype: DType) -> Any:
    return getattr(type(like), str(dtype.tensorrt))


def _constant(table: Table, size: Any) -> int:
    if not size.is_constant:
        raise UsageError(
            f"{table.identifier} for TensorRT",
            found=f"a dynamic size {table.row}",
            fix="Give the last axis a fixed size: kernels are compiled for it",
        )
    return int(size.constant_value())
