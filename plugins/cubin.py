"""Assemble PTX and read back what the machine code costs: registers, stack, spills.

PTX --ptxas--> cubin --cuobjdump--> registers; both tools come with Triton's wheel, no GPU is needed.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import BuildError
from .triton_api import require_triton


@dataclass(frozen=True, slots=True)
class Resources:
    """Per thread: 32-bit registers, bytes of stack, bytes spilled; per block: bytes of static shared memory."""

    registers: int
    stack: int
    spilled: int
    shared: int


def resources(ptx: str, arch: int) -> Resources:
    """Assemble `ptx` for compute capability arch / 10 and read its resources from the cubin.

    Raises BuildError with the assembler's words when it refuses the text.
    """
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx, encoding="ascii")
        arguments = [
            "-v",
            "--warn-on-spills",
            f"--gpu-name=sm_{arch}",
            str(source),
            "-o",
            str(cubin),
        ]
        log = _run(_ptxas(arch), *arguments)
        usage = _run(_tool("cuobjdump"), "-res-usage", str(cubin))
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    counts = {k: int(v) for k, v in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    assert spills and counts, "the tools' output changed"
    return Resources(
        registers=counts["REG"],
        stack=counts["STACK"] + counts["LOCAL"],
        spilled=int(spills[1]) + int(spills[2]),
        shared=counts["SHARED"],
    )


def _ptxas(arch: int) -> str:
    return _tool("ptxas" if arch < 90 else "ptxas-blackwell")  # as Triton chooses


def _tool(name: str) -> str:
    require_triton()
    import triton.backends.nvidia as nvidia

    return str(Path(nvidia.__path__[0]) / "bin" / name)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(
            f"run {Path(command[0]).name}",
            found=(done.stderr or done.stdout).strip().replace(str(Path(command[0]).parent), ""),
        )
    return done.stdout + done.stderr
