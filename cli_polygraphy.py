"""The command for Polygraphy's saved results: list them, convert them, judge them against a bundle."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import console
from .cli_tools import JsonOption
from .core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from .validate.polygraphy.results import JudgedResults
    from .validate.tensor_files import RunnerOutputs


def import_polygraphy(
    results: Annotated[
        Path, typer.Argument(metavar="RESULTS.json", help="From `polygraphy run --save-outputs`.")
    ],
    bundle: Annotated[
        Path | None, typer.Option("--bundle", metavar="BUNDLE", help="Judge them against this one.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="With --bundle: which of its graphs ran (the first).")
    ] = None,
    runner: Annotated[
        str | None, typer.Option(help="Whose results, where there are several.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="OUT", help="Save them: .npz, .safetensors, or a folder."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read Polygraphy's RunResults: list them, save them, or judge them; exit 1 when a limit is missed.

    An error where no limit of the recipe can be measured on golden outputs.
    """
    from .validate.tensor_files import load_run_results, save_tensors

    runs = load_run_results(results)
    chosen = _choose(runs, runner, results) if bundle or output or runner else None
    judged = None
    if bundle is not None and chosen is not None:
        from .core.bundle import Bundle
        from .validate.polygraphy.results import judge_results

        opened = Bundle.open(bundle)
        opened.verify()
        judged = judge_results(opened, chosen, precision)
    if output is not None and chosen is not None:
        save_tensors(output, chosen.outputs)
    rows = [_row(run) for run in runs]
    body = {
        "runners": rows,
        "saved": None if output is None else str(output),
        "verdict": None if judged is None else judged.as_dict(),
    }
    console.emit(body, lambda: _render(rows, judged, output), as_json)
    if judged is not None and not judged.passed:
        raise typer.Exit(int(ExitCode.GATE))


def _choose(runs: "tuple[RunnerOutputs, ...]", name: str | None, path: Path) -> "RunnerOutputs":
    """The runner of that name, or the only one."""
    found = [run for run in runs if name in (None, run.runner)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(run.runner for run in runs)
    asked = f"results {path}" if name is None else f"runner {name!r} in {path}"
    raise UsageError(asked, found=f"it holds those of {names}", fix="Choose with --runner")


def _row(run: "RunnerOutputs") -> dict[str, Any]:
    import statistics

    seconds = [s for s in run.seconds if s is not None]
    return {
        "runner": run.runner,
        "iterations": len(run.outputs),
        "median_seconds": statistics.median(seconds) if seconds else None,
        "outputs": {
            name: {"dtype": str(array.dtype), "shape": list(array.shape)}
            for name, array in run.outputs[0].items()
        },
    }


def _render(rows: list[dict[str, Any]], judged: "JudgedResults | None", output: Path | None) -> Any:
    from rich.console import Group
    from rich.markup import escape

    made = console.table(
        "results", "runner", ">iterations", ">median ms", "outputs (first iteration)"
    )
    for row in rows:
        outputs = ", ".join(
            f"{name} {about['dtype']} {'x'.join(map(str, about['shape'])) or 'scalar'}"
            for name, about in row["outputs"].items()
        )
        seconds = row["median_seconds"]
        time = "" if seconds is None else f"{seconds * 1e3:.4g}"
        made.add_row(escape(row["runner"]), str(row["iterations"]), time, escape(outputs))
    parts: list[Any] = [made]
    if judged is not None:
        parts += _verdict(judged)
    if output is not None:
        parts.append(f"saved  {output}")
    return Group(*parts)


def _verdict(judged: "JudgedResults") -> list[Any]:
    """The gates, the errors of each output, what broke a rule, and by which rule language was judged."""
    from rich.markup import escape

    word = "[green]passed[/]" if judged.passed else "[red]failed[/]"
    title = f"{escape(judged.runner)} as {judged.precision}: {word}"
    gates = console.table(title, "gate", ">value", "", ">limit", "")
    for gate in judged.gates:
        mark = "[green]ok[/]" if gate.passed else "[red]missed[/]"
        value, limit = f"{gate.value:.4g}", f"{gate.limit:g}"
        gates.add_row(escape(gate.name), value, gate.relation, limit, mark)
    errors = console.table(
        "errors",
        "case",
        "output",
        ">p50",
        ">p90",
        ">p99",
        ">p99.9",
        ">max",
        ">ulps",
        ">SNR dB",
        "worst",
    )
    for case, outputs in judged.measures.items():
        for name, found in outputs.items():
            worst = found.worst[0]
            where = f"{worst.actual:.6g}, not {worst.expected:.6g}, at {list(worst.index)}"
            numbers = (f"{value:.3g}" for value in found.abs_error.values())
            ratio = f"{found.snr_db:.1f}"
            errors.add_row(
                escape(case), escape(name), *numbers, f"{found.max_ulps:.3g}", ratio, escape(where)
            )
    tables = [gates, errors] if errors.row_count else [gates]
    notes = (f"note: {escape(note)}" for note in judged.notes)
    return [*tables, *(f"  {escape(finding)}" for finding in judged.findings), *notes]


COMMANDS = (import_polygraphy,)
