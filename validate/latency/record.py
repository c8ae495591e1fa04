"""What a benchmark leaves behind: every number with the machine, the versions and the settings that it came from."""

from typing import Literal

from pydantic import Field

from ...core.manifest import GateRecord
from ...core.records import Record

SCHEMA_VERSION: Literal[1] = 1


class GpuState(Record):
    """One reading of NVIDIA's management library; None where the GPU does not tell."""

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    temperature_celsius: int | None = None
    throttled_by: tuple[str, ...] = ()


class GpuRecord(Record):
    """One GPU, its driver, and its state before and after the measurements."""

    name: str
    driver: str
    before: GpuState
    after: GpuState


class MachineRecord(Record):
    """What the times depend on. load_*: processes that ran or waited, one-minute mean; None where unreadable."""

    system: str
    processor: str
    cores: int  # that this process may use
    governor: str | None
    load_before: float | None
    load_after: float | None
    torch_threads: int
    onnxruntime_threads: int | None  # None: ONNX Runtime's own choice
    versions: dict[str, str]
    gpus: tuple[GpuRecord, ...] = ()
    gpu_note: str = ""  # why gpus is empty


class LatencyRecord(Record):
    """One side at one size. Times in milliseconds.

    first: the first call, with whatever it compiles or allocates. settled: whether the warm-up ended because the
    times had stopped drifting. p90, p99: None below 10 and 100 calls. rounds: one time for each interleaved round.
    roofline: the least time that the GPU's peak rates and bandwidth allow, over the median.
    """

    side: str
    role: Literal["subject", "baseline"]
    batch: int | None
    sequence: int | None
    sizes: dict[str, int]
    clock: str
    first: float
    warmup_calls: int
    settled: bool
    calls: int
    median: float
    p90: float | None
    p99: float | None
    tokens_per_second: float | None
    roofline: float | None
    rounds: tuple[float, ...]


class RatioRecord(Record):
    """subject over baseline: median of the rounds' ratios with its 99 % interval, and what that says."""

    subject: str
    baseline: str
    sizes: dict[str, int]
    ratio: float
    interval: tuple[float, float]
    rounds: int
    verdict: Literal["faster", "slower", "no difference"]


class BenchRecord(Record):
    """A whole run of `blockforge bench`. not_run: engines of the bundle that this machine cannot run, and why."""

    schema_version: Literal[1] = SCHEMA_VERSION
    created: str  # ISO 8601, UTC
    bundle: str
    seconds: float
    threshold: float
    seed: int
    machine: MachineRecord
    latencies: tuple[LatencyRecord, ...]
    ratios: tuple[RatioRecord, ...] = ()
    gates: tuple[GateRecord, ...] = ()
    notes: tuple[str, ...] = ()
    files: dict[str, str] = Field(default_factory=dict)  # graph or engine -> its SHA-256
    not_run: dict[str, str] = Field(default_factory=dict)

    @property
    def failures(self) -> tuple[str, ...]:
        """One line per missed limit."""
        return tuple(
            f"{gate.name} is {gate.value:.6g}, the limit is {gate.relation} {gate.limit:g}"
            for gate in self.gates
            if not gate.passed
        )
