"""The command line: every command prints a table or, with --json, one JSON document on stdout."""

import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import (
    cli_bench,
    cli_engines,
    cli_plans,
    cli_polygraphy,
    cli_precision,
    cli_proof,
    cli_serving,
    cli_trust,
    console,
    tables,
)
from .cli_junit import JunitOption, junit_file
from .cli_plans import TargetOption
from .cli_tools import COMMANDS, BundleArgument, JsonOption
from .core.errors import BlockforgeError, ExitCode, UsageError

if TYPE_CHECKING:
    from .validate.junit import Check

app = typer.Typer(
    name="blockforge",
    help="PyTorch transformers to TensorRT engines, with proof of numbers, dtypes and kernels.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130
RecipeArgument = Annotated[
    str, typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a ready recipe.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="DIR", help="Where the bundle goes (bundles/<name>)."),
]


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Log everything.")] = False,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Print the JSON Schema of a command's --json, or of `manifest`."
        ),
    ] = None,
) -> None:
    console.configure_logging(verbose)
    if schema is not None:
        from .schemas import schema_of

        console.emit(schema_of(schema), dict, True)
        raise typer.Exit
    if version:
        from importlib.metadata import version as installed

        typer.echo(f"blockforge {installed('blockforge')}")
        raise typer.Exit


@app.command()
def build(
    recipe: RecipeArgument,
    output: OutputOption = None,
    target: TargetOption = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Build engines side by side on a Ray cluster; local: one here."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be made and written, and make nothing."),
    ] = False,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export, compile, validate and report: the whole way from a recipe to a bundle."""
    from .pipeline import build as run
    from .recipe import load_recipe

    if dry_run:
        for option, given in (("--junit", junit), ("--ray", ray)):
            cli_engines.refuse_with_dry_run("build", option, given)
        cli_engines.show_build_outlook(load_recipe(recipe), output, target, as_json)
        return
    with junit_file(junit, "build", recipe) as checks:
        loaded, compiler = load_recipe(recipe), None
        if ray is not None:
            from .engines.ray_compile import ray_compiler

            compiler = ray_compiler(ray)
        with console.drawn_progress() as progress:
            bundle = run(
                loaded, output, targets=target, check=False, progress=progress, compiler=compiler
            )
        _show_bundle(bundle, as_json, checks)


@app.command()
def export(
    recipe: RecipeArgument, output: OutputOption = None, as_json: JsonOption = False
) -> None:
    """Write the bundle's ONNX graphs, without engines or verdicts."""
    from .pipeline import export as run
    from .recipe import load_recipe

    loaded = load_recipe(recipe)
    with console.drawn_progress() as progress:
        bundle = run(loaded, output, progress=progress)
    _show_bundle(bundle, as_json)


@app.command(name="compile")
def compile_(
    bundle: BundleArgument,
    target: Annotated[list[str], typer.Option("-t", "--target", metavar="T", help="Repeatable.")],
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would be built, and what stands in the way."),
    ] = False,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compile every graph of a bundle for more targets; the engines join the bundle."""
    from .core.bundle import Bundle
    from .pipeline import compile_bundle

    if dry_run:
        cli_engines.refuse_with_dry_run("compile", "--junit", junit)
        cli_engines.show_dry_runs(Bundle.open(bundle), target, as_json)
        return
    with junit_file(junit, "compile", str(bundle)) as checks:
        opened = Bundle.open(bundle)
        with console.drawn_progress() as progress:
            compiled = compile_bundle(opened, target, progress=progress)
        _show_bundle(compiled, as_json, checks)


@app.command()
def validate(
    bundle: BundleArgument, junit: JunitOption = None, as_json: JsonOption = False
) -> None:
    """Judge a bundle's graphs against the PyTorch reference again; exit 1 when a limit is missed."""
    from .core.bundle import Bundle
    from .pipeline import validate_bundle

    with junit_file(junit, "validate", str(bundle)) as checks:
        opened = Bundle.open(bundle)
        with console.drawn_progress() as progress:
            judged = validate_bundle(opened, progress=progress)
        _show_bundle(judged, as_json, checks)


@app.command()
def report(bundle: BundleArgument, as_json: JsonOption = False) -> None:
    """Write the bundle's report.html again and print where it is."""
    from .core.bundle import Bundle
    from .pipeline import report_bundle

    path = report_bundle(Bundle.open(bundle))
    console.emit({"report": str(path)}, lambda: str(path), as_json)


@app.command()
def run(
    bundle: BundleArgument,
    inputs: Annotated[
        Path,
        typer.Option(
            "--inputs",
            metavar="FILE",
            help="Input tensors: .npz, .safetensors, Polygraphy's .json, a folder, a data_loader.py.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Save the outputs there.")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="Which graph (the first).")] = None,
    target: Annotated[
        str, typer.Option("-t", "--target", help="Where to run.")
    ] = "onnxruntime:cpu",
    allow_script: Annotated[
        bool, typer.Option("--allow-script", help="Run the data-loader script given as inputs.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run one graph of a bundle on inputs from a file, one set of tensors after another."""
    from .inference import run_file

    rows = run_file(
        bundle, inputs, output, precision=precision, target=target, allow_script=allow_script
    )

    def render() -> Any:
        made = console.table("outputs", "name", "dtype", "shape", ">min", ">mean", ">max")
        for row in rows:
            numbers = (f"{row[key]:.6g}" for key in ("min", "mean", "max"))
            made.add_row(row["name"], row["dtype"], "x".join(map(str, row["shape"])), *numbers)
        return made

    console.emit(rows, render, as_json)


ROOMS = (
    *(cli_precision, cli_engines, cli_plans, cli_proof),
    *(cli_polygraphy, cli_bench, cli_serving, cli_trust),
)
for command in (*COMMANDS, *(command for room in ROOMS for command in room.COMMANDS)):
    app.command()(command)


def _show_bundle(bundle: Any, as_json: bool, checks: "list[Check] | None" = None) -> None:
    """Print the bundle's table; exit 1 when a gate failed. checks: gets a test case for each limit."""
    manifest = bundle.manifest
    if checks is not None:
        from .validate.junit import bundle_checks

        checks += bundle_checks(manifest)

    def render() -> Any:
        from rich.console import Group

        lines = [f"bundle  {bundle.path}"]
        if manifest.report:
            lines.append(f"report  {bundle.path / manifest.report}")
        return Group(tables.manifest_table(manifest), *lines)

    body = {"bundle": str(bundle.path), "passed": not manifest.failures}
    console.emit(body | {"manifest": manifest.model_dump(mode="json")}, render, as_json)
    if manifest.failures:
        error = console.stderr_console()
        error.print("[bold red]failed:[/]", *(f"  {line}" for line in manifest.failures), sep="\n")
        raise typer.Exit(int(ExitCode.GATE))


def main() -> None:
    """Entry point: turn every foreseen failure into one message and its exit code."""
    as_json = "--json" in sys.argv
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        code = app(
            standalone_mode=not as_json
        )  # returns an exit code only where it is not standalone
    except BlockforgeError as error:
        console.report_error(error, as_json)
        code = int(error.exit_code)
    except typer.TyperException as error:  # a wrong argument, with --json
        wrong = UsageError("command line", found=error.format_message(), fix="blockforge --help")
        console.report_error(wrong, as_json)
        code = int(ExitCode.USAGE)
    except Exception as error:
        traceback.print_exc()
        if as_json:
            console.report_error(BlockforgeError("blockforge", found=repr(error)), True)
        code = INTERNAL_ERROR  # Python's own 1 would read as a failed gate
    if code == INTERRUPTED and as_json:
        console.report_error(BlockforgeError("blockforge", found="interrupted"), True)
    sys.exit(code or 0)


def _interrupt(number: int, frame: Any) -> None:
    """Stop at once, and again at the next step where a library swallowed the exception."""
    console.interrupted = True
    raise KeyboardInterrupt
