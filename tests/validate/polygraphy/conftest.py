"""Two tiny bundles with their polygraphy folders: the room's decoder in fp32 and fp16, a block in bf16."""

import pytest

from blockforge.core.bundle import Bundle, seal
from blockforge.core.dtypes import dtype_from_name
from blockforge.core.manifest import Manifest, RangeRecord, VariantRecord
from blockforge.core.shapes import ShapeRange
from blockforge.export.export import export_variant
from blockforge.model.checkpoints import preset_checkpoint
from blockforge.validate.inputs import InputPlan
from blockforge.validate.judge import truth_for
from blockforge.validate.limits import Limits
from blockforge.validate.polygraphy.write import write_polygraphy

LIMITS = Limits(max_error_over_floor=3.0)
IDS = {"input_ids": ShapeRange((1, 1), (1, 16), (4, 64))}
STATES = {"hidden_states": ShapeRange((1, 1, 64), (1, 8, 64), (2, 32, 64))}


def finished(folder, truth, *, layer, precisions, profile):
    """A bundle of the tiny preset's graphs, with the folder that the tests are about."""
    checkpoint = preset_checkpoint("llama-tiny")
    variants = []
    for name in precisions:
        precision = dtype_from_name(name)
        done = export_variant(
            checkpoint,
            layer=layer,
            precision=precision,
            io=precision,
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
    write_polygraphy(folder, manifest, truth, dict.fromkeys(precisions, LIMITS))
    seal(folder, manifest)


def with_files(folder, truth):
    """(bundle, truth, the files of its polygraphy folder)."""
    bundle = Bundle.open(folder)
    return bundle, truth, [f for f in bundle.manifest.files if f.startswith("polygraphy/")]


@pytest.fixture(scope="session")
def decoder(tiny_bundle):
    checkpoint = preset_checkpoint("llama-tiny")
    truth = truth_for(checkpoint, layer=None, profile=IDS, plan=InputPlan())
    return with_files(tiny_bundle.path, truth)


@pytest.fixture(scope="session")
def block(shared_folder):
    options = {"layer": 1, "profile": STATES}
    truth = truth_for(preset_checkpoint("llama-tiny"), **options, plan=InputPlan())

    def make(folder):
        folder.mkdir()
        finished(folder, truth, precisions=["bf16"], **options)

    return with_files(shared_folder("block", make), truth)
