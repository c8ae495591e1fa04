"""How results and progress look: tables on stdout, progress and errors on stderr, JSON for machines."""

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from .core.errors import BlockforgeError
from .core.progress import Progress, Step

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from .core.manifest import Manifest, VerdictRecord


def stderr_console() -> "Console":
    """The console for logs, progress and errors."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def emit(result: Any, render: Callable[[], Any], as_json: bool) -> None:
    """Print the result on stdout: as JSON, or as what `render` returns (a rich renderable)."""
    if as_json:
        sys.stdout.write(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        return
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 160  # a pipe has no width of its own
    Console(width=wide, highlight=False).print(render())


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
    """A plain table; a column named with a leading `>` is aligned to the right."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(
        title=title, box=SIMPLE_HEAD, title_justify="left", title_style="bold", expand=False
    )
    for column in columns:
        right = column.startswith(">")
        made.add_column(column.lstrip(">"), justify="right" if right else "left", overflow="fold")
    return made


def manifest_table(manifest: "Manifest") -> "Table":
    """One row per precision and target: size, build time, kernels, dtypes and the verdict."""
    made = table(
        manifest.name,
        "precision",
        "target",
        ">size",
        ">build",
        ">kernels",
        ">per block",
        "kernel dtypes",
        "numbers judged by",
        ">error / floor",
        ">perplexity",
        ">tokens",
        "verdict",
    )
    for variant in manifest.variants:
        for engine in variant.engines:
            verdict = verdict_of(variant.verdicts, engine.target)
            passed = bool(verdict and verdict.passed) and not engine.violations
            made.add_row(
                variant.precision,
                engine.target,
                human_bytes(engine.bytes),
                f"{engine.build_seconds:.1f} s",
                _or_dash(engine.kernels, "d"),
                _or_dash(engine.kernels_per_block, "g"),
                ", ".join(f"{n} {name}" for name, n in engine.dtypes.items()) or "-",
                verdict.runner if verdict else "nothing",
                _or_dash(verdict and max((o.ratio for o in verdict.outputs), default=None), ".2f"),
                _or_dash(verdict and verdict.perplexity, ".3f"),
                _or_dash(verdict and verdict.token_agreement, ".1%"),
                "[green]pass[/]" if passed else "[bold red]FAIL[/]",
            )
    return made


def verdict_of(verdicts: "tuple[VerdictRecord, ...]", target: str) -> "VerdictRecord | None":
    """The verdict that speaks for a target: its own gated run, else the typed evaluator's."""
    gated = [v for v in verdicts if v.gates]
    own = [v for v in gated if v.runner == target]
    return (own or [v for v in gated if v.runner == "typed-evaluator"] or [None])[0]


def _or_dash(value: Any, spec: str) -> str:
    return "-" if value is None else format(value, spec)
