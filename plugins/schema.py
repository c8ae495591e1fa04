"""ONNX operator schemas, written from an operator's table."""

import onnx
from onnx.defs import OpSchema

from ..core.domain import DOMAIN, DOMAIN_VERSION
from ..core.dtypes import DType
from .table import Attribute, Table

_KINDS = {
    "float": OpSchema.AttrType.FLOAT,
    "int": OpSchema.AttrType.INT,
    "string": OpSchema.AttrType.STRING,
}
_ONNX_NAMES = {
    DType.FP64: "double",
    DType.FP32: "float",
    DType.FP16: "float16",
    DType.BF16: "bfloat16",
    DType.FP8_E4M3: "float8e4m3fn",
}


def schema_from_table(table: Table) -> OpSchema:
    """The schema of `blockforge::<name>`, inputs and outputs in the order the ONNX node has them."""
    return OpSchema(
        table.name,
        DOMAIN,
        DOMAIN_VERSION,
        doc=table.doc,
        inputs=[OpSchema.FormalParameter(t.name, t.type, f"[{t.shape}]") for t in table.inputs],
        outputs=[OpSchema.FormalParameter(t.name, t.type, f"[{t.shape}]") for t in table.outputs],
        attributes=[_attribute(a) for a in table.attributes],
        type_constraints=[
            (letter, [f"tensor({_ONNX_NAMES[d]})" for d in dtypes], "One type per letter.")
            for letter, dtypes in table.types.items()
        ],
    )


def _attribute(attribute: Attribute) -> OpSchema.Attribute:
    if attribute.default is None:
        return OpSchema.Attribute(attribute.name, _KINDS[attribute.kind], attribute.doc)
    default = onnx.helper.make_attribute(attribute.name, attribute.default)
    return OpSchema.Attribute(attribute.name, default, attribute.doc)
