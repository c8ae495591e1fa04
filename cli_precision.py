"""The command that gives a graph another precision."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from . import console, tables
from .cli_tools import JsonOption
from .core.errors import UsageError

if TYPE_CHECKING:
    from .quantization import Outcome


# Options that only a precision below 16 bits reads, and those that a graph quantised before has no use for.
BELOW_16_BITS = (
    *("base", "observer", "rounding", "attention", "head", "kv_cache", "epilogues"),
    *("keep", "only", "pack"),
)
BUDGETS = ("max_kl", "max_error", "max_perplexity_ratio", "max_error_over_floor")
UNUSED_BY_A_COPY = (*BELOW_16_BITS, "calibration", "io", "island", *BUDGETS)


def quantize(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(metavar="IN.onnx", help="Any ONNX graph.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.onnx")],
    precision: Annotated[
        Literal["fp16", "bf16", "fp8", "fp8-weights", "int8-weights", "int4-weights", "nvfp4"],
        typer.Option(help="What the matrix products, or their weights, become."),
    ],
    calibration: Annotated[
        list[Path] | None,
        typer.Option(metavar="DATA", help="Inputs: .npz, .safetensors, .json, a folder, or .txt."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="tokenizer.json", help="For calibration texts.")
    ] = None,
    window: Annotated[int, typer.Option(help="Tokens that are read at a time.")] = 256,
    base: Annotated[
        Literal["fp16", "bf16", "keep"], typer.Option(help="Type of what is not quantised.")
    ] = "fp16",
    io: Annotated[
        Literal["keep", "graph"], typer.Option(help="Types of float inputs and outputs.")
    ] = "keep",
    island: Annotated[
        Literal["fp32", "bf16"], typer.Option(help="Type of what no scaling can repair.")
    ] = "fp32",
    observer: Annotated[
        Literal["amax", "percentile", "mse"] | None,
        typer.Option(help="How an input's scale is chosen; mse by itself."),
    ] = None,
    rounding: Annotated[
        Literal["nearest", "gptq"], typer.Option(help="How weights are rounded.")
    ] = "gptq",
    attention: Annotated[bool, typer.Option(help="Quantise attention's products too.")] = False,
    head: Annotated[bool, typer.Option(help="Quantise the product that gives logits too.")] = False,
    kv_cache: Annotated[
        bool, typer.Option(help="Store past and present keys and values in FP8.")
    ] = False,
    epilogues: Annotated[
        bool, typer.Option(help="Norm or gate and quantise as one operator, for plugins.")
    ] = False,
    keep: Annotated[
        list[str] | None, typer.Option(help="Linears to leave, by name or pattern; repeatable.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Quantise only these, by name or pattern.")
    ] = None,
    pack: Annotated[bool, typer.Option(help="Join linears that read one input.")] = True,
    max_kl: Annotated[
        float | None, typer.Option(help="Keep linears high until next tokens' KL fits this.")
    ] = None,
    max_error: Annotated[
        float | None, typer.Option(help="The same by the outputs' relative error.")
    ] = None,
    max_perplexity_ratio: Annotated[
        float | None, typer.Option(help="The same by perplexity over the unquantised graph's.")
    ] = None,
    max_error_over_floor: Annotated[
        float | None, typer.Option(help="The same by error over that of the unquantised graph.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="Whose roofline says what keeping one costs.")] = "l4",
    tokens: Annotated[int, typer.Option(help="At how many tokens it is asked.")] = 128,
    as_json: JsonOption = False,
) -> None:
    """Give an ONNX graph another precision, with its ranges proven on calibration inputs.

    With a budget (one of --max-...) the last quarter of the calibration inputs is what it is measured on.
    """
    from .core.dtypes import DType
    from .export.precision import PrecisionOptions
    from .export.quantize.options import QuantizeOptions
    from .graph.output import require_output
    from .quantization import load_feeds, quantize_graph, search_of

    require_output(model, output, (*(calibration or ()), *((tokenizer,) if tokenizer else ())))
    plain = precision in ("fp16", "bf16")
    text = any(path.suffix == ".txt" for path in calibration or ())
    if plain:
        _refuse(context, BELOW_16_BITS, "a precision below 16 bits")
    if not _given(context, BUDGETS):
        _refuse(context, ("gpu", "tokens"), f"a search ({', '.join(map(_option, BUDGETS))})")
    if not text:
        _refuse(context, ("tokenizer", "window"), "a calibration text (.txt)")
    if base == "keep":
        _refuse(context, ("io", "island"), "a base other than keep")
    typed_as = precision if plain else base
    typing = None
    if typed_as != "keep":
        typing = PrecisionOptions(DType(typed_as), io=io, island=DType(island))
    quantization = None
    if not plain:
        quantization = QuantizeOptions(
            format=precision,  # type: ignore[arg-type]
            observer=observer,
            rounding=rounding,
            attention=attention,
            head=head,
            kv_cache=kv_cache,
            epilogues=epilogues,
            keep=tuple(keep or ()),
            only=tuple(only or ()),
            pack=pack,
        )
    search = search_of(
        {
            "kl": max_kl,
            "error": max_error,
            "perplexity": max_perplexity_ratio,
            "floor": max_error_over_floor,
        },
        gpu,
        tokens,
        quantizes=quantization is not None,
    )
    feeds = load_feeds(model, calibration or (), tokenizer, window=window)
    with console.drawn_progress() as progress:
        outcome = quantize_graph(
            model,
            output,
            feeds,
            typing=typing,
            quantization=quantization,
            search=search,
            progress=progress,
        )
    console.emit(outcome.to_json(), lambda: tables.quantization_tables(outcome), as_json)
    if unread := _given(context, _unused(outcome)):
        console.stderr_console().print(
            f"without effect, as the graph was {precision if plain else 'quantised'} before and was copied: "
            + ", ".join(unread)
        )


def _refuse(context: typer.Context, names: Iterable[str], reader: str) -> None:
    """UsageError where the command line has one of the options `names`, which only `reader` would read."""
    if given := _given(context, names):
        raise UsageError(
            f"quantize with {', '.join(given)}",
            found=f"only {reader} reads {'it' if len(given) == 1 else 'them'}",
            fix=f"Leave {'it' if len(given) == 1 else 'them'} out, or ask for {reader}",
        )


def _given(context: typer.Context, names: Iterable[str]) -> list[str]:
    """Those of the options `names` that the command line has, as they are written there."""
    return [
        _option(name)
        for name in names
        if (source := context.get_parameter_source(name)) and source.name == "COMMANDLINE"
    ]


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _unused(outcome: "Outcome") -> tuple[str, ...]:
    """The options that an output which is a copy had no use for."""
    if outcome.quantization is None:
        copied = outcome.typing is not None and outcome.typing.already is not None
        return ("calibration", "io", "island") if copied else ()
    if not outcome.quantization.already:
        return ()
    folded = bool(outcome.quantization.epilogues)
    return tuple(name for name in UNUSED_BY_A_COPY if not (folded and name == "epilogues"))


COMMANDS = (quantize,)
