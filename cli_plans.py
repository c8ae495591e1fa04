"""The commands about planned engines: what is in one, and what differs between two."""

from pathlib import Path
from typing import Annotated, Any

import typer

from . import console
from .cli_tools import JsonOption
from .core.errors import ExitCode, UsageError

TargetOption = Annotated[
    list[str] | None,
    typer.Option("-t", "--target", metavar="T", help="E.g. tensorrt-rtx:sm89; repeat for several."),
]


def inspect(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE|PLAN", help="A bundle, a .layers.json, or a .plan beside one."
        ),
    ],
    target: TargetOption = None,
    precision: Annotated[str | None, typer.Option(help="Only this precision.")] = None,
    block: Annotated[
        int | None, typer.Option(help="Only the kernels of this block (the middle one).")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every kernel.")] = False,
    trtexec: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the layers of one engine as `trtexec --exportLayerInfo` does.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the planned kernels of the engines: name, type, dtypes and the ONNX nodes they cover."""
    from .inspection import open_plans, render, view_plans, write_trtexec

    plans = open_plans(path, targets=target, precision=precision)
    if trtexec is not None:
        write_trtexec(plans, trtexec)
    views = view_plans(plans, block=block, every=every)
    console.emit([view.as_dict() for view in views], lambda: render(views), as_json)


def diff_plan(
    a: Annotated[Path, typer.Argument(metavar="A", help="A bundle, a .layers.json or a .plan.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="What it is compared with.")],
    target: Annotated[
        list[str] | None,
        typer.Option("-t", "--target", metavar="T", help="Which engine; twice: A's, then B's."),
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(metavar="P", help="Which precision; twice: A's, then B's.")
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Tactics, shapes and host work must be the same too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compare two builds kernel by kernel, matched by ONNX nodes; exit 1 where fusion, kernel types or dtypes differ."""
    from .engines.plan_diff import diff_plans
    from .inspection import one_plan, require_there
    from .tables_plans import diff_tables

    targets, precisions = _two("--target", target), _two("--precision", precision)
    for path in (a, b):
        require_there(path)
    plans = [
        one_plan(path, target=wanted, precision=name)
        for path, wanted, name in zip((a, b), targets, precisions, strict=True)
    ]
    diff = diff_plans(plans[0].layers, plans[1].layers)

    def show() -> Any:
        return diff_tables(plans[0].title, plans[1].title, diff)

    console.emit(diff.as_dict(), show, as_json)
    if not (diff.identical if strict else diff.equal):
        raise typer.Exit(int(ExitCode.GATE))


def _two(option: str, given: list[str] | None) -> tuple[str | None, str | None]:
    """A's value and B's: one is for both."""
    values: list[str | None] = [*given] if given else [None]
    if len(values) > 2:
        raise UsageError(
            "diff-plan", found=f"{option} {len(values)} times", fix="Give it once or twice"
        )
    return values[0], values[-1]


COMMANDS = (inspect, diff_plan)
