"""Planned engines for tests: small chains built for real, once a session, and one recorded listing as a LayersFile."""

import onnx_ir as ir
from engine_graphs import HIDDEN, Chain, write

from blockforge.core.bundle import seal
from blockforge.core.manifest import EngineRecord, Manifest, VariantRecord
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.layers_file import LayersFile, save_layers
from blockforge.engines.listing import kernels_from_listing
from blockforge.engines.signature import signature_of
from blockforge.engines.target import Target

PROFILE = {"hidden_states": ShapeRange((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 32, HIDDEN))}


def build(folder, dtype, target="tensorrt-rtx:sm89", blocks=2, **fields):
    """(record, path of its layers.json) of a chain built in `folder`."""
    folder.mkdir(exist_ok=True)
    model = write(Chain(dtype, blocks=blocks).build(), folder)
    request = CompileRequest(model, Target.parse(target), PROFILE, folder, blocks, **fields)
    record = compile_engine(request)
    return record, folder / record.layers


def recorded(listings, name="fp16_sm89"):
    """The recorded listing `name`, as a plan."""
    kernels = kernels_from_listing(listings[name], name)
    return LayersFile(
        target="tensorrt-rtx:sm89", runtime="r 1", source="builder", num_blocks=3, kernels=kernels
    )


def bundle_of(folder, plans, model=None, recipe=None):
    """A sealed bundle: precision -> plans, whose layers lie where a build puts them; the graph is a chain where none is given."""
    variants = []
    for precision, layers in plans.items():
        engines = folder / precision / "engines"
        engines.mkdir(parents=True)
        model = model or Chain("fp16", blocks=1).build()
        write(model, folder / precision)
        inputs, outputs = signature_of(ir.from_proto(model))
        records = []
        for plan in layers:
            slug = Target.parse(plan.target).slug
            save_layers(plan, engines / f"{slug}.layers.json")
            records.append(
                EngineRecord(
                    target=plan.target,
                    runtime=plan.runtime,
                    path=None,
                    layers=f"{precision}/engines/{slug}.layers.json",
                    bytes=1,
                    build_seconds=1.0,
                )
            )
        name, rank = inputs[0].name, len(inputs[0].dims)
        sizes = [s[-rank:] for s in ((1, 1, HIDDEN), (2, 8, HIDDEN), (4, 32, HIDDEN))]
        variants.append(
            VariantRecord(
                precision=precision,
                model=f"{precision}/model.onnx",
                opset=24,
                inputs=inputs,
                outputs=outputs,
                profile={name: dict(zip(("min", "opt", "max"), sizes, strict=True))},
                operators={},
                dtypes={},
                num_blocks=3,
                engines=tuple(records),
            )
        )
    manifest = Manifest(
        name="b", created="", recipe=recipe or {}, tools={}, variants=tuple(variants)
    )
    seal(folder, manifest)
    return folder
