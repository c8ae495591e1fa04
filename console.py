"""How results and progress look: tables on stdout, progress and errors on stderr, JSON for machines."""

import contextlib
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .core.errors import BlockforgeError
from .core.progress import Progress, Step

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 180
interrupted = False  # set by the command line's signal handler


def stderr_console() -> "Console":
    """The console for logs, progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def emit(result: Any, render: Callable[[], Any], as_json: bool) -> None:
    """Print the result on stdout: as JSON, or as what `render` returns (a rich renderable)."""
    if as_json:
        text = json.dumps(_strict(result), indent=1, ensure_ascii=False, allow_nan=False)
        sys.stdout.write(text + "\n")
        return
    from rich.console import Console

    Console(width=output_width(), highlight=False).print(render())


def _strict(value: Any) -> Any:
    """The value in strict JSON: NaN and infinities as strings, as in the manifest."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list | tuple) else value


def output_width() -> int:
    """Columns of stdout: the terminal's, or PIPE_WIDTH for a pipe, which has no width of its own."""
    import shutil

    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPE_WIDTH


def report_error(error: BlockforgeError, as_json: bool) -> None:
    """Print the one error of a failed command."""
    if as_json:
        fields = {"asked": error.asked, "found": error.found, "fix": error.fix}
        body = {"error": fields, "exit_code": int(error.exit_code)}
        sys.stdout.write(json.dumps(body, indent=1, ensure_ascii=False) + "\n")
        return
    from rich.markup import escape

    console = stderr_console()
    console.print(f"[bold red]error:[/] {escape(error.asked)}")
    console.print(f"  [bold]found:[/] {escape(error.found)}")
    if error.fix:
        console.print(f"  [bold]fix:[/]   {escape(error.fix)}")


@contextlib.contextmanager
def drawn_progress() -> Iterator[Progress]:
    """Yield a Progress that draws bars on a terminal and writes one line per stage elsewhere."""
    console = stderr_console()
    if not console.is_terminal:
        log, seen = logging.getLogger("blockforge"), set()

        def write(step: Step) -> None:
            _stop_if_interrupted()
            if step.stage not in seen:
                seen.add(step.stage)
                log.info("%s", step.stage)

        yield write
        return
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[detail]}"),
    )
    with Bars(*columns, console=console) as bars:
        tasks: dict[str, Any] = {}

        def draw(step: Step) -> None:
            _stop_if_interrupted()
            if step.stage not in tasks:
                for task in tasks.values():  # one stage at a time: an older one is over
                    bars.update(task, total=1, completed=1, detail="")
                tasks[step.stage] = bars.add_task(step.stage, total=None, detail="")
            bars.update(
                tasks[step.stage],
                total=step.total or None,
                completed=step.done,
                detail=step.detail[:60],
            )

        yield draw
        for task in tasks.values():
            bars.update(task, total=1, completed=1, detail="")


def _stop_if_interrupted() -> None:
    if interrupted:
        raise KeyboardInterrupt


def configure_logging(verbose: bool) -> None:
    """Send the package's log to stderr: stages and warnings, with `verbose` everything."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("blockforge")
    log.handlers[:] = [handler]
    log.setLevel(logging.DEBUG if verbose else logging.INFO)
    log.propagate = False


def human_bytes(size: float) -> str:
    """1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def table(title: str, *columns: str) -> "Table":
    """A plain table; `>name` is aligned to the right, `!name` is never broken over lines."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(
        title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold", expand=False
    )
    for column in columns:
        right, whole = column.startswith(">"), column.startswith("!")
        made.add_column(
            column.lstrip(">!"),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right or whole,
        )
    return made
