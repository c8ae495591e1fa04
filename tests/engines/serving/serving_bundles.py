"""A sealed bundle made by hand, golden file included, so that serving is tested without export."""

import json
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from engine_graphs import HIDDEN, Chain, write
from onnx.reference import ReferenceEvaluator
from safetensors.numpy import save_file

from blockforge.core.bundle import Bundle, seal
from blockforge.core.manifest import (
    EngineRecord,
    Manifest,
    RangeRecord,
    TensorRecord,
    VariantRecord,
)
from blockforge.engines.signature import signature_of

SIZES = ((1, 1, HIDDEN), (2, 8, HIDDEN), (8, 16, HIDDEN))  # the profile's min, opt and max
CASES = {"small": (1, 1), "odd": (2, 7), "text 1/2": (2, 7), "large": (4, 16)}


@dataclass
class Parts:
    """What a bundle is made from; a test changes one of them. more: sizes of further profiles."""

    model: object = field(default_factory=lambda: Chain("fp32", blocks=1).build())
    precision: str = "fp32"
    profile: dict | None = None
    more: tuple = ()
    engines: tuple = ()
    golden: bool = True
    inputs: tuple = ()
    outputs: tuple = ()


def hidden(batch=2, sequence=5, seed=0):
    shape = (batch, sequence, HIDDEN)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def make_bundle(folder, parts=None, **changes):
    parts = parts or Parts(**changes)
    place = folder / parts.precision
    place.mkdir(parents=True)
    write(parts.model, place)
    inputs, outputs = signature_of(ir.from_proto(parts.model))
    profile = parts.profile or {"hidden_states": SIZES}
    variant = VariantRecord(
        precision=parts.precision,
        model=f"{parts.precision}/model.onnx",
        opset=24,
        inputs=parts.inputs or inputs,
        outputs=parts.outputs or outputs,
        profile=ranges(profile),
        more_profiles=tuple(map(ranges, parts.more)),
        operators={},
        dtypes={},
        num_blocks=1,
        engines=parts.engines,
    )
    for engine in parts.engines:
        if engine.path:
            (folder / engine.path).parent.mkdir(exist_ok=True)
            (folder / engine.path).write_bytes(b"a plan of " + engine.target.encode())
    if parts.golden:
        write_golden_by_hand(folder / "golden.safetensors", parts.model)
    manifest = Manifest(
        name="chain",
        created="2026-01-01",
        recipe={},
        tools={},
        variants=(variant,),
        golden="golden.safetensors" if parts.golden else None,
    )
    seal(folder, manifest)
    return Bundle.open(folder)


def ranges(profile):
    return {n: RangeRecord(min=r[0], opt=r[1], max=r[2]) for n, r in profile.items()}


def write_golden_by_hand(path, model):
    """The cases' inputs, and every second position of what ONNX's reference evaluator computes."""
    tensors, about = {}, []
    reference = ReferenceEvaluator(model)
    for number, (name, (batch, sequence)) in enumerate(CASES.items()):
        x = hidden(batch, sequence, seed=number)
        (y,) = reference.run(None, {"hidden_states": x})
        at = np.array([(b, s) for b in range(batch) for s in range(0, sequence, 2)], np.int64)
        tensors[f"{name}/input/hidden_states"] = x.astype(np.float64)
        tensors[f"{name}/at/output"] = at
        tensors[f"{name}/output/output"] = y[tuple(at.T)].astype(np.float64)
        about.append({"name": name, "text": False, "floors": {"fp32": {"output": 1e-7}}})
    metadata = {"format": "blockforge golden 1", "cases": json.dumps(about)}
    save_file(tensors, path, metadata)


def plan(target, runtime="tensorrt 11.4.0", precision="fp32"):
    """The record of an engine whose plan make_bundle writes."""
    slug = target.replace(":", "-")
    return EngineRecord(
        target=target,
        runtime=runtime,
        path=f"{precision}/engines/{slug}.plan",
        layers=None,
        bytes=1,
        build_seconds=1.0,
    )


def tensor(name, dims, dtype="fp32"):
    return TensorRecord(name=name, dtype=dtype, dims=dims)
