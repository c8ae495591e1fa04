"""How much memory this process has needed so far."""

from pathlib import Path


def peak_bytes() -> int | None:
    """The largest resident memory in bytes; None where the system does not tell (it does on Linux).

    Not getrusage: its ru_maxrss survives exec, so a child would report its parent's peak.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    line = next((x for x in status.splitlines() if x.startswith("VmHWM:")), None)
    return int(line.split()[1]) * 1024 if line else None
