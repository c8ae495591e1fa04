"""Clean exports that faults are planted in, made once: a decoder in fp16, two blocks of other families."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.export.export import export_variant
from blockforge.graph.io import load_model
from blockforge.model.build import load_module, signature
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.validate.divergence import GraphSide, ModuleSide

from .planted import weight

SOURCES = {
    "llama": ("llama-tiny", None, DType.FP16),
    "gemma": ("gemma-2-tiny", 0, DType.FP16),
    "bert": ("bert-tiny", 0, DType.FP32),
    "qwen": ("qwen3-tiny", 1, DType.BF16),
}
LOUD = {  # weights made larger on both sides, so that a fault shows beside the rounding of the type
    "loud": ("llama", {"embed_tokens.weight": 20000}),
    "overflow": (
        "llama",
        {"layers.0.mlp.gate_proj.weight": 400, "layers.0.mlp.up_proj.weight": 400},
    ),
    "gemma": ("gemma", {"layers.0.self_attn.q_proj.weight": 40}),
    "long": ("llama", {}),
}
SHAPES = {"long": {"input_ids": (1, 400)}}


@pytest.fixture(scope="session")
def exports(shared_folder: Callable) -> Callable[[str], Path]:
    """The ONNX file of a source by its name, exported at the first call."""

    def export(name: str) -> Path:
        preset, layer, precision = SOURCES[name]

        def make(folder: Path) -> None:
            checkpoint = preset_checkpoint(preset)
            export_variant(
                checkpoint, layer=layer, precision=precision, io=DType.FP32, folder=folder
            )

        (path,) = shared_folder(f"export-{name}", make).glob("*.onnx")
        return path

    return export


@pytest.fixture(scope="session")
def clean(exports: Callable[[str], Path]) -> Callable[[str], GraphSide]:
    """A fresh clean graph by its name in faults.py."""

    def graph(name: str) -> GraphSide:
        source, factors = LOUD.get(name, (name, {}))
        model = load_model(exports(source))
        for weight_name, factor in factors.items():
            weight(weight_name, lambda w, factor=factor: w * np.array(factor, w.dtype))(model)
        return GraphSide(f"clean {name}", model)

    return graph


@pytest.fixture(scope="session")
def module() -> Callable[[str], ModuleSide]:
    """The PyTorch reference of an export."""

    def side(name: str) -> ModuleSide:
        preset, layer, _ = SOURCES[name]
        checkpoint = preset_checkpoint(preset)
        inputs, outputs = signature(checkpoint.config, layer, DType.FP32)
        names = frozenset(checkpoint.names())
        return ModuleSide(
            label=f"{preset} in PyTorch",
            load=lambda dtype: load_module(checkpoint, layer=layer, dtype=dtype),
            inputs=inputs,
            outputs=tuple(o.name for o in outputs),
            read=lambda n: checkpoint.read(n, torch.float64) if n in names else None,
        )

    return side


@pytest.fixture(scope="session")
def planted_in(clean: Callable[[str], GraphSide]) -> Callable[[str, Callable], GraphSide]:
    """A graph with an edit made in it."""

    def graph(name: str, edit: Callable[[ir.Model], None]) -> GraphSide:
        side = clean(name)
        edit(side.model)
        return GraphSide(f"faulty {name}", side.model)

    return graph
