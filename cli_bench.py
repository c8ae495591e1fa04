"""The command that measures time: a bundle's graphs at every size, against PyTorch, ONNX Runtime or another bundle."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from . import console
from .cli_junit import JunitOption, junit_file
from .cli_tools import JsonOption
from .core.errors import ExitCode, UsageError
from .core.whole_file import write_whole

if TYPE_CHECKING:
    from .core.bundle import Bundle
    from .validate.latency import BenchRecord, Reference


def bench(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle's folder.")],
    precision: Annotated[
        list[str] | None, typer.Option("-p", "--precision", help="Only this one; repeatable.")
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option("-t", "--target", metavar="T", help="Where (every engine that runs here)."),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="B",
            help="Compare with eager, compile, a target, a bundle or an .onnx file; repeatable.",
        ),
    ] = None,
    batch: Annotated[str, typer.Option(metavar="1,4", help="Sequences (the profile's opt).")] = "",
    sequence: Annotated[
        str, typer.Option(metavar="128,512", help="Tokens of each (the profile's opt).")
    ] = "",
    seconds: Annotated[
        float, typer.Option(help="To measure each side at each size; at least twelve rounds.")
    ] = 5.0,
    threads: Annotated[
        int | None, typer.Option(help="Of ONNX Runtime and PyTorch (each one's own choice).")
    ] = None,
    clock: Annotated[
        Literal["wall", "cpu"], typer.Option(help="On the CPU: elapsed time, or CPU time used.")
    ] = "wall",
    threshold: Annotated[
        float, typer.Option(help="A smaller difference counts as none; 0.02 is 2 %.")
    ] = 0.02,
    seed: Annotated[int, typer.Option(help="Of the order of the rounds.")] = 0,
    max_ms: Annotated[
        float | None, typer.Option(help="Exit 1 where a median is longer, in milliseconds.")
    ] = None,
    max_ratio: Annotated[
        float | None,
        typer.Option(help="Exit 1 where the ratio to a baseline is certainly larger."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Save the record as JSON.")
    ] = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="Keep the record in the bundle, and show it in its report."),
    ] = False,
    junit: JunitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure latency: first call, median, p90, p99, tokens per second, and how it compares.

    Exit code 1 where a limit is missed.
    """
    from .core.bundle import Bundle
    from .validate.latency import BenchRequest, Effort
    from .validate.latency import bench as run

    with junit_file(junit, "bench", str(bundle)) as checks:
        opened = Bundle.open(bundle)
        request = BenchRequest(
            precisions=tuple(precision or ()),
            targets=tuple(target or ()),
            against=tuple(against or ()),
            batches=_numbers("--batch", batch),
            sequences=_numbers("--sequence", sequence),
            clock=clock,
            threads=threads,
            threshold=threshold,
            max_ms=max_ms,
            max_ratio=max_ratio,
            effort=Effort(seconds=seconds, seed=seed),
        )
        if output is not None and not output.parent.is_dir():
            found = f"no folder {output.parent}"
            raise UsageError(f"save {output}", found=found, fix="Make it first")
        with console.drawn_progress() as progress:
            record = run(opened, request, _reference_of(opened), progress=progress)
        if output is not None:
            write_whole(output, record.model_dump_json(indent=1) + "\n")
        if save:
            from .proof import keep_bench

            keep_bench(opened, record)
        if checks is not None:
            from .validate.junit import bench_checks

            checks += bench_checks(record)
        console.emit(record.model_dump(mode="json"), lambda: _render(record), as_json)
        if record.failures:
            error = console.stderr_console()
            lines = (f"  {line}" for line in record.failures)
            error.print("[bold red]failed:[/]", *lines, sep="\n")
            raise typer.Exit(int(ExitCode.GATE))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts):
        raise UsageError(
            f"{option} {text}", found="not whole numbers", fix="Write sizes as 1,4 or 128,512"
        )
    return tuple(dict.fromkeys(map(int, parts)))


def _reference_of(bundle: "Bundle") -> "Callable[[], Reference]":
    """Opens the PyTorch module of the bundle's recipe, once."""
    from functools import cache

    @cache
    def open_reference() -> "Reference":
        from .core.dtypes import DType
        from .model.build import load_module, signature
        from .model.checkpoints import Checkpoint, open_checkpoint, preset_checkpoint
        from .recipe import recipe_from_dict
        from .validate.latency import Reference

        recipe = recipe_from_dict(bundle.manifest.recipe, f"recipe of bundle {bundle.path}")
        model = recipe.model
        checkpoint: Checkpoint
        if model.preset is not None:
            checkpoint = preset_checkpoint(model.preset, seed=model.seed)
        else:
            assert model.checkpoint is not None, "a recipe names one of the two"
            checkpoint = open_checkpoint(model.checkpoint)
        return Reference(
            config=checkpoint.config,
            layer=recipe.layer,
            inputs=signature(checkpoint.config, recipe.layer, DType.FP32)[0],
            load=lambda dtype: load_module(checkpoint, layer=recipe.layer, dtype=dtype),
        )

    return open_reference


def _render(record: "BenchRecord") -> Any:
    """A row for each side and size; the comparisons, where there are some; the machine in one line."""
    from rich.console import Group
    from rich.markup import escape

    parts: list[Any] = [_latencies(record)]
    if record.ratios:
        parts.append(_comparisons(record))
    machine = record.machine
    load = "-" if machine.load_before is None else f"{machine.load_before:.1f}"
    threads = f"{machine.onnxruntime_threads or 'its own choice'}, PyTorch {machine.torch_threads}"
    where = (
        f"{machine.processor}, {machine.cores} cores, load {load}; threads: ONNX Runtime {threads}"
    )
    parts += [escape(where), *(f"note: {escape(note)}" for note in record.notes)]
    for gpu in machine.gpus:
        now = gpu.after
        held = ", ".join(now.throttled_by) or "nothing"
        parts.append(
            f"{escape(gpu.name)}: {now.sm_clock_mhz} MHz, {now.power_watts} W, {now.temperature_celsius} °C, "
            f"held back by {held}"
        )
    return Group(*parts)


def _latencies(record: "BenchRecord") -> Any:
    from rich.markup import escape

    on_gpu = any(row.roofline is not None for row in record.latencies)
    made = console.table(
        "latency in ms", "side", ">batch", ">sequence", ">median", ">p90", ">p99", ">first call",
        ">calls", ">tokens/s", *([">of roofline"] if on_gpu else []),
    )  # fmt: skip
    for row in record.latencies:
        numbers = [_text(value) for value in (row.median, row.p90, row.p99, row.first)]
        rate = "-" if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f}"
        sizes = (str(row.batch or "-"), str(row.sequence or "-"))
        share = "-" if row.roofline is None else f"{row.roofline:.0%}"
        cells = (escape(row.side), *sizes, *numbers, str(row.calls), rate)
        made.add_row(*cells, *([share] if on_gpu else []))
    return made


def _comparisons(record: "BenchRecord") -> Any:
    from rich.markup import escape

    from .validate.latency import sizes_text

    made = console.table(
        "comparison", "side", "against", "size", ">ratio", "!99 % interval", ">rounds", "!verdict"
    )
    for row in record.ratios:
        made.add_row(
            escape(row.subject),
            escape(row.baseline),
            sizes_text(row.sizes),
            f"{row.ratio:.3f}",
            f"{row.interval[0]:.3f} to {row.interval[1]:.3f}",
            str(row.rounds),
            row.verdict,
        )
    return made


def _text(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "-"
    return f"{milliseconds:,.0f}" if milliseconds >= 1000 else f"{milliseconds:.4g}"


COMMANDS = (bench,)
