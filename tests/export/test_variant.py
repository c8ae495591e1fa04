"""The exported variant: its operators, names, types and bytes, and its numbers in another runtime."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.core.errors import ArtefactError, UsageError
from blockforge.export.export import export_variant
from blockforge.graph.spec import check_graph
from blockforge.model.build import load_module
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.model.checkpoints.protocol import as_finite

from .conftest import Case

SIZES = [(1, 1), (1, 2), (2, 3), (3, 7), (2, 64)]
PER_BLOCK = {
    "RMSNormalization": 2,
    "MatMul": 7,
    "RotaryEmbedding": 2,
    "Attention": 1,
    "blockforge::SwiGLU": 1,
    "Add": 2,
}
POSITIONS = Counter(
    {"Shape": 2}
    | dict.fromkeys(("Squeeze", "Range", "Expand", "Cast", "Unsqueeze", "Mul", "Cos", "Sin"), 1)
)


def designed(case: Case) -> dict[str, int]:
    """The operators that the design asks for, written by hand."""
    whole = case.layer is None
    blocks = case.checkpoint.config.num_layers if whole else 1
    counts = Counter({op: n * blocks for op, n in PER_BLOCK.items()}) + POSITIONS
    if whole:
        counts += Counter(["Gather", "RMSNormalization", "MatMul"])
        counts["Transpose"] += case.checkpoint.config.tie_word_embeddings
    if case.precision is not DType.FP32:
        counts["Cast"] += 2  # cosines and sines
        record = case.exported.summary.outputs[0]
        edges = 1 if whole else 2
        counts["Cast"] += edges * (record.dtype != case.precision.value)
    return {op: n for op, n in counts.items() if n}


def test_operators_are_exactly_those_of_the_design(case: Case):
    assert case.exported.summary.operators == designed(case)


def test_the_file_passes_the_spec_and_onnx_checker(case: Case):
    check_graph(case.model)
    onnx.checker.check_model(str(case.path), full_check=True)
    assert dict(case.model.opset_imports) == {"": 24, "blockforge": 1}


def test_inputs_and_outputs_are_typed_with_named_axes(cases: dict[str, Case]):
    def ends(name: str) -> tuple:
        summary = cases[name].exported.summary
        return tuple((r.name, r.dtype, r.dims) for r in (*summary.inputs, *summary.outputs))

    axes = ("batch", "sequence")
    assert ends("decoder fp16") == (
        ("input_ids", "int64", axes),
        ("logits", "fp32", (*axes, 256)),
    )
    assert ends("block fp16") == (
        ("hidden_states", "fp32", (*axes, 64)),
        ("output", "fp32", (*axes, 64)),
    )


def test_every_value_has_a_type_and_a_shape_in_terms_of_the_axes(case: Case):
    values = [o for node in case.model.graph for o in node.outputs]
    assert all(v.dtype is not None and v.shape is not None for v in values)
    symbols = {str(d.value) for v in values for d in v.shape if not isinstance(d, int)}
    assert symbols <= {"batch", "sequence"}


def test_16_bit_graphs_keep_angles_in_fp32(cases: dict[str, Case]):
    dtypes = {v.name: v.dtype for n in cases["decoder fp16"].model.graph for v in n.outputs}
    wide = {name for name, dtype in dtypes.items() if dtype == ir.DataType.FLOAT}
    assert wide == {f"rotary_emb/{n}" for n in ("cast", "unsqueeze", "mul", "cos", "sin")} | {
        "logits"
    }
    norms = [n for n in cases["decoder fp16"].model.graph if n.op_type == "RMSNormalization"]
    assert {n.attributes.get_int("stash_type") for n in norms} == {1}


def test_names_follow_the_module_tree(cases: dict[str, Case]):
    graph = cases["decoder fp32"].model.graph
    made = {str(n.name): str(n.outputs[0].name) for n in graph}
    layer = "layers.1"
    expected = {
        "embed_tokens/Gather": "embed_tokens",
        "rotary_emb/Cos": "rotary_emb/cos",
        f"{layer}.input_layernorm/RMSNormalization": f"{layer}.input_layernorm",
        f"{layer}.self_attn.q_proj/MatMul": f"{layer}.self_attn.q_proj",
        f"{layer}.self_attn/RotaryEmbedding": f"{layer}.self_attn/rotary_embedding",
        f"{layer}.self_attn/RotaryEmbedding_1": f"{layer}.self_attn/rotary_embedding_1",
        f"{layer}.self_attn/Attention": f"{layer}.self_attn/attention",
        f"{layer}/Add": f"{layer}/add",
        f"{layer}.mlp/SwiGLU": f"{layer}.mlp/swiglu",
        f"{layer}.mlp.down_proj/MatMul": f"{layer}.mlp.down_proj",
        f"{layer}/Add_1": layer,
        "norm/RMSNormalization": "norm",
        "lm_head/MatMul": "logits",
    }
    assert expected.items() <= made.items()
    block = cases["block fp16"].model.graph
    assert [n.name for n in block if n.op_type == "Attention"] == ["layers.1.self_attn/Attention"]


def test_names_are_unique(case: Case):
    graph = case.model.graph
    nodes = [n.name for n in graph]
    values = [v.name for v in (*graph.inputs, *graph.initializers.values())]
    values += [o.name for n in graph for o in n.outputs]
    assert len(set(nodes)) == len(nodes) and len(set(values)) == len(values)


def test_initializers_are_the_parameters_stored_as_their_matmul_reads_them(case: Case):
    module = load_module(case.checkpoint, layer=case.layer, dtype=case.precision.torch)
    graph = case.model.graph
    stored = {
        name: value.const_value.numpy()
        for name, value in graph.initializers.items()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    expected = {name: p.numpy() for name, p in module.named_parameters()}
    assert stored.keys() == expected.keys()
    for name, weight in expected.items():
        turned = weight.ndim == 2 and name != "embed_tokens.weight"
        np.testing.assert_array_equal(stored[name], weight.T if turned else weight, err_msg=name)


def test_a_tied_head_is_stored_once(cases: dict[str, Case]):
    case = cases["decoder fp16"]
    module = load_module(case.checkpoint, dtype=torch.float16)
    pages = [-(-p.nbytes // 4096) * 4096 for p in module.parameters()]
    size = case.path.with_name("model.onnx.data").stat().st_size
    assert sum(pages) - 4096 < size <= sum(pages)
    assert "lm_head.weight" not in case.model.graph.initializers


def test_files_tell_nothing_of_the_machine(case: Case):
    content = case.path.read_bytes()
    here = [str(Path.home()), str(Path.cwd()), str(case.path.parent), "site-packages"]
    for trace in (*here, "pkg.torch", ".py", "namespace", "decoder.Decoder"):
        assert trace.encode() not in content, trace
    assert sorted(p.name for p in case.path.parent.iterdir()) == ["model.onnx", "model.onnx.data"]


def feed(case: Case, batch: int, sequence: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch * 100 + sequence)
    config = case.checkpoint.config
    if case.layer is None:
        return torch.randint(config.vocab_size, (batch, sequence), generator=generator)
    return torch.randn((batch, sequence, config.hidden_size), generator=generator).to(dtype)


@pytest.mark.parametrize("name", ["decoder fp32", "untied fp32"])
def test_onnxruntime_computes_what_torch_computes(cases: dict[str, Case], name: str):
    """Both in float32, each summing in its own order.

    A sum of K products in float32 is off by less than K eps of its terms, sqrt(K) eps when they fall at random; two
    blocks chain some 20 such steps. 20 sqrt(192) eps = 3e-5 of the output's RMS.
    """
    case = cases[name]
    session = onnxruntime.InferenceSession(case.path, providers=["CPUExecutionProvider"])
    module = load_module(case.checkpoint, dtype=torch.float32)
    for batch, sequence in SIZES:
        ids = feed(case, batch, sequence, torch.int64)
        (actual,) = session.run(None, {"input_ids": ids.numpy()})
        with torch.no_grad():
            expected = module(ids).numpy()
        rms = np.sqrt(np.mean(expected.astype(np.float64) ** 2))
        assert actual.shape == expected.shape
        assert np.abs(actual - expected).max() < 3e-5 * rms, (batch, sequence)


def test_the_export_says_where_it_was_verified(cases: dict[str, Case]):
    exported = cases["decoder fp16"].exported
    sizes = [(s["batch"], s["sequence"]) for s in exported.verified.sizes]
    assert sizes == [(1, 1), (1, 2), (2, 3), (3, 7), (2, 512)]
    assert exported.verified.worst < 1e-4
    assert [d.name for d in exported.passes][-1] == "finish"


RTX = """
import sys, onnx, onnx.inliner, tensorrt_rtx as trt
model = onnx.inliner.inline_local_functions(onnx.load(sys.argv[1]))
if sys.argv[2] == "fp32":  # no fused fp32 attention kernel exists
    for node in model.graph.node:
        if node.op_type == "Attention":
            node.attribute.append(onnx.helper.make_attribute("TRT_decomposable", 1))
logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
network = builder.create_network(0)
parser = trt.OnnxParser(network, logger)
assert parser.parse(model.SerializeToString()), parser.get_error(0).desc()
config = builder.create_builder_config()
config.num_compute_capabilities = 1
config.set_compute_capability(trt.ComputeCapability.SM89, 0)
source, profile = network.get_input(0), builder.create_optimization_profile()
rest = tuple(source.shape)[2:]
profile.set_shape(source.name, (1, 1, *rest), (1, 32, *rest), (2, 64, *rest))
assert config.add_optimization_profile(profile) >= 0
plan = builder.build_serialized_network(network, config)
assert plan is not None and plan.nbytes > 0
"""


@pytest.mark.parametrize("name", ["decoder fp32", "decoder fp16", "block fp16"])
def test_tensorrt_rtx_builds_it(cases: dict[str, Case], name: str):
    pytest.importorskip("tensorrt_rtx")
    case = cases[name]
    done = subprocess.run(
        [sys.executable, "-c", RTX, str(case.path), case.precision.value],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]


class Recording:
    """A checkpoint that says when it was read, and can hold bad numbers."""

    def __init__(self, bad: dict[str, float] | None = None) -> None:
        self.inner, self.bad = preset_checkpoint("llama-tiny"), bad or {}
        self.source, self.config = self.inner.source, self.inner.config
        self.log: list[str] = []

    def read(self, name: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        self.log.append(name)
        if name in self.bad:
            found = f"{name} holds {self.bad[name]}"
            raise ArtefactError(f"weights of {self.source}", found=found, fix="fix it")
        return self.inner.read(name, dtype)

    def __getattr__(self, name: str):
        return getattr(self.inner, name)


def test_weights_are_read_once_each_and_only_to_be_written(tmp_path):
    checkpoint = Recording()
    export_variant(
        checkpoint,
        layer=0,
        precision=DType.FP32,
        io=DType.FP32,
        folder=tmp_path / "fp32",
        progress=lambda step: checkpoint.log.append(step.stage),
    )
    reads = [n for n in checkpoint.log if n.startswith("layers.0")]
    assert sorted(reads) == sorted(set(reads)) and len(reads) == 9
    assert checkpoint.log[0] == "capture" and checkpoint.log[-1] == "verify"
    assert checkpoint.log.index(reads[0]) > checkpoint.log.index("write weights")


def test_bad_weights_are_one_error_that_names_them_all_and_leaves_nothing(tmp_path):
    bad = {f"layers.0.{part}.weight": float("nan") for part in ("mlp.up_proj", "self_attn.q_proj")}
    with pytest.raises(ArtefactError, match="2 tensors") as caught:
        export_variant(
            Recording(bad),
            layer=None,
            precision=DType.FP16,
            io=DType.FP16,
            folder=tmp_path / "new" / "fp16",
        )
    assert all(name in str(caught.value) for name in bad)
    assert not any((tmp_path / "new").iterdir())


def test_values_beyond_fp16_are_named(tmp_path):
    checkpoint = Recording()
    read = checkpoint.inner.read

    class Large(Recording):
        def read(self, name, dtype=torch.float32):
            if name == "norm.weight":
                return as_finite(read(name) * 1e6, dtype, name, "here")
            return read(name, dtype)

    args = {"layer": None, "io": DType.FP32}
    with pytest.raises(ArtefactError, match=r"norm\.weight holds .*6.55e\+04"):
        export_variant(Large(), precision=DType.FP16, folder=tmp_path / "fp16", **args)
    assert not list(tmp_path.iterdir())
    export_variant(Large(), precision=DType.FP32, folder=tmp_path / "fp32", **args)  # near miss


def test_an_unwritable_folder_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="cannot write"):
        export_variant(
            preset_checkpoint("llama-tiny"),
            layer=0,
            precision=DType.FP32,
            io=DType.FP32,
            folder=tmp_path / "file" / "fp32",
        )
