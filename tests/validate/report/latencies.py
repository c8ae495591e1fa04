"""A benchmark for the tests of the report and of JUnit files: two sides at two sizes."""

import math

from blockforge.core.manifest import GateRecord
from blockforge.validate.latency.record import (
    BenchRecord,
    LatencyRecord,
    MachineRecord,
    RatioRecord,
)


def bench(folder, *, rooflines=(None, None), files=None):
    """Write a benchmark of two sides at two sizes into the bundle and return its path there."""
    rows = [
        LatencyRecord(
            side=side,
            role=role,
            batch=1,
            sequence=sequence,
            sizes={"batch": 1, "sequence": sequence},
            clock="monotonic clock",
            first=41.5,
            warmup_calls=14,
            settled=True,
            calls=64,
            median=base * sequence,
            p90=base * sequence * 1.07,
            p99=None,
            tokens_per_second=1000 / base,
            roofline=roofline,
            rounds=tuple(base * sequence * (1 + 0.03 * math.sin(7 * k)) for k in range(32)),
        )
        for sequence in (16, 128)
        for side, role, base, roofline in (
            ("fp32 onnxruntime:cpu", "subject", 0.0731, rooflines[0]),
            ("eager fp32", "baseline", 0.0977, rooflines[1]),
        )
    ]
    ratios = [
        RatioRecord(
            subject=rows[0].side,
            baseline=rows[1].side,
            sizes=dict(row.sizes),
            ratio=0.7482,
            interval=(0.7311, 0.7719),
            rounds=32,
            verdict="faster",
        )
        for row in rows[::2]
    ]
    record = BenchRecord(
        created="2026-11-29T23:10:00+00:00",
        bundle="bundles/smollm2-135m",
        seconds=5.0,
        threshold=0.02,
        seed=0,
        machine=MachineRecord(
            system="Linux",
            processor="a processor",
            cores=2,
            governor=None,
            load_before=0.41,
            load_after=1.93,
            torch_threads=2,
            onnxruntime_threads=None,
            versions={"torch": "2.13.0"},
        ),
        latencies=tuple(rows),
        ratios=tuple(ratios),
        gates=(
            GateRecord(
                name="median of fp32 onnxruntime:cpu at batch 1, sequence 16, ms,",
                value=rows[0].median,
                relation="<=",
                limit=1.0,
                passed=False,
            ),
        ),
        files=files or {},
        not_run={
            "fp16 tensorrt-rtx:sm89": "running an engine needs its GPU, and here is no NVIDIA GPU"
        },
    )
    (folder / "bench.json").write_text(record.model_dump_json())
    return "bench.json"
