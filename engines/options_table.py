"""The table of build options in docs/targets.md, from the one in the code.

python -m blockforge.engines.options_table docs/targets.md     writes it between its two marks
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

from .options import DIFFERENCES, BuildOptions, Difference

BEGIN, END = "<!-- build options -->", "<!-- end of build options -->"


def options_table() -> str:
    """One line for each option: what it is, its default, and what each product does with it."""
    defaults = {field.name: field.default for field in dataclasses.fields(BuildOptions)}
    lines = ["| option | what it is | default | in TensorRT's API | TensorRT | TensorRT-RTX |"]
    lines.append("|---|---|---|---|---|---|")
    for row in DIFFERENCES.values():
        cells = [
            f"`{row.option}`",
            row.meaning,
            _default(defaults[row.option]),
            f"`{row.api}`" if row.api else "-",
            _cell(row, "tensorrt"),
            _cell(row, "tensorrt-rtx"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(text: str) -> str:
    """A page with the table between its marks. ValueError where it has no marks."""
    head, found, rest = text.partition(BEGIN)
    _, ends, tail = rest.partition(END)
    if not (found and ends):
        raise ValueError(f"no {BEGIN} and {END} in the page")
    return f"{head}{BEGIN}\n{options_table()}\n{END}{tail}"


def _cell(row: Difference, runtime: str) -> str:
    if reason := row.why_not(runtime):
        return f"no: {reason}"
    return "with a GPU only" if row.needs_gpu and runtime == "tensorrt-rtx" else "yes"


def _default(value: Any) -> str:
    return {None: "-", True: "on", False: "off"}.get(value, str(value))


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_table(page.read_text(encoding="utf-8")), encoding="utf-8")
