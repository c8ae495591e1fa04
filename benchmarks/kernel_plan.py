"""Device kernels that one decoder block adds to a TensorRT-RTX engine, by the form of the graph.

    python benchmarks/kernel_plan.py [--save]

Chains of blocks of SmolLM2's sizes with seeded weights, dynamic batch and sequence; engines are really built. A block's count
is what four blocks take more than two, halved.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from blockforge.core.dtypes import DType
from blockforge.core.shapes import ShapeRange
from blockforge.engines.compile import CompileRequest, compile_engine
from blockforge.engines.target import Target
from blockforge.export.export import export_variant
from blockforge.export.fusions import fuse_file
from blockforge.export.linears.find import find_linears
from blockforge.export.linears.pack import pack_linears
from blockforge.export.linears.packed_file import pack_file
from blockforge.export.precision import PrecisionOptions, typed_file
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.graph.io import load_model, save_model
from blockforge.model.checkpoints.preset import RandomCheckpoint
from blockforge.model.presets import PRESETS

RESULTS = Path(__file__).parent / "results" / "kernel_plan.json"
CHAINS, VOCABULARY = (2, 4), 512
TARGETS = ("sm89", "sm120")
PROFILE = {"input_ids": ShapeRange((1, 1), (1, 128), (4, 1024))}
OURS = {  # form -> the projections that are packed
    "separate projections": (),
    "q, k, v packed": ("q_proj", "k_proj", "v_proj"),
    "gate, up packed": ("gate_proj", "up_proj"),
    "both packed": ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"),
}


def ids() -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [{"input_ids": torch.randint(0, VOCABULARY, (1, 64), generator=generator)}]


def our_export(folder: Path, layers: int) -> Path:
    """SmolLM2's configuration with fewer blocks, as our reference exports it, in FP32."""
    config = dataclasses.replace(PRESETS["smollm2-135m"], num_layers=layers, vocab_size=VOCABULARY)
    checkpoint = RandomCheckpoint("kernel plan", config, 0)
    options = {"layer": None, "precision": DType.FP32, "io": DType.FP32}
    return export_variant(checkpoint, folder=folder, **options).path


def hugging_face_export(folder: Path, layers: int) -> Path:
    """The same sizes from transformers through torch.onnx at opset 20: norms, RoPE and SiLU spelled out."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=VOCABULARY, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=input_ids, return_dict=False)[0]

    folder.mkdir()
    axes = ({0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Logits().eval(), (torch.zeros(2, 6, dtype=torch.int64),), folder / "model.onnx", dynamo=True,
            opset_version=20, input_names=["input_ids"], dynamic_shapes=axes, verbose=False,
            external_data=True,
        )  # fmt: skip
    return folder / "model.onnx"


def halved(source: Path, output: Path) -> Path:
    typed_file(source, output, ids(), PrecisionOptions(DType.FP16))
    return output


def packed(source: Path, output: Path, names: tuple[str, ...]) -> Path:
    """`source` with the linears of these names packed, the others left."""
    model = load_model(source)
    found = find_linears(model, QuantizeOptions(head=True))
    chosen = [x if x.name.endswith(names) else dataclasses.replace(x, reason="-") for x in found]
    pack_linears(model, chosen if names else [])
    save_model(model, output)
    return output


def kernels(model: Path, arch: str, folder: Path) -> int:
    """Device kernels of the whole engine."""
    folder.mkdir(parents=True, exist_ok=True)
    target = Target.parse(f"tensorrt-rtx:{arch}")
    return compile_engine(CompileRequest(model, target, PROFILE, folder)).kernels or 0


def forms(folder: Path, layers: int) -> Iterator[tuple[str, str, Path]]:
    """(graph, precision, file) of every form, with `layers` blocks."""
    half = halved(our_export(folder / "ours", layers), folder / "half.onnx")
    options = QuantizeOptions(rounding="nearest", observer="amax", pack=False)
    for number, (form, names) in enumerate(OURS.items()):
        yield form, "fp16", packed(half, folder / f"packed{number}.onnx", names)
        low = folder / f"low{number}.onnx"
        quantize_file(folder / f"packed{number}.onnx", low, ids(), options)
        yield form, "fp8", low
    spelled = hugging_face_export(folder / "hf", layers)
    yield "transformers, opset 20, spelled out", "fp16", halved(spelled, folder / "hf16.onnx")
    fuse_file(spelled, folder / "fused.onnx", verify=False)
    fused = halved(folder / "fused.onnx", folder / "fused16.onnx")
    yield "the same after `blockforge fuse`", "fp16", fused
    pack_file(fused, folder / "fusedpacked.onnx")
    yield "the same, fused and packed", "fp16", folder / "fusedpacked.onnx"


def rows(folder: Path) -> list[dict[str, object]]:
    """One row a form: graph, precision, and each target's kernels a block."""
    few, many = CHAINS
    pairs = zip(forms(folder / "few", few), forms(folder / "many", many), strict=True)
    found: list[dict[str, object]] = []
    for number, ((form, precision, short), (_, _, long)) in enumerate(pairs):
        row: dict[str, object] = {"graph": form, "precision": precision}
        for arch in TARGETS:
            place = folder / f"{number}-{arch}"
            more = kernels(long, arch, place / "many") - kernels(short, arch, place / "few")
            row[arch] = more / (many - few)
        found.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = rows(Path(folder))
    print(f"| graph | precision | {' | '.join(TARGETS)} |\n|---|---|{'---|' * len(TARGETS)}")
    for row in found:
        print(
            f"| {row['graph']} | {row['precision']} | "
            + " | ".join(f"{row[t]}" for t in TARGETS)
            + " |"
        )
    if given.save:
        versions = {tool: version(tool) for tool in ("tensorrt-rtx", "torch", "transformers")}
        record = {
            "command": "python benchmarks/kernel_plan.py --save",
            "date": datetime.now(UTC).date().isoformat(),
            "blocks": CHAINS,
            "versions": versions,
            "rows": found,
        }
        RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
