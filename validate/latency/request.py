"""What `blockforge bench` is asked, checked before anything is opened."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core.errors import UsageError
from .rounds import Effort
from .workload import ClockName


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """What to measure. Empty precisions: all; empty targets: the engines that run here; empty sizes: a profile's opt.

    against: baselines, see sides.py. clock: for what runs on the CPU. threads: None for each runtime's own choice.
    threshold: a difference below it is none. max_ms: of every subject's median; max_ratio: of every comparison.
    """

    precisions: Sequence[str] = ()
    targets: Sequence[str] = ()
    against: Sequence[str] = ()
    batches: Sequence[int] = ()
    sequences: Sequence[int] = ()
    clock: ClockName = "wall"
    threads: int | None = None
    threshold: float = 0.02
    max_ms: float | None = None
    max_ratio: float | None = None
    effort: Effort = field(default_factory=Effort)

    def __post_init__(self) -> None:
        numbers = {
            "threads": self.threads,
            "max-ms": self.max_ms,
            "max-ratio": self.max_ratio,
            **{f"batch {b}": b for b in self.batches},
            **{f"sequence {s}": s for s in self.sequences},
        }
        for name, number in numbers.items():
            if number is not None and not number > 0:
                raise UsageError(f"bench {name}", found=f"{number:g}", fix="Give a number above 0")
        if not 0 <= self.threshold < 1:
            raise UsageError(
                f"bench threshold {self.threshold:g}",
                found="no share of a latency",
                fix="0.02 calls two latencies the same that are less than 2 % apart",
            )
        if self.max_ratio is not None and not self.against:
            raise UsageError(
                "bench max-ratio", found="nothing to compare with", fix="Name it with --against"
            )
