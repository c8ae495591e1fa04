"""Build every system in every precision for every runtime, and write docs/models.md.

    python benchmarks/zoo.py [--only PRESET ...] [--page]

--only: build these presets anew and keep the other results. --page: write the page from the results alone.
Results go to benchmarks/results/zoo.json. Exit status 1 when a row fails. Weights and inputs are seeded, and PyTorch
runs on one thread, so that the same versions give the same page.
"""

import argparse
import json
import logging
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import torch
from zoo_limits import Limit, run_forms
from zoo_page import Zoo, page
from zoo_run import Row, run_preset
from zoo_systems import SYSTEMS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "models.md"
RESULTS = ROOT / "benchmarks" / "results" / "zoo.json"
TOOLS = ("blockforge", "torch", "onnx", "onnxruntime", "tensorrt-rtx")
PRESETS = tuple(preset for system in SYSTEMS for preset in system.tiny)


def load(path: Path = RESULTS) -> Zoo:
    """The results of the last run."""
    data = json.loads(path.read_text(encoding="utf-8"))
    rows = tuple(map(Row.from_json, data["rows"]))
    return Zoo(data["tools"], rows, tuple(map(Limit.from_json, data["limits"])))


def save(zoo: Zoo, path: Path = RESULTS) -> None:
    """Write the results, one row a line."""
    parts = [f' "tools": {json.dumps(zoo.tools)}']
    for name, items in (("rows", zoo.rows), ("limits", zoo.limits)):
        lines = ",\n  ".join(json.dumps(item.to_json()) for item in items)
        parts.append(f' "{name}": [\n  {lines}\n ]')
    path.parent.mkdir(exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def build(presets: Sequence[str], kept: Sequence[Row]) -> Zoo:
    """Build `presets` and the forms of Attention; `kept`: rows of other presets from an earlier run."""
    rows = [row for row in kept if row.preset not in presets]
    with tempfile.TemporaryDirectory() as folder:
        limits = run_forms(Path(folder) / "forms")
        for preset in presets:
            start = time.monotonic()
            made = list(run_preset(preset, Path(folder) / preset))
            rows += made
            state = "; ".join(f for row in made for f in row.failures) or "ok"
            print(f"{preset}: {state} ({time.monotonic() - start:.0f} s)", flush=True)
    rows.sort(key=lambda row: PRESETS.index(row.preset))
    tools = {"Python": platform.python_version(), **{tool: version(tool) for tool in TOOLS}}
    return Zoo(tools, tuple(rows), tuple(limits))


def main() -> int:
    """Run the command; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PRESETS, metavar="PRESET")
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("blockforge").setLevel(logging.CRITICAL)  # refusals are part of the result
    torch.set_num_threads(1)
    if arguments.page:
        zoo = load()
    else:
        zoo = build(arguments.only or PRESETS, load().rows if arguments.only else ())
        save(zoo)
    PAGE.write_text(page(zoo), encoding="utf-8")
    bad = sum(bool(row.failures) for row in zoo.rows)
    print(f"{len(zoo.rows) - bad} of {len(zoo.rows)} rows green: {PAGE.relative_to(ROOT)}")
    print("\n".join(zoo.failures), end="\n" if zoo.failures else "")
    return 1 if zoo.failures else 0


if __name__ == "__main__":
    sys.exit(main())
