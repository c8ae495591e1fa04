"""The command that gives a graph another precision."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from . import console, tables
from .cli_tools import JsonOption


def quantize(
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
        Literal["amax", "percentile", "mse"], typer.Option(help="How an input's scale is chosen.")
    ] = "mse",
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
    gpu: Annotated[str, typer.Option(help="Whose roofline says what keeping one costs.")] = "l4",
    tokens: Annotated[int, typer.Option(help="At how many tokens it is asked.")] = 128,
    as_json: JsonOption = False,
) -> None:
    """Give an ONNX graph another precision, with its ranges proven on calibration inputs.

    With a budget (--max-kl, --max-error) the last quarter of the calibration inputs is what it is measured on.
    """
    from .core.dtypes import DType
    from .export.precision import PrecisionOptions
    from .export.quantize.options import QuantizeOptions
    from .quantization import load_feeds, quantize_graph, search_of

    plain = precision in ("fp16", "bf16")
    typed_as = precision if plain else base
    typing = None
    if typed_as != "keep":
        typing = PrecisionOptions(DType(typed_as), io=io, island=DType(island))
    quantization = None
    if precision not in ("fp16", "bf16"):
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
    search = search_of(max_kl, max_error, gpu, tokens, quantizes=quantization is not None)
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


COMMANDS = (quantize,)
