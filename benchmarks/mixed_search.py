"""What ranking linears by gradients saves and costs, against measuring every one: CPU time, the list and its price.

    python benchmarks/mixed_search.py [--tokens 240] [--share 0.5] [--graph FP16.onnx] [--save]

SmolLM2, static FP8 rounded to nearest, scales from two windows of the shipped miscellany, trial on the next one. The budget is
`share` of the KL divergence that quantising every linear costs. Calibration is not counted.
"""

import argparse
import json
import platform
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import onnx_ir as ir
import torch

from blockforge.core.dtypes import DType
from blockforge.core.progress import silent
from blockforge.export.calibration.feeds import token_feeds
from blockforge.export.export import export_variant
from blockforge.export.quantize.options import QuantizeOptions
from blockforge.export.search.cost import roofline
from blockforge.export.search.judge import Judge
from blockforge.export.search.measures import distance
from blockforge.export.search.ranking import Budget, rank
from blockforge.export.search.rounded import Switchboard
from blockforge.graph.io import load_model
from quantization import checkpoint_of

RESULT = Path(__file__).parent / "results" / "mixed_search.json"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=240)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--graph", type=Path, help="a 16-bit export that exists already")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = checkpoint_of("smollm2", Path(folder))
        tokenizer = checkpoint.tokenizer()
        assert tokenizer is not None
        graph = given.graph
        if graph is None:
            graph = export_variant(
                checkpoint, layer=None, precision=DType.FP16, io=DType.FP32,
                folder=Path(folder) / "high",
            ).path  # fmt: skip
        feeds = token_feeds(tokenizer, length=given.tokens, count=3)
        board = Switchboard(load_model(graph), QuantizeOptions(rounding="nearest"))
        board.calibrate(feeds[:2], ir.DataType.FLOAT)
        trial = feeds[2:]
        worst = distance("kl", board.outputs(trial, None), board.outputs(trial, ()))
        limit, costs = worst * given.share, roofline("l4", 128)
        found = {}
        for name, finalists in (("every", len(board.candidates)), ("gradients", 16)):
            started = time.process_time()
            budget = Budget(limit, finalists=finalists)
            ranking = rank(board, Judge(board, trial, budget.measure), budget, costs, silent)
            found[name] = (
                ranking.order[: ranking.count],
                {
                    "cpu_seconds": round(time.process_time() - started, 1),
                    "kept": ranking.count,
                    "cost_microseconds": round(
                        1e6 * sum(x.cost for x in ranking.order[: ranking.count]), 2
                    ),
                },
            )
    lists = [{x.name for x in kept} for kept, _ in found.values()]
    result = {
        "command": f"python benchmarks/mixed_search.py --tokens {given.tokens} --share {given.share:g}",
        "date": datetime.now(UTC).date().isoformat(),
        "processor": platform.machine(),
        "linears": len(board.candidates),
        "kl_all": round(worst, 5),
        "kl_limit": round(limit, 5),
        **{name: row for name, (_, row) in found.items()},
        "in_both": len(lists[0] & lists[1]),
    }
    print(json.dumps(result, indent=1))
    if given.save:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
