"""How many of a corpus' operators each fusion tool recognises, how many graphs it spoils, and how fast it is.

    python benchmarks/fusion_coverage.py CORPUS [--ours] [--json] [--tools A,B] [--match TEXT]

CORPUS holds truth.json (file -> counts per pattern, with kind, path, opset and dtype) and the .onnx files.
recognised: the smaller of found and true, summed; wrong: the result is invalid, does not load, has other types or
other numbers (ONNX Runtime at two shapes, and float64 with large values); crash: an exception instead of a result.
"""

import argparse
import contextlib
import importlib.metadata
import json
import statistics
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from fusion_tools import TOOLS, fault, missing, quiet

from blockforge.export.fusions import PATTERNS


@dataclass
class Score:
    """The sums of one tool."""

    found: Counter[tuple[str, str]] = field(
        default_factory=Counter
    )  # (pattern, export) -> recognised
    true: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: dict[str, str] = field(default_factory=dict)
    crashes: dict[str, str] = field(default_factory=dict)
    extra: dict[str, str] = field(default_factory=dict)  # more found than there is
    seconds: list[float] = field(default_factory=list)

    def ratio(self, pattern: str, export: str) -> str:
        """recognised/true of one cell, a dot where nothing is to be found."""
        keys = [k for k in self.true if k[0] == pattern and export in ("", k[1])]
        true = sum(self.true[k] for k in keys)
        return f"{sum(self.found[k] for k in keys)}/{true}" if true else "."

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        exports = sorted({k[1] for k in self.true})
        return {
            "recognised": {p: self.ratio(p, "") for p in PATTERNS},
            "by_export": {e: {p: self.ratio(p, e) for p in PATTERNS} for e in exports},
            "wrong": self.wrong,
            "crashes": self.crashes,
            "extra": self.extra,
            "median_seconds": statistics.median(self.seconds) if self.seconds else None,
            "total_seconds": sum(self.seconds),
        }


def measure(corpus: Path, tools: list[str], match: str) -> dict[str, Score]:
    """Run every tool over every file of the corpus."""
    truth = json.loads((corpus / "truth.json").read_text(encoding="utf-8"))
    scores: dict[str, Score] = defaultdict(Score)
    for name, entry in truth.items():
        if match not in name:
            continue
        source = onnx.load(corpus / name)
        export = f"{'dynamo' if entry['path'] == 'd' else 'torchscript'} {entry['opset']} {entry['dtype']}"
        for tool in tools:
            _one(scores[tool], tool, corpus / name, name, source, entry, export)
    return scores


def _one(
    score: Score,
    tool: str,
    path: Path,
    name: str,
    source: onnx.ModelProto,
    entry: dict[str, int | str],
    export: str,
) -> None:
    for pattern in PATTERNS:
        score.true[pattern, export] += int(entry[pattern])
    started = time.perf_counter()
    try:
        with quiet():
            result = TOOLS[tool](path)
    except Exception as error:  # a benchmark of other tools: whatever they raise is the finding
        score.crashes[name] = f"{type(error).__name__}: {str(error)[:160]}"
        return
    score.seconds.append(time.perf_counter() - started)
    with quiet():
        wrong = fault(source, result.model, str(entry["dtype"]))
    if wrong:
        score.wrong[name] = wrong
        return
    for pattern in PATTERNS:
        score.found[pattern, export] += min(result.counts[pattern], int(entry[pattern]))
    more = {p: result.counts[p] for p in PATTERNS if result.counts[p] > int(entry[p])}
    if more:
        score.extra[name] = str(more)


def table(scores: dict[str, Score]) -> str:
    """The scores as text: one line per tool, then ours by export."""
    lines = [
        f"{'tool':20s}"
        + "".join(f"{p:>10s}" for p in PATTERNS)
        + f"{'wrong':>8s}{'crash':>7s}{'extra':>7s}{'ms/graph':>10s}"
    ]
    for tool, score in scores.items():
        median = f"{1000 * statistics.median(score.seconds):.0f}" if score.seconds else "-"
        cells = "".join(f"{score.ratio(p, ''):>10s}" for p in PATTERNS)
        lines.append(
            f"{tool:20s}{cells}{len(score.wrong):8d}{len(score.crashes):7d}{len(score.extra):7d}{median:>10s}"
        )
    for tool, score in scores.items():
        lines += ["", f"{tool} by export"]
        for export in sorted({k[1] for k in score.true}):
            lines.append(
                f"{export:20s}" + "".join(f"{score.ratio(p, export):>10s}" for p in PATTERNS)
            )
        for title, found in (
            ("wrong", score.wrong),
            ("crash", score.crashes),
            ("extra", score.extra),
        ):
            lines += [f"  {title}: {n}: {why}" for n, why in list(found.items())[:12]]
    return "\n".join(lines)


def versions() -> dict[str, str]:
    """What is installed of the packages that take part."""
    packages = ("onnx", "onnx-ir", "onnxruntime", "onnxscript", "onnxslim", "onnxsim")
    with_gpu = importlib.metadata.packages_distributions().get("onnxruntime", ["onnxruntime"])[0]
    found = {}
    for package in (with_gpu if p == "onnxruntime" else p for p in packages):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; 1 when ours misses an instance, spoils a graph or crashes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--ours", action="store_true", help="only this project's")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tools", default=",".join(TOOLS), help="which tools, by name")
    parser.add_argument("--match", default="", help="only files whose name contains this")
    options = parser.parse_args(arguments)
    tools = ["blockforge"] if options.ours else options.tools.split(",")
    absent = {t: why for t in tools if (why := missing(t))}
    scores = measure(options.corpus, [t for t in tools if t not in absent], options.match)
    if options.json:
        found = {tool: score.to_json() for tool, score in scores.items()}
        print(json.dumps({**found, "absent": absent, "versions": versions()}, indent=1))
    else:
        print(table(scores))
        for tool, why in absent.items():
            print(f"{tool}: not installed ({why})")
    mine = scores.get("blockforge")
    clean = mine is None or (
        mine.found == mine.true and not mine.wrong and not mine.crashes and not mine.extra
    )
    return 0 if clean else 1


if __name__ == "__main__":
    raise SystemExit(main())
