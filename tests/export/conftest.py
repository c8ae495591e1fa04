"""Exports of tiny presets, made once for all tests of the room."""

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import pytest

from blockforge.core.dtypes import DType
from blockforge.export.export import Exported, export_variant
from blockforge.graph.io import load_model
from blockforge.model.checkpoints import Checkpoint, preset_checkpoint


@dataclass(frozen=True)
class Case:
    checkpoint: Checkpoint
    layer: int | None
    precision: DType
    exported: Exported

    @property
    def path(self) -> Path:
        return self.exported.path

    @property
    def model(self) -> ir.Model:
        return load_model(self.path)


VARIANTS = {
    "decoder fp32": ("llama-tiny", None, DType.FP32, DType.FP32),
    "decoder fp16": ("llama-tiny", None, DType.FP16, DType.FP32),
    "untied fp32": ("llama-tiny-untied", None, DType.FP32, DType.FP32),
    "block fp16": ("llama-tiny", 1, DType.FP16, DType.FP32),
}


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    folder = tmp_path_factory.mktemp("exports")
    made = {}
    for name, (preset, layer, precision, io) in VARIANTS.items():
        checkpoint = preset_checkpoint(preset)
        target = folder / name.replace(" ", "-") / precision.value
        exported = export_variant(
            checkpoint, layer=layer, precision=precision, io=io, folder=target
        )
        made[name] = Case(checkpoint, layer, precision, exported)
    return made


@pytest.fixture(params=VARIANTS)
def case(request: pytest.FixtureRequest, cases: dict[str, Case]) -> Case:
    return cases[request.param]
