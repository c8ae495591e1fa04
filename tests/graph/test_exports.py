"""Whole graphs as torch.onnx writes them: every one runs, equals ONNX Runtime in fp32, and stays near its exact self.

BLOCKFORGE_CORPUS names a folder of .onnx files to run as well (fp32, fp16 and bf16 exports of small models).
"""

import copy
import os
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
import transformers

from blockforge.graph.evaluator import TypedEvaluator
from blockforge.graph.type_names import DataType
from blockforge.graph.values import TORCH_TYPES

CORPUS = Path(os.environ.get("BLOCKFORGE_CORPUS", ""))
# Largest error over the largest output: fp32 graphs of this size lose some 1e-6; halves lose a few of their ulps per
# layer, over at most two layers.
NEAR = {"fp32": 2e-5, "fp16": 2e-2, "bf16": 0.15}


def feeds_for(model: ir.Model, batch: int = 1, sequence: int = 5) -> dict[str, torch.Tensor]:
    """Made-up inputs: the first named axis of an input is the batch, every other one the sequence."""
    generator = torch.Generator().manual_seed(0)
    feeds = {}
    for value in model.graph.inputs:
        shape = [
            d if isinstance(d, int) else batch if axis == 0 else sequence
            for axis, d in enumerate(value.shape)
        ]
        dtype = TORCH_TYPES[value.dtype]
        if dtype.is_floating_point:
            feeds[value.name] = torch.randn(shape, generator=generator).to(dtype)
        elif dtype == torch.bool or "mask" in value.name:
            feeds[value.name] = torch.ones(shape, dtype=dtype)
        elif "position" in value.name:
            feeds[value.name] = torch.arange(shape[-1]).expand(shape).contiguous()
        else:
            feeds[value.name] = torch.randint(0, 16, shape, generator=generator)
    return feeds


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference over the largest expected number."""
    assert actual.shape == expected.shape
    if not actual.is_floating_point():
        assert torch.equal(actual, expected)
        return 0.0
    scale = expected.double().abs().max().clamp(min=1e-3)
    return float((actual.double() - expected.double()).abs().max() / scale)


def check(proto: onnx.ModelProto, kind: str) -> None:
    model = ir.from_proto(proto)
    feeds = feeds_for(model)
    typed = TypedEvaluator(model).run(feeds)
    exact = TypedEvaluator(model, exact=True).run(feeds)
    for value in model.graph.outputs:
        assert typed.outputs[value.name].dtype == TORCH_TYPES[DataType(value.dtype)]
        assert (
            error(typed.outputs[value.name], exact.outputs[value.name].to(torch.float64))
            < NEAR[kind]
        )
    if kind == "fp32":
        session = ort.InferenceSession(
            proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        results = session.run(None, {name: t.numpy() for name, t in feeds.items()})
        for value, expected in zip(model.graph.outputs, results, strict=True):
            assert (
                error(typed.outputs[value.name], torch.from_numpy(np.asarray(expected)))
                < NEAR["fp32"]
            )


def corpus() -> list[Path]:
    return sorted(CORPUS.rglob("*.onnx")) if os.environ.get("BLOCKFORGE_CORPUS") else []


@pytest.mark.slow
@pytest.mark.skipif(not corpus(), reason="BLOCKFORGE_CORPUS names no folder with graphs")
def test_the_whole_corpus():
    wrong = {}
    for path in corpus():
        try:
            check(onnx.load(path), path.stem.rsplit("__", 1)[-1])
        except Exception as failure:
            wrong[path.name] = repr(failure)[:200]
    assert wrong == {}


TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
}
MODELS = {
    "llama": (
        transformers.LlamaForCausalLM,
        transformers.LlamaConfig(**TINY, num_key_value_heads=2),
    ),
    "gemma2": (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config(
            **TINY, num_key_value_heads=2, head_dim=8, attn_implementation="eager"
        ),
    ),
    "bert": (transformers.BertModel, transformers.BertConfig(**TINY)),
}


class _First(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, return_dict=False)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "opset"), [("llama", 20), ("llama", 23), ("gemma2", 23), ("bert", 20)]
)
def test_hugging_face_models_equal_torch(name, opset):
    """The dynamo exporter, dynamic sequence: the exact run equals the module in float64, the plain one in fp32."""
    kind, config = MODELS[name]
    torch.manual_seed(0)
    module = _First(kind(config)).eval()
    ids = torch.randint(0, 64, (1, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (ids,),
            dynamo=True,
            opset_version=opset,
            input_names=["input_ids"],
            dynamic_shapes=({1: torch.export.Dim.DYNAMIC},),
            verbose=False,
        )
    model = program.model
    longer = torch.randint(0, 64, (1, 9))
    with torch.no_grad():
        expected, truth = module(longer), copy.deepcopy(module).double()(longer)
    (plain,) = TypedEvaluator(model).run({"input_ids": longer}).outputs.values()
    assert error(plain, expected) < 1e-5
    (exact,) = TypedEvaluator(model, exact=True).run({"input_ids": longer}).outputs.values()
    assert error(exact, truth) < 1e-5  # the graph's own fp32 constants, the module's angles in fp32
