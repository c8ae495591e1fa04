"""Time every fused kernel against torch eager, torch.compile and Liger-Kernel, in one run on one GPU.

    python benchmarks/kernels.py [NAME ...] [--rows 4096] [--widths 4096 8192 16384] [--dry-run]

Each call works on another set of buffers, together larger than the L2 cache four times over; calls are captured in
one CUDA graph, contenders take turns, and the median of the rounds counts. Bandwidth is the operator's own traffic
over time, as a fraction of the copy bandwidth measured in the same run. Writes benchmarks/results/kernels-<gpu>.json
and .md. --dry-run goes through everything once on a CPU, tiny and interpreted, and writes nothing.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from kernel_peers import Call, eager, liger, quantise

from blockforge.core.dtypes import DType
from blockforge.core.errors import ExitCode
from blockforge.plugins import OPERATORS
from blockforge.plugins.execute import run_kernel
from blockforge.plugins.listing import example_call
from blockforge.plugins.registry import Plugin

RESULTS = Path(__file__).parent / "results"
ROUNDS = 15
COPIES = 4  # times the L2 cache
FRACTION, FP8_GAIN = 0.90, 1.7  # the goals, for rows of 4096..16384 and 4096 rows or more


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: median, 10th and 90th percentile. bandwidth: of the operator's traffic, GB/s."""

    operator: str
    rows: int
    width: int
    contender: str
    median_us: float = float("nan")
    low_us: float = float("nan")
    high_us: float = float("nan")
    bandwidth: float = float("nan")
    fraction: float = float("nan")
    note: str = ""


def make_inputs(plugin: Plugin, rows: int, width: int, device: str) -> list[torch.Tensor]:
    """Random inputs of one call, half precision, scales and angles in float32."""
    dtypes, sizes, attributes = example_call(plugin, DType.FP16, width)
    inputs = []
    for tensor, dtype in zip(plugin.table.inputs, dtypes, strict=True):
        heads = {"q": "q_num_heads", "k": "kv_num_heads"}.get(tensor.name)
        shape: tuple[int, ...]
        match tensor.type:
            case "S":
                inputs.append(torch.full((), 0.02, device=device))
                continue
            case "A":
                shape = (1, rows, sizes["D"] // 2)
            case "W":
                shape = (sizes[plugin.table.row],)
            case _ if heads:
                shape = (1, rows, int(attributes[heads]) * sizes["D"])
            case _:
                shape = (rows, (2 if tensor.name == "gate_up" else 1) * width)
        inputs.append(torch.randn(shape, device=device).to(dtype.torch))
    return inputs


def traffic(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> int:
    """Bytes that one call must move: every input and output once."""
    return sum(t.numel() * t.element_size() for t in (*inputs, *outputs))


def contenders(plugin: Plugin, arch: int, dry: bool) -> dict[str, Call | str]:
    """Name -> call, or the reason why there is none."""
    attributes = example_call(plugin)[2]
    found: dict[str, Call | str] = {
        "blockforge": lambda inputs: run_kernel(plugin, inputs, attributes, arch),
        "eager": eager(plugin.name),
    }
    if not dry:
        found["compile"] = torch.compile(eager(plugin.name), dynamic=False)
    if plugin.name.endswith("Quantize"):
        plain = next(p for p in OPERATORS if p.name == plugin.name.removesuffix("Quantize"))
        second = quantise if dry else torch.compile(quantise)
        found["kernel, then quantise"] = lambda inputs: second(
            run_kernel(plain, inputs[:-1], attributes, arch)[0], inputs[-1]
        )
    try:
        found["liger"] = liger(plugin.name) or "it has no such kernel"
    except ImportError as error:
        found["liger"] = f"not installed ({error.name})"
    return found


def captured(call: Call, buffers: Sequence[Sequence[torch.Tensor]]) -> Callable[[], float]:
    """A function that runs the call once on each set of buffers and returns microseconds per call."""
    for inputs in buffers[:3]:
        call(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call(inputs) for inputs in buffers]  # alive, so that every call writes elsewhere
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def once() -> float:
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1000 / len(kept)

    once()
    return once


def on_cpu(call: Call, buffers: Sequence[Sequence[torch.Tensor]]) -> Callable[[], float]:
    """The same on a CPU, for the dry run."""

    def once() -> float:
        begin = time.perf_counter()
        for inputs in buffers:
            call(inputs)
        return (time.perf_counter() - begin) * 1e6 / len(buffers)

    return once


def copy_bandwidth(size: int, device: str) -> float:
    """GB/s of copying `size` bytes, read and write counted; the median of the rounds."""
    source = torch.empty(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    make = on_cpu if device == "cpu" else captured
    once = make(lambda _: target.copy_(source), [[source]] * 4)
    return 2 * size / statistics.median(once() for _ in range(ROUNDS)) / 1000


def measure(plugin: Plugin, rows: int, width: int, copy: float, device: str) -> list[Timing]:
    """One operator at one size, all contenders in turns."""
    dry = device == "cpu"
    major, minor = (9, 0) if dry else torch.cuda.get_device_capability()
    arch = 10 * major + minor
    inputs = make_inputs(plugin, rows, width, device)
    outputs = run_kernel(plugin, inputs, example_call(plugin)[2], arch)
    moved = traffic(inputs, outputs)
    cache = 0 if dry else torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(COPIES * cache // moved + 1, 2)
    buffers = [make_inputs(plugin, rows, width, device) for _ in range(sets)]
    runs: dict[str, Callable[[], float]] = {}
    timings = []
    for name, call in contenders(plugin, arch, dry).items():
        if isinstance(call, str):
            timings.append(Timing(plugin.name, rows, width, name, note=call))
            continue
        try:
            runs[name] = (on_cpu if dry else captured)(call, buffers)
        except Exception as error:  # a peer that fails is a result, not the end of the run
            if name == "blockforge":
                raise
            note = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            timings.append(Timing(plugin.name, rows, width, name, note=note))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(2 if dry else ROUNDS):
        for name, once in runs.items():
            samples[name].append(once())
    for name, values in samples.items():
        cuts = statistics.quantiles(values, n=10)
        median = statistics.median(values)
        speed = moved / median / 1000
        timings.append(
            Timing(plugin.name, rows, width, name, median, cuts[0], cuts[-1], speed, speed / copy)
        )
    return timings


def verdicts(timings: Sequence[Timing]) -> list[str]:
    """One line per goal and size that is missed."""
    missed = []
    for ours in (t for t in timings if t.contender == "blockforge"):
        where = f"{ours.operator} {ours.rows}x{ours.width}"
        if ours.fraction < FRACTION:
            missed.append(f"{where}: {ours.fraction:.2f} of copy bandwidth, the goal is {FRACTION}")
        for peer in timings:
            same = (peer.operator, peer.rows, peer.width) == (ours.operator, ours.rows, ours.width)
            if not same or peer is ours:
                continue
            gain = peer.median_us / ours.median_us
            goal = FP8_GAIN if peer.contender == "kernel, then quantise" else 1.0
            if gain < goal:
                missed.append(f"{where}: {gain:.2f}x over {peer.contender}, the goal is {goal}")
    return missed


def table(timings: Sequence[Timing], copy: float, missed: Sequence[str]) -> str:
    """The results as Markdown."""
    lines = [f"Copy bandwidth, same run: {copy:.0f} GB/s.", ""]
    lines += ["| operator | size | contender | us (p10..p90) | GB/s | of copy | note |"]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [
        f"| {t.operator} | {t.rows}x{t.width} | {t.contender} | {t.median_us:.1f} "
        f"({t.low_us:.1f}..{t.high_us:.1f}) | {t.bandwidth:.0f} | {t.fraction:.2f} | {t.note} |"
        for t in timings
    ]
    lines += ["", "Goals missed:" if missed else "All goals met.", *(f"- {m}" for m in missed)]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 measured and all goals met, 1 a goal missed, 3 no GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="operators; all when none is named")
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--widths", type=int, nargs="+", default=[4096, 8192, 16384])
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args(arguments)
    dry = given.dry_run
    if dry and os.environ.get("TRITON_INTERPRET") != "1":
        sys.stderr.write("A dry run interprets the kernels: set TRITON_INTERPRET=1\n")
        return ExitCode.USAGE
    if not dry and not torch.cuda.is_available():
        sys.stderr.write("No GPU here: nothing is measured. --dry-run only goes through the code\n")
        return ExitCode.UNAVAILABLE
    device = "cpu" if dry else "cuda"
    rows, widths = (3, [64]) if dry else (given.rows, given.widths)
    copy = copy_bandwidth(2**16 if dry else 2**30, device)
    timings: list[Timing] = []
    for plugin in OPERATORS:
        if given.names and plugin.name not in given.names:
            continue
        for width in widths[:1] if plugin.table.row == "D" else widths:
            timings += measure(plugin, rows, width, copy, device)
    missed = verdicts(timings)
    if dry:
        names = ", ".join(dict.fromkeys(t.contender for t in timings if not t.note))
        sys.stdout.write(f"Dry run of {len(timings)} contenders ({names}): nothing was measured\n")
        return ExitCode.OK
    text = table(timings, copy, missed)
    sys.stdout.write(text)
    write_results(timings, copy, missed, text)
    return ExitCode.GATE if missed else ExitCode.OK


def write_results(timings: Sequence[Timing], copy: float, missed: Sequence[str], text: str) -> None:
    """benchmarks/results/kernels-<gpu>.json and .md."""
    gpu = torch.cuda.get_device_name()
    record: dict[str, Any] = {
        "gpu": gpu,
        "torch": torch.__version__,
        "copy_gb_per_s": copy,
        "missed": list(missed),
        "timings": [asdict(t) for t in timings],
    }
    RESULTS.mkdir(exist_ok=True)
    stem = RESULTS / f"kernels-{'-'.join(gpu.lower().split())}"
    stem.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    stem.with_suffix(".md").write_text(f"# Kernels on {gpu}\n\n{text}")


if __name__ == "__main__":
    sys.exit(main())
