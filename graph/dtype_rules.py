"""Which element type each output of a node has, from ONNX's own operator schemas.

    (operator, opset, attributes, input types) -> output types

An output whose type variable also types an input has that input's type (Add: T -> T); one with a single allowed
type has it (Shape: int64); the others are decided by an attribute, listed in BY_ATTRIBUTE.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir
from onnx.defs import OpSchema

from ..core.errors import UsageError
from .type_names import DataType, type_name

Types = tuple[DataType | None, ...]

# (operator, output) -> the attribute that names the type, and what it is where the attribute is absent: a
# type, or the position of the input it is copied from.
BY_ATTRIBUTE: dict[tuple[str, int], tuple[str, DataType | int]] = {
    ("Cast", 0): ("to", DataType.UNDEFINED),
    ("BitCast", 0): ("to", DataType.UNDEFINED),
    ("DequantizeLinear", 0): ("output_dtype", 1),
    ("QuantizeLinear", 0): ("output_dtype", 2),
    ("LayerNormalization", 1): ("stash_type", DataType.FLOAT),
    ("LayerNormalization", 2): ("stash_type", DataType.FLOAT),
    ("EyeLike", 0): ("dtype", 0),
    ("Bernoulli", 0): ("dtype", 0),
    ("RandomNormalLike", 0): ("dtype", 0),
    ("RandomUniformLike", 0): ("dtype", 0),
    ("RandomNormal", 0): ("dtype", DataType.FLOAT),
    ("RandomUniform", 0): ("dtype", DataType.FLOAT),
    ("Multinomial", 0): ("dtype", DataType.INT32),
    ("HannWindow", 0): ("output_datatype", DataType.FLOAT),
    ("HammingWindow", 0): ("output_datatype", DataType.FLOAT),
    ("BlackmanWindow", 0): ("output_datatype", DataType.FLOAT),
    ("MelWeightMatrix", 0): ("output_datatype", DataType.FLOAT),
}
_DEFAULT_TYPES = {"QuantizeLinear": DataType.UINT8}  # where the input to copy from is absent
_NAMES = {
    "float": DataType.FLOAT,
    "double": DataType.DOUBLE,
    **{
        dtype.name.lower(): dtype
        for dtype in DataType
        if dtype not in (DataType.FLOAT, DataType.DOUBLE, DataType.UNDEFINED)
    },
}


@dataclass(frozen=True, slots=True)
class Operation:
    """What decides the output types of a node, besides the types of its inputs."""

    name: str
    domain: str
    version: int  # of the domain, as the model imports it
    attributes: Mapping[str, ir.Attr]
    num_outputs: int


@functools.cache
def schema_of(name: str, domain: str, version: int) -> OpSchema | None:
    """ONNX's schema that `version` of the domain gives this operator; None where ONNX knows none."""
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


@functools.cache
def first_version(name: str, domain: str) -> int | None:
    """The earliest version of the domain that has this operator; None where ONNX does not know it."""
    return _first_versions().get((domain, name))


@functools.cache
def _first_versions() -> dict[tuple[str, str], int]:
    first: dict[tuple[str, str], int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        key = (schema.domain, schema.name)
        first[key] = min(first.get(key, schema.since_version), schema.since_version)
    return first


@dataclass(frozen=True, slots=True)
class Formal:
    """What a schema says of one input or output; allowed: the tensor types it takes, none where it takes something else too."""

    name: str
    type_str: str
    variadic: bool
    single: bool
    homogeneous: bool
    allowed: tuple[DataType, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """A schema, read once. attributes: name -> its kind; required: those without which the node means nothing."""

    name: str
    since: int
    deprecated: bool
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    num_inputs: tuple[int, int]
    num_outputs: tuple[int, int]
    attributes: Mapping[str, ir.AttributeType]
    required: tuple[str, ...]


@functools.cache
def signature_of(name: str, domain: str, version: int) -> Signature | None:
    """schema_of in Python's own objects: reading ONNX's costs microseconds a field, which 10^5 nodes would pay each."""
    schema = schema_of(name, domain, version)
    if schema is None:
        return None
    return Signature(
        name=schema.name,
        since=schema.since_version,
        deprecated=schema.deprecated,
        inputs=tuple(map(_formal, schema.inputs)),
        outputs=tuple(map(_formal, schema.outputs)),
        num_inputs=(schema.min_input, schema.max_input),
        num_outputs=(schema.min_output, schema.max_output),
        attributes={
            key: ir.AttributeType[str(a.type).rpartition(".")[2]]
            for key, a in schema.attributes.items()
        },
        required=tuple(key for key, a in schema.attributes.items() if a.required),
    )


def _formal(formal: OpSchema.FormalParameter) -> Formal:
    option = OpSchema.FormalParameterOption
    return Formal(
        formal.name,
        formal.type_str,
        formal.option == option.Variadic,
        formal.option == option.Single,
        formal.is_homogeneous,
        tuple(_allowed(formal)),
    )


def output_types(operation: Operation, inputs: Types, *, strict: bool = False) -> Types:
    """The element types of the outputs; None where the rules leave one open (sequences, control flow).

    inputs: types by position, None for an absent input or an unknown type. strict: also check that the
    schema allows each input's type at this opset.
    Raises UsageError where one type variable would stand for two types.
    """
    schema = signature_of(operation.name, operation.domain, operation.version)
    if schema is None:
        return (None,) * operation.num_outputs
    bound = _bind(schema, inputs, strict)
    return tuple(
        _output_type(operation, schema, bound, inputs, index)
        for index in range(operation.num_outputs)
    )


def _bind(schema: Signature, inputs: Types, strict: bool) -> dict[str, DataType]:
    """What each type variable of the schema stands for."""
    bound: dict[str, DataType] = {}
    for index, dtype in enumerate(inputs):
        if not schema.inputs or dtype is None:
            continue
        formal = schema.inputs[min(index, len(schema.inputs) - 1)]
        if index >= len(schema.inputs) and not formal.variadic:
            continue
        if strict and (allowed := formal.allowed) and dtype not in allowed:
            raise UsageError(
                f"input {formal.name} of {schema.name}",
                found=f"{type_name(dtype)}",
                fix=f"Version {schema.since} of it takes {_listed(allowed)}",
            )
        if not formal.homogeneous:
            continue
        known = bound.setdefault(formal.type_str, dtype)
        if known != dtype:
            raise UsageError(
                f"input {formal.name} of {schema.name}",
                found=f"{type_name(dtype)} beside {type_name(known)}",
                fix=f"All inputs of type {formal.type_str} must have one type: insert a Cast",
            )
    return bound


def _output_type(
    operation: Operation, schema: Signature, bound: dict[str, DataType], inputs: Types, index: int
) -> DataType | None:
    if operation.name in ("Constant", "ConstantOfShape"):
        return _constant_type(operation)
    if rule := BY_ATTRIBUTE.get((operation.name, index)):
        return _by_attribute(operation, inputs, *rule)
    if not schema.outputs:
        return None
    formal = schema.outputs[min(index, len(schema.outputs) - 1)]
    if formal.type_str in bound and formal.homogeneous:
        return bound[formal.type_str]
    return formal.allowed[0] if len(formal.allowed) == 1 else None


def _by_attribute(
    operation: Operation, inputs: Types, name: str, default: DataType | int
) -> DataType | None:
    attribute = operation.attributes.get(name)
    if attribute is not None and attribute.as_int() != 0:
        return DataType(attribute.as_int())
    if isinstance(default, DataType):
        return default
    found = inputs[default] if default < len(inputs) else None
    return found or _DEFAULT_TYPES.get(operation.name)


def _constant_type(operation: Operation) -> DataType | None:
    for name, attribute in operation.attributes.items():
        if name == "value":
            tensor: ir.TensorProtocol = attribute.as_tensor()
            return tensor.dtype
        if name.startswith("value_"):
            kinds = {"float": DataType.FLOAT, "int": DataType.INT64, "string": DataType.STRING}
            return kinds[name.removeprefix("value_").removesuffix("s")]
    return DataType.FLOAT if operation.name == "ConstantOfShape" else None


def _allowed(formal: OpSchema.FormalParameter) -> Sequence[DataType]:
    """The tensor types that a formal parameter takes; empty where it takes something else too."""
    types = []
    for text in sorted(formal.types):
        if not text.startswith("tensor("):
            return ()
        types.append(_NAMES[text.removeprefix("tensor(").removesuffix(")")])
    return types


def _listed(types: Sequence[DataType]) -> str:
    return ", ".join(type_name(t) for t in types)
