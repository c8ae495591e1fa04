"""Forms of Attention that TensorRT-RTX refuses or gets wrong: its words as they are, and what legalisation builds.

form -> refusal of the graph as it is, kernels of the legal graph
"""

import re
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx
from onnx import TensorProto, helper

from blockforge.core.errors import BuildError
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.legalize import RULES
from blockforge.engines.target import Target

TARGET = Target.parse("tensorrt-rtx:sm89")
FP16, FP32 = TensorProto.FLOAT16, TensorProto.FLOAT
Edges = dict[str, tuple[int, list[str | int | None]]]  # name -> type, dims
HEADS, SIZE = 4, 16
RANGES = {"b": (1, 2, 4), "s": (1, 3, 8), "p": (1, 5, 16), "t": (1, 8, 24)}
CUDA = re.compile(r";? \[checkMacros.*$")  # TensorRT-RTX adds that this machine has no driver


@dataclass(frozen=True, slots=True)
class Form:
    """One Attention node and what goes into it; mask is its shape; silent: what TensorRT does without a word."""

    name: str
    dtype: int = FP16
    size: int = SIZE
    value_size: int = SIZE
    opset: int = 24
    mask: tuple[str, ...] = ()
    cache: bool = False
    nonpad: bool = False
    inside_if: bool = False
    silent: str = ""
    attributes: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Limit:
    """What became of one form: TensorRT's refusal ("" where it builds), and the legal graph's kernels."""

    form: str
    refusal: str
    silent: str
    kernels: int | None
    legalized: tuple[str, ...]
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Limit":
        """The limit that to_json wrote."""
        return cls(**{**data, "legalized": tuple(data["legalized"])})


CAUSAL = (("is_causal", 1),)
FORMS = (
    Form("FP32", dtype=FP32, attributes=CAUSAL),
    Form("head size above 256 (here 320)", size=320, value_size=320, attributes=CAUSAL),
    Form("values of another head size than queries", value_size=2 * SIZE, attributes=CAUSAL),
    Form("softcap", attributes=(*CAUSAL, ("softcap", 50.0))),
    Form("mask and is_causal together", mask=("s", "s"), attributes=CAUSAL),
    Form("a window (opset 25)", opset=25, attributes=(*CAUSAL, ("left_window_size", 2)),
         silent="builds and ignores the window"),
    Form("past and present keys and values", cache=True, attributes=CAUSAL),
    Form("nonpad_kv_seqlen with is_causal", nonpad=True, attributes=CAUSAL,
         silent="builds and ignores the lengths"),
    Form("softmax_precision", attributes=(*CAUSAL, ("softmax_precision", FP32))),
    Form("inside a branch of If", inside_if=True, attributes=CAUSAL),
)  # fmt: skip


def run_forms(folder: Path) -> list[Limit]:
    """Every form, as it is and legalised, built under `folder`."""
    return [_run(form, folder / f"form-{index}") for index, form in enumerate(FORMS)]


def _run(form: Form, folder: Path) -> Limit:
    folder.mkdir(parents=True)
    path = folder / "model.onnx"
    onnx.save(graph_of(form), path)
    refusal = ""
    try:
        _compile(path, legalised=False)
    except BuildError as error:
        refusal = CUDA.sub("", error.found)
    failure = "" if refusal or form.silent else "builds as it is: the rule has become needless"
    try:
        kernels, legalized = _compile(path, legalised=True)
    except BuildError as error:
        return Limit(form.name, refusal, form.silent, None, (), f"legalised: {error.found}")
    return Limit(form.name, refusal, form.silent, kernels, legalized, failure)


def _compile(path: Path, *, legalised: bool) -> tuple[int | None, tuple[str, ...]]:
    model = onnx.load(path, load_external_data=False)
    profile = {}
    for value in model.graph.input:
        dims = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        sizes = [RANGES.get(d, (d, d, d)) for d in dims]
        profile[value.name] = ShapeRange(*(tuple(s[i] for s in sizes) for i in range(3)))
    as_it_is = patch.dict(RULES, {TARGET.runtime: ()})
    with nullcontext() if legalised else as_it_is:
        record = compile_engine(CompileRequest(path, TARGET, profile, path.parent))
    return record.kernels, record.legalized


def graph_of(form: Form) -> onnx.ModelProto:
    """The smallest graph that holds the form, [batch, heads, length, size], every value typed."""
    keys = "t" if form.nonpad else "s"
    edges: Edges = {
        "q": (form.dtype, ["b", HEADS, "s", form.size]),
        "k": (form.dtype, ["b", HEADS, keys, form.size]),
        "v": (form.dtype, ["b", HEADS, keys, form.value_size]),
    }
    names = ["q", "k", "v", "", "", "", ""]
    outputs: Edges = {"y": (form.dtype, ["b", HEADS, "s", form.value_size])}
    if form.mask:
        edges["mask"], names[3] = (form.dtype, list(form.mask)), "mask"
    if form.cache:
        names[4:6] = ["past_key", "past_value"]
        edges |= {n: (form.dtype, ["b", HEADS, "p", form.size]) for n in names[4:6]}
        outputs |= {
            n: (form.dtype, ["b", HEADS, "total", form.size])
            for n in ("present_key", "present_value")
        }
    if form.nonpad:
        edges["lengths"], names[6] = (TensorProto.INT64, ["b"]), "lengths"
    while not names[-1]:
        names.pop()
    node = helper.make_node("Attention", names, list(outputs), name="self_attn/Attention")
    node.attribute.extend(helper.make_attribute(k, value) for k, value in form.attributes)
    if form.inside_if:
        edges["use"] = (TensorProto.BOOL, [])
        node = _inside_if(node, outputs["y"])
    inputs, results = (
        [helper.make_tensor_value_info(name, dtype, dims) for name, (dtype, dims) in side.items()]
        for side in (edges, outputs)
    )
    model = helper.make_model(
        helper.make_graph([node], "form", inputs, results),
        opset_imports=[helper.make_opsetid("", form.opset)],
        ir_version=11,
    )
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def _inside_if(node: onnx.NodeProto, edge: tuple[int, list[str | int | None]]) -> onnx.NodeProto:
    """y = the node's result if use else v."""
    skip = helper.make_node("Identity", ["v"], ["skipped"], name="skip")
    node.output[0] = "attended"
    then, other = (
        helper.make_graph([n], name, [], [helper.make_tensor_value_info(n.output[0], *edge)])
        for n, name in ((node, "then"), (skip, "else"))
    )
    return helper.make_node("If", ["use"], ["y"], name="If", then_branch=then, else_branch=other)
