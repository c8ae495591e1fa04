"""The commands about engines: what a target will make of a graph."""

from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import console
from .cli_tools import JsonOption
from .core.errors import ExitCode, UsageError
from .tables_plans import options_text, sizes_text

if TYPE_CHECKING:
    from rich.table import Table

    from .core.bundle import Bundle
    from .engines.cache import Entry
    from .engines.compile import DryRun
    from .engines.preflight import Finding, Report
    from .recipe import Recipe


def preflight(
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="Any ONNX graph.")],
    target: Annotated[
        list[str],
        typer.Option(
            "-t", "--target", metavar="T", help="E.g. tensorrt-rtx:sm89; repeat for several."
        ),
    ],
    minimum: Annotated[
        list[str] | None,
        typer.Option(
            "--min",
            metavar="SHAPES",
            help="Smallest sizes, e.g. input_ids:1x1; once for each profile.",
        ),
    ] = None,
    optimum: Annotated[
        list[str] | None, typer.Option("--opt", metavar="SHAPES", help="Usual sizes.")
    ] = None,
    maximum: Annotated[
        list[str] | None, typer.Option("--max", metavar="SHAPES", help="Largest sizes.")
    ] = None,
    weights: Annotated[
        bool, typer.Option("--weights", help="Read every weight: infinite, NaN, stored twice.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Say, without building, why a target would refuse a graph or silently make something else of it; exit 1 if it would."""
    from .engines.preflight import preflight as look
    from .engines.target import Target

    targets = [Target.parse(text) for text in target]
    none: list[str | None] = [None]
    first, *more = zip_longest(minimum or none, optimum or none, maximum or none)
    reports = [
        look(model, each, shapes=first, more_shapes=more, thorough=weights) for each in targets
    ]

    def render() -> Any:
        from rich.console import Group

        return Group(*(part for report in reports for part in _rendered(report)))

    console.emit([report.as_dict() for report in reports], render, as_json)
    if not all(report.passed for report in reports):
        raise typer.Exit(int(ExitCode.GATE))


def _rendered(report: "Report") -> "list[Table | str]":
    """A table with one row for each rule, and a sentence."""
    from rich.markup import escape

    groups: dict[tuple[str, str, bool], list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault((finding.rule, finding.severity, finding.legalized), []).append(finding)
    made = console.table(
        f"{report.model} on {report.target}", "!rule", "", "where", "found", "what happens", "fix"
    )
    for (rule, severity, legalized), group in groups.items():
        first, more = group[0], len(group) - 1
        mark = (
            "[green]legalised[/]"
            if legalized
            else {"refused": "[red]refused[/]", "silent": "[red]silent[/]"}.get(severity, severity)
        )
        made.add_row(
            rule, mark, escape(first.node) + (f" and {more} more" if more else ""), escape(first.found),
            escape(first.happens), "compile rewrites it" if legalized else escape(first.fix),
        )  # fmt: skip
    count = len(report.failures)
    verdict = (
        f"{count} {'finding needs' if count == 1 else 'findings need'} your attention"
        if count
        else "nothing stands in the way"
    )
    line = f"{report.target}: {verdict} (rules of {report.table}; {report.seconds:.2f} s)\n"
    return [made, line] if report.findings else [line]


def refuse_with_dry_run(command: str, option: str, given: object) -> None:
    """UsageError where an option was given that a dry run has no use for."""
    if given is not None:
        why = "nothing is judged" if option == "--junit" else "nothing is built"
        raise UsageError(f"{command} --dry-run", found=f"{option}, and {why}", fix="Leave one out")


def show_build_outlook(
    recipe: "Recipe", output: Path | None, targets: list[str] | None, as_json: bool
) -> None:
    """Print what `build` would make of a recipe."""
    from .build_outlook import render_outlook
    from .pipeline import dry_run_build

    found = dry_run_build(recipe, output, targets=targets)
    console.emit(found.as_dict(), lambda: render_outlook(found), as_json)


def show_dry_runs(bundle: "Bundle", targets: list[str], as_json: bool) -> None:
    """Print what `compile` would build of a bundle; exit 1 where preflight finds what stands in the way."""
    from .pipeline import dry_run_bundle

    runs = dry_run_bundle(bundle, targets)

    def render() -> Any:
        from rich.console import Group

        return Group(*(part for name, run in runs for part in _dry_run(name, run)))

    console.emit([{"precision": name} | run.as_dict() for name, run in runs], render, as_json)
    if not all(run.preflight.passed for _, run in runs):
        raise typer.Exit(int(ExitCode.GATE))


def _dry_run(precision: str, run: "DryRun") -> "list[Table | str]":
    """A table of what goes into one engine, then what preflight finds."""
    from rich.markup import escape

    made = console.table(f"{precision} {run.target}: nothing is built", "", "")
    made.show_header = False
    rows = [("graph", f"{run.model}, {run.nodes} nodes"), ("writes", ", ".join(run.files))]
    for number, profile in enumerate(run.profiles):
        rows.append((f"profile {number}", sizes_text(profile)))
    rows += [("rewritten", line) for line in run.legalized]
    rows += [("operator", line) for line in run.plugins]
    if run.parts:
        rows += [("options", options_text(run.options))]
    mark = "hit" if run.hit else "miss" if run.parts else ""
    rows.append((f"cache {mark}", run.cached))
    for row in rows:
        made.add_row(*map(escape, row))
    return [made, *_rendered(run.preflight)]


def cache(
    action: Annotated[
        Literal["ls", "prune", "verify"],
        typer.Argument(
            help="ls: what it holds. prune: remove the least used until the rest fits, and what killed processes left. "
            "verify: compare every file with its hash, remove what does not match."
        ),
    ],
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Else $BLOCKFORGE_CACHE.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--max-size", metavar="SIZE", help="E.g. 5GiB; else $BLOCKFORGE_CACHE_SIZE."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List, shrink or check the engines that were built before; verify ends with exit 5 where it removed any."""
    from .engines.cache import FOLDER, open_cache

    store = open_cache(folder, size)
    if store is None:
        raise UsageError(
            "cache", found="none is named", fix=f"Give --dir, or set {FOLDER} to a folder"
        )
    damaged = dict(store.verify()) if action == "verify" else {}
    shown = tuple(damaged)
    if action != "verify":
        shown = store.entries() if action == "ls" else store.prune()
    left = store.entries()

    def render() -> Any:
        from rich.console import Group

        made = console.table(
            {"ls": "engines", "prune": "removed", "verify": "damaged, removed"}[action],
            "entry", "runtime", "architectures", "!bytes", "last used", "",
        )  # fmt: skip
        for entry in shown:
            made.add_row(*_cache_row(entry, damaged.get(entry, "")))
        line = f"{store.root}: {len(left)} engines, {sum(e.bytes for e in left)} of {store.max_bytes} bytes\n"
        return Group(made, line) if shown else line

    result = {
        "folder": str(store.root),
        "max_bytes": store.max_bytes,
        "bytes": sum(entry.bytes for entry in left),
        action: [entry.as_dict() | {"fault": damaged.get(entry)} for entry in shown],
    }
    console.emit(result, render, as_json)
    if damaged:
        raise typer.Exit(int(ExitCode.ARTEFACT))


def _cache_row(entry: "Entry", fault: str) -> tuple[str, ...]:
    """One line of the cache's table."""
    import time

    parts = entry.record.parts if entry.record else {}
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
    return (
        entry.digest[:12],
        parts.get("runtime", "-"),
        parts.get("architectures", "-"),
        str(entry.bytes),
        used,
        fault,
    )


COMMANDS = (preflight, cache)
