"""How results and progress look: tables on stdout, progress and errors on stderr, JSON for machines."""

import contextlib
import json
import logging
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .core.errors import BlockforgeError
from .core.progress import Progress, Step

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

    from .core.manifest import EngineRecord, Manifest, VariantRecord, VerdictRecord
    from .model.cost import Cost, CostReport, SubLayer
    from .plugins.listing import Listing

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


OVER_FLOOR = ": error over floor"  # how validate names the gate that pools all cases of an output
# Columns that a narrow terminal can do without, the first to go first.
OPTIONAL = ("judged by", "types", ">build", ">perplexity", ">tokens", ">per block")


def manifest_table(manifest: "Manifest", width: int | None = None) -> "Table":
    """One row per precision and target: size, build time, kernels, dtypes and the verdict.

    Columns are left out until the table fits `width` (None: the output's own width).
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(width=output_width() if width is None else width)
    rows = [_engine_row(v, engine) for v in manifest.variants for engine in v.engines or (None,)]
    for count in range(len(OPTIONAL) + 1):
        columns = [c for c in (rows[0] if rows else {}) if c not in OPTIONAL[:count]]
        made = table(manifest.name, *columns)
        for row in rows:
            made.add_row(*(row[c] for c in columns))
        if (
            Measurement.get(console, console.options.update(width=999), made).maximum
            <= console.width
        ):
            break
    return made


def _engine_row(variant: "VariantRecord", engine: "EngineRecord | None") -> dict[str, str]:
    """Column -> cell; a graph without engines has a row too."""
    verdict = verdict_of(variant.verdicts, engine.target if engine else "")
    passed = verdict is not None and verdict.passed and not (engine and engine.violations)
    ratios = [g.value for g in verdict.gates if g.name.endswith(OVER_FLOOR)] if verdict else []
    types = ", ".join(f"{n} {name}" for name, n in engine.dtypes.items()) if engine else ""
    return {
        "!precision": variant.precision,
        "!target": engine.target if engine else "-",
        ">size": human_bytes(engine.bytes) if engine else "-",
        ">build": f"{engine.build_seconds:.1f} s" if engine else "-",
        ">kernels": _or_dash(engine and engine.kernels, "d"),
        ">per block": _or_dash(engine and engine.kernels_per_block, "g"),
        "types": types or "-",
        ">error / floor": _or_dash(max(ratios, default=None), ".2f"),
        ">perplexity": _or_dash(verdict and verdict.perplexity, ".3f"),
        ">tokens": _or_dash(verdict and verdict.token_agreement, ".1%"),
        "judged by": verdict.runner if verdict else "-",
        "!verdict": "[green]pass[/]" if passed else "[bold red]FAIL[/]" if verdict else "-",
    }


def verdict_of(verdicts: "tuple[VerdictRecord, ...]", target: str) -> "VerdictRecord | None":
    """The verdict that speaks for a target: its own gated run, else the typed evaluator's."""
    gated = [v for v in verdicts if v.gates]
    own = [v for v in gated if v.runner == target]
    evaluated = [v for v in gated if v.runner == "typed-evaluator"]
    return next(iter(own or evaluated), None)


def _or_dash(value: Any, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def cost_tables(report: "CostReport") -> "Group":
    """A summary, and one table per pass: a row per sub-layer, its roofline time and what bounds it."""
    from rich.console import Group

    prefill, decode = report.prefill, report.decode
    memory = prefill.weight_bytes + prefill.kv_cache_bytes
    lines = [
        f"{report.preset}  {prefill.parameters:,} parameters, "
        f"{human_bytes(prefill.weight_bytes)} in {prefill.dtype}",
        f"KV cache  {human_bytes(prefill.kv_cache_bytes_per_token)} per token, "
        f"{human_bytes(prefill.kv_cache_bytes)} for {prefill.batch} x {prefill.sequence} tokens",
        f"{prefill.gpu.name}  {human_bytes(memory)} of {human_bytes(prefill.gpu.memory)}: "
        + ("fits" if prefill.fits else "does not fit"),
        "",
    ]
    tables = [_cost_table(prefill, {})]
    if decode is not None:
        tables.append(_cost_table(decode, report.compute_bound_batch))
    return Group(*lines, *tables)


def _cost_table(cost: "Cost", bounds: "dict[SubLayer, int | None]") -> "Table":
    rate = cost.new_tokens / cost.seconds
    title = f"{cost.mode}: {cost.seconds * 1e3:,.3f} ms, {rate:,.0f} tokens/s at most"
    columns = [
        *("!sub-layer", ">parameters", ">GFLOPs", ">needed", ">moved", ">FLOP/byte", ">ms", "bound")
    ]
    made = table(title, *columns, *([">computes from batch"] if bounds else []))
    for row in cost.rows:
        cells = [
            row.name.value,
            f"{row.parameters:,}",
            f"{row.flops / 1e9:,.1f}",
            f"{row.needed_flops / 1e9:,.1f}",
            human_bytes(row.moved_bytes),
            f"{row.intensity:,.1f}",
            f"{row.seconds * 1e3:,.3f}",
            row.bound,
        ]
        if bounds:
            cells.append(str(bounds[row.name] or "never") if row.name in bounds else "-")
        made.add_row(*cells)
    return made


def plugin_table(rows: "Sequence[Listing]") -> "Table":
    """One row per fused operator; bytes are per element of a two-byte activation."""
    made = table(
        "fused operators",
        *("!operator", "types", "!architectures", ">registers", ">bytes"),
        *(">unfused", ">gain at most", ">over fused kernels"),
    )
    for row in rows:
        registers = sorted({str(r) for r in row.registers.values()})
        made.add_row(
            row.name,
            "; ".join(f"{letter}: {', '.join(names)}" for letter, names in row.dtypes.items()),
            ", ".join(f"sm{a}" for a in row.architectures),
            "-".join(registers[:: max(1, len(registers) - 1)]) or "-",
            str(row.bytes_fused),
            str(row.bytes_primitive),
            f"{row.limit_primitive:.2f}x",
            f"{row.limit_kernels:.2f}x",
        )
    return made
