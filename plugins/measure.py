"""Compile every listed kernel and write down its registers: `python -m blockforge.plugins.measure`."""

import re
from pathlib import Path

from .aot import supported_architectures
from .cubin import resources
from .listing import plugin_ptx
from .registry import registered

FILE = Path(__file__).with_name("registers.py")


def measure_registers() -> dict[str, dict[int, int]]:
    """Registers per thread: operator -> sm -> count. UnavailableError without Triton."""
    return {
        plugin.name: {
            arch: resources(plugin_ptx(plugin.name, arch=arch).ptx, arch).registers
            for arch in supported_architectures(plugin)
        }
        for plugin in registered()
    }


def write_registers(file: Path = FILE) -> None:
    """Put the present numbers into registers.py, below its docstring."""
    rows = "".join(f'    "{name}": {counts},\n' for name, counts in measure_registers().items())
    head = re.split(r"^REGISTERS\b", file.read_text(encoding="utf-8"), flags=re.MULTILINE)[0]
    text = f"{head}REGISTERS: dict[str, dict[int, int]] = {{\n{rows}}}\n"
    file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_registers()
