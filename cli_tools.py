"""The commands beside the build: graphs of others, costs, operators, this machine."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from . import console, tables

BundleArgument = Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle's folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def fuse(
    model: Annotated[Path, typer.Argument(metavar="IN.onnx", help="Any ONNX graph.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.onnx")],
    ops: Annotated[
        Literal["standard", "blockforge", "ort"], typer.Option(help="Whose operators to write.")
    ] = "standard",
    only: Annotated[
        list[str] | None, typer.Option(help="Only this pattern: rms, ln, glu, rope, attn, act.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(help="Leave this pattern, or the node of this name, alone.")
    ] = None,
    pack: Annotated[
        bool, typer.Option("--pack", help="Join linears that read one value into one product.")
    ] = False,
    explain: Annotated[bool, typer.Option(help="Say why each near match was left alone.")] = False,
    verify: Annotated[
        bool, typer.Option(help="Compare source and result in float64 at two shapes.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Recognise norms, gates, rotary embeddings and attention in an ONNX graph; one node for each."""
    from .export.fusions import FuseOptions, fuse_file

    options = FuseOptions(ops, frozenset(only or ()), frozenset(keep or ()), pack)
    report = fuse_file(model, output, options, verify=verify)
    console.emit(report.to_json(), lambda: tables.fusion_table(report, explain), as_json)


def cost(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="E.g. llama-3-8b.")],
    batch: Annotated[int, typer.Option(help="Sequences.")] = 1,
    sequence: Annotated[int, typer.Option(help="Tokens of each sequence.")] = 1024,
    dtype: Annotated[str, typer.Option(help="fp32, tf32, fp16, bf16 or fp8_e4m3.")] = "bf16",
    gpu: Annotated[str, typer.Option(help="E.g. h100-sxm, l4, rtx-5090.")] = "h100-sxm",
    as_json: JsonOption = False,
) -> None:
    """Parameters, FLOPs, bytes and roofline time of a preset on a GPU, for prefill and decode."""
    from .model.cost import cost_report

    report = cost_report(preset, batch=batch, sequence=sequence, dtype=dtype, gpu=gpu)
    console.emit(report.as_dict(), lambda: tables.cost_tables(report), as_json)


def plugins(
    ptx: Annotated[
        str | None, typer.Option(metavar="OPERATOR", help="Write this operator's kernel instead.")
    ] = None,
    arch: Annotated[int, typer.Option(help="With --ptx: 89 for sm_89.")] = 90,
    dtype: Annotated[str, typer.Option(help="With --ptx: fp32, fp16 or bf16.")] = "fp16",
    row: Annotated[int, typer.Option(help="With --ptx: elements of a row.")] = 4096,
    as_json: JsonOption = False,
) -> None:
    """List the fused operators: types, architectures, registers, and what fusing them can gain."""
    from .core.dtypes import dtype_from_name
    from .plugins.listing import list_plugins, plugin_ptx

    if ptx is not None:
        kernel = plugin_ptx(ptx, arch=arch, dtype=dtype_from_name(dtype), row=row)
        console.emit(
            {"operator": ptx, "arch": arch, "ptx": kernel.ptx}, lambda: kernel.ptx, as_json
        )
        return
    rows = list_plugins()
    console.emit([row.json() for row in rows], lambda: tables.plugin_table(rows), as_json)


def doctor(as_json: JsonOption = False) -> None:
    """Say what this machine can do, what is missing, and the command that would fix it."""
    from .engines.doctor import probe

    findings = probe()

    def render() -> Any:
        from rich.markup import escape

        made = console.table("doctor", "", "what", "found", "fix")
        marks = {
            "ok": "[green]ok[/]",
            "missing": "[yellow]missing[/]",
            "problem": "[red]problem[/]",
        }
        for finding in findings:
            mark = marks.get(finding.status, finding.status)
            made.add_row(mark, finding.name, escape(finding.detail), escape(finding.fix))
        return made

    console.emit([finding.as_dict() for finding in findings], render, as_json)


COMMANDS = (fuse, cost, plugins, doctor)
