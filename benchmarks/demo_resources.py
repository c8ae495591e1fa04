"""Wall time, CPU time and peak resident memory of one whole `blockforge build`, child processes included.

    python benchmarks/demo_resources.py [RECIPE] [--save]

Memory is the sum of the process tree's proportional set sizes (shared pages counted once), sampled
once a second. --save keeps the figures with machine and versions under benchmarks/results/.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
PERIOD = 1.0  # seconds between two samples


def children_of(pid: int) -> list[int]:
    """The whole process tree below `pid`, itself included."""
    tree = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in task.read_text().split():
                tree += children_of(int(child))
        except OSError:  # the process has just ended
            continue
    return tree


def resident_bytes(pid: int) -> int:
    """Proportional set size of one process, 0 when it has ended."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024


def measure(recipe: str, output: Path) -> dict[str, float]:
    """Run the build once and return its figures."""
    command = [sys.executable, "-m", "blockforge", "build", recipe, "-o", str(output)]
    start, peak = time.monotonic(), 0
    before = os.times()
    process = subprocess.Popen(command)
    while process.poll() is None:
        peak = max(peak, sum(resident_bytes(p) for p in children_of(process.pid)))
        time.sleep(PERIOD)
    after = os.times()
    return {
        "exit_code": process.returncode,
        "wall_seconds": round(time.monotonic() - start, 1),
        "cpu_seconds": round(
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system,
            1,
        ),
        "peak_resident_gib": round(peak / 2**30, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="smollm2")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(arguments.recipe, Path(folder) / "bundle")
    result = {
        "command": f"python benchmarks/demo_resources.py {arguments.recipe}",
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "versions": {name: version(name) for name in ("torch", "onnxruntime", "tensorrt-rtx")},
        **figures,
    }
    print(json.dumps(result, indent=1))
    if arguments.save:
        RESULTS.mkdir(exist_ok=True)
        file = RESULTS / f"demo_resources-{Path(arguments.recipe).stem}.json"
        file.write_text(json.dumps(result, indent=1) + "\n")
    return int(figures["exit_code"])


if __name__ == "__main__":
    sys.exit(main())
