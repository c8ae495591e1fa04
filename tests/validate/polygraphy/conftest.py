"""Two tiny bundles with their polygraphy folders: a decoder in fp32 and fp16, a block in bf16."""

import pytest

from blockforge.core.bundle import Bundle, seal
from blockforge.core.dtypes import DType, dtype_from_name
from blockforge.core.manifest import Manifest, RangeRecord, VariantRecord
from blockforge.core.shapes import ShapeRange
from blockforge.export.export import export_variant
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.validate.inputs import InputPlan
from blockforge.validate.judge import truth_for
from blockforge.validate.limits import Limits
from blockforge.validate.polygraphy.write import write_polygraphy

LIMITS = Limits(max_error_over_floor=3.0)
IDS = {"input_ids": ShapeRange((1, 1), (1, 8), (2, 32))}
STATES = {"hidden_states": ShapeRange((1, 1, 64), (1, 8, 64), (2, 32, 64))}


def finished(folder, *, layer, precisions, io, profile):
    """A bundle of the tiny preset's graphs, with the folder that the tests are about."""
    checkpoint = preset_checkpoint("llama-tiny", seed=0)
    variants = []
    for name in precisions:
        precision = dtype_from_name(name)
        done = export_variant(
            checkpoint,
            layer=layer,
            precision=precision,
            io=io or precision,
            folder=folder / name,
        )
        variants.append(
            VariantRecord(
                precision=name,
                model=f"{name}/{done.path.name}",
                opset=done.opset,
                inputs=done.summary.inputs,
                outputs=done.summary.outputs,
                profile={
                    key: RangeRecord(min=r.min, opt=r.opt, max=r.max) for key, r in profile.items()
                },
                operators=done.summary.operators,
                dtypes=done.summary.dtypes,
                num_blocks=1,
            )
        )
    manifest = Manifest(
        name="tiny", created="2026-01-01T00:00:00", recipe={}, tools={}, variants=tuple(variants)
    )
    truth = truth_for(checkpoint, layer=layer, profile=profile, plan=InputPlan())
    files = write_polygraphy(folder, manifest, truth, dict.fromkeys(precisions, LIMITS))
    seal(folder, manifest)
    return Bundle.open(folder), truth, files


@pytest.fixture(scope="session")
def decoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("decoder")
    return finished(folder, layer=None, precisions=["fp32", "fp16"], io=DType.FP32, profile=IDS)


@pytest.fixture(scope="session")
def block(tmp_path_factory):
    folder = tmp_path_factory.mktemp("block")
    return finished(folder, layer=1, precisions=["bf16", "fp32"], io=None, profile=STATES)
