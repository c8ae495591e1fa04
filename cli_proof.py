"""The commands that prove: where two runs of one model part."""

import time
from pathlib import Path
from typing import Annotated

import typer

from . import console
from .cli_junit import JunitOption, junit_file
from .cli_tools import JsonOption
from .core.errors import ExitCode

SIDE = (
    "model.onnx, BUNDLE[:precision], BUNDLE:reference, BUNDLE:precision@target (an engine, on its GPU), a recipe, or saved "
    "values (.npz, .safetensors, Polygraphy's .json)"
)


def diff(
    reference: Annotated[str, typer.Argument(metavar="A", help=f"The reference: {SIDE}.")],
    candidate: Annotated[str, typer.Argument(metavar="B", help="What is compared with it: as A.")],
    inputs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Inputs for both: .npz, .safetensors or .json (golden or seeded)."
        ),
    ] = None,
    shapes: Annotated[
        str, typer.Option(metavar="SHAPES", help="Of seeded inputs, e.g. input_ids:2x24.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Of seeded inputs.")] = 0,
    exact: Annotated[
        bool, typer.Option(help="Compute B in float64 too: only what the graph means, no rounding.")
    ] = False,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="What saved values were computed in, in place of the type they are saved in: fp16, bf16, fp32."
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(help="How many times an operator may exceed its rounding noise.")
    ] = 1.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="DIR", help="Write the smallest graph that shows it."
        ),
    ] = None,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two runs of a model value by value: the first operator that goes wrong, and why.

    Exit code 1 where they part beyond rounding, and where one lacks an output of the other or gives it another shape, kind
    or NaN.
    """
    from .proof import diff_files
    from .tables_proof import diff_table

    with junit_file(junit, "diff", f"{reference} - {candidate}") as checks:
        started = time.monotonic()
        found = diff_files(
            reference,
            candidate,
            inputs=inputs,
            shapes=shapes,
            seed=seed,
            exact=exact,
            dtype=dtype,
            tolerance=tolerance,
            output=output,
        )
        if checks is not None:
            from .validate.junit import diff_checks

            checks += diff_checks(found, seconds=time.monotonic() - started)
        console.emit(found.as_dict(), lambda: diff_table(found), as_json)
        if not found.equal:
            raise typer.Exit(int(ExitCode.GATE))


COMMANDS = (diff,)
