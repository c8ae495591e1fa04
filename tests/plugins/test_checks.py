"""What an operator refuses, and in which words: everything comes from its table."""

import pytest
from plugin_samples import NAMES

from blockforge.core.dtypes import DType
from blockforge.core.errors import UsageError
from blockforge.plugins.checks import Given, check_attributes, check_call, check_scale
from blockforge.plugins.registry import plugin_named
from blockforge.plugins.schema import schema_from_table
from blockforge.plugins.table import MAX_ROW, markdown

F16, F32, FP8 = DType.FP16, DType.FP32, DType.FP8_E4M3
TABLE = plugin_named("AddRMSNormQuantize").table
EPSILON = {"epsilon": 1e-5}


def call(**changes):
    """A good call of AddRMSNormQuantize with some inputs replaced."""
    given = {
        "x": Given(F16, (2, 3, 64), (192, 64, 1)),
        "skip": Given(F16, (2, 3, 64)),
        "weight": Given(F32, (64,)),
        "scale": Given(F32, ()),
    }
    given |= changes
    return list(given.values())


def test_a_good_call_passes():
    assert check_call(TABLE, call(), EPSILON) == {"...": (2, 3), "N": 64}


NEAR_MISSES = {
    "wrong dtype": (
        {"x": Given(DType.FP64, (2, 3, 64))},
        "'x': dtype fp64. Allowed: fp32, fp16, bf16",
    ),
    "FP8 in": ({"weight": Given(FP8, (64,))}, "'weight': dtype fp8_e4m3"),
    "mixed dtypes": ({"skip": Given(F32, (2, 3, 64))}, "'skip': dtype fp32, but 'x' is fp16"),
    "weight of rank 2": ({"weight": Given(F32, (1, 64))}, r"'weight': shape \(1, 64\) \(rank 2\)"),
    "x of rank 0": ({"x": Given(F16, ())}, r"'x': shape \(\) \(rank 0\)"),
    "scale per channel": ({"scale": Given(F32, (64,))}, r"'scale': shape \(64,\) \(rank 1\)"),
    "broadcast": ({"skip": Given(F16, (1, 3, 64))}, r"leading axes \(1, 3\)"),
    "lower rank": ({"skip": Given(F16, (3, 64))}, r"leading axes \(3,\)"),
    "another row": ({"weight": Given(F32, (63,))}, "axis 0 is 63"),
    "transposed": ({"x": Given(F16, (2, 3, 64), (192, 1, 3))}, r"strides \(192, 1, 3\)"),
    "every second element": ({"x": Given(F16, (2, 3, 64), (384, 128, 2))}, "contiguous"),
}


@pytest.mark.parametrize(("changes", "words"), NEAR_MISSES.values(), ids=NEAR_MISSES)
def test_near_misses(changes, words):
    with pytest.raises(UsageError, match=words):
        check_call(TABLE, call(**changes), EPSILON)


def test_stride_of_an_axis_of_one_element_does_not_matter():
    one = {"x": Given(F16, (1, 1, 64), (7, 999, 1)), "skip": Given(F16, (1, 1, 64))}
    assert check_call(TABLE, call(**one), EPSILON)


@pytest.mark.parametrize("row", [MAX_ROW, MAX_ROW + 1, 0])
def test_row_length(row):
    given = [Given(F16, (2, row)), Given(F16, (2, row)), Given(F16, (row,)), Given(F16, ())]
    if row == MAX_ROW:
        assert check_call(TABLE, given, EPSILON)["N"] == row
        return
    with pytest.raises(UsageError, match=f"rows of {row}. Rows may have 1 to 65536"):
        check_call(TABLE, given, EPSILON)


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"epsilon": -1e-6}, "-1e-06. It must be finite, 0 or more"),
        ({"epsilon": float("nan")}, "nan. It must be finite"),
        ({"epsilon": float("inf")}, "inf. It must be finite"),
        ({"epsilon": 1e-5, "epsilon_outside": -0.1}, "'epsilon_outside': -0.1"),
        ({"epsilon": 1e-5, "weight_offset": 0.5}, "0.5. Allowed: 0.0, 1.0"),
        ({"epsilon": "small"}, "'small'. It is of kind float"),
        ({"eps": 1e-5}, "'eps': no such attribute. Known: epsilon,"),
        ({}, "'epsilon': missing"),
    ],
)
def test_attributes(attributes, words):
    with pytest.raises(UsageError, match=words):
        check_attributes(TABLE, attributes)


def test_attributes_that_are_choices_or_counts():
    assert check_attributes(TABLE, {"epsilon": 0.0})["epsilon"] == 0.0
    with pytest.raises(UsageError, match="Allowed: none, tanh"):
        check_attributes(plugin_named("GeGLU").table, {"approximate": "sigmoid"})
    rope = plugin_named("QKNormRope").table
    with pytest.raises(UsageError, match="of kind int"):
        check_attributes(rope, {"q_num_heads": 2.5, "kv_num_heads": 1, "epsilon": 0.0})


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2.0**-127, 1e39])
def test_a_known_scale_that_cannot_be(scale):
    with pytest.raises(UsageError, match="A scale is positive and finite"):
        check_scale(TABLE, scale)


@pytest.mark.parametrize("scale", [2.0**-126, 0.01, 448.0])
def test_a_scale_that_can(scale):
    assert check_scale(TABLE, scale) == scale


def test_packed_rows_and_heads():
    packed = plugin_named("SwiGLUPacked").table
    assert check_call(packed, [Given(F16, (4, 10))], {})["N"] == 5
    with pytest.raises(UsageError, match="axis 1 is 11"):
        check_call(packed, [Given(F16, (4, 11))], {})
    rope = plugin_named("QKNormRope").table
    attributes = {"q_num_heads": 3, "kv_num_heads": 1, "epsilon": 0.0}
    shapes = [(2, 5, 24), (2, 5, 8), (8,), (8,), (2, 5, 4), (2, 5, 4)]
    assert check_call(rope, [Given(F16, s) for s in shapes], attributes)["D"] == 8
    for index, wrong in (
        (0, (2, 5, 25)),
        (1, (2, 5, 16)),
        (2, (4,)),
        (4, (2, 5, 8)),
        (5, (2, 6, 4)),
    ):
        changed = [*shapes[:index], wrong, *shapes[index + 1 :]]
        with pytest.raises(UsageError, match=rope.inputs[index if index else 0].name[:1]):
            check_call(rope, [Given(F16, s) for s in changed], attributes)
    odd = [(2, 5, 21), (2, 5, 7), (7,), (7,), (2, 5, 3), (2, 5, 3)]
    with pytest.raises(UsageError, match="cos"):
        check_call(rope, [Given(F16, s) for s in odd], attributes)


@pytest.mark.parametrize("name", NAMES)
def test_schema_and_documentation_say_what_the_table_says(name):
    table = plugin_named(name).table
    schema = schema_from_table(table)
    text = markdown(table)
    for tensor, formal in zip(table.tensors, [*schema.inputs, *schema.outputs], strict=True):
        constraint = next(c for c in schema.type_constraints if c.type_param_str == formal.type_str)
        assert len(constraint.allowed_type_strs) == len(table.types[tensor.type])
        assert f"| [{tensor.shape}] | {tensor.type}: " in text
    for attribute in table.attributes:
        assert schema.attributes[attribute.name].required == (attribute.default is None)
        assert f"| {attribute.name} | " in text
