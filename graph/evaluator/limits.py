"""What one run may ask of the machine: bytes in one value, steps inside loops.

A graph from elsewhere can ask for 2^40 elements or 2^60 iterations in a few bytes; both are refused before they begin.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import UsageError

VALUE_BYTES, LOOP_STEPS = "BLOCKFORGE_VALUE_BYTES", "BLOCKFORGE_LOOP_STEPS"
DEFAULT_LOOP_STEPS = 1_000_000  # node executions inside Loop and Scan: about a minute
UNTOLD_BYTES = 16 << 30  # where the system does not tell its memory


@dataclass(frozen=True, slots=True)
class Limits:
    """value_bytes: the most that one value may take; loop_steps: node executions inside Loop and Scan in one run."""

    value_bytes: int
    loop_steps: int = DEFAULT_LOOP_STEPS


def limits_here() -> Limits:
    """The memory that is free now, for each value; $BLOCKFORGE_VALUE_BYTES and $BLOCKFORGE_LOOP_STEPS say otherwise.

    Raises UsageError where one of them is no positive whole number.
    """
    return Limits(_given(VALUE_BYTES) or free_bytes(), _given(LOOP_STEPS) or DEFAULT_LOOP_STEPS)


def free_bytes() -> int:
    """Memory that programs can still have: the system's MemAvailable, or what the control group leaves where that is less."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return UNTOLD_BYTES
    line = next((x for x in lines if x.startswith("MemAvailable:")), None)
    free = int(line.split()[1]) * 1024 if line else UNTOLD_BYTES
    group = Path("/sys/fs/cgroup")
    try:
        most, used = (
            (group / f"memory.{name}").read_text(encoding="ascii").strip()
            for name in ("max", "current")
        )
        return min(free, max(int(most) - int(used), 1))
    except (OSError, ValueError):  # no control group, or "max"
        return free


def _given(name: str) -> int | None:
    text = os.environ.get(name)
    if not text:
        return None
    if not text.isdecimal() or not int(text):
        raise UsageError(f"${name}", found=repr(text), fix="A whole number above zero")
    return int(text)
