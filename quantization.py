"""Give any ONNX graph a precision: FP32 file -> ranges -> FP16 or BF16 -> FP8, INT8, INT4 where asked."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .core.dtypes import dtype_from_onnx
from .core.errors import ArtefactError, UsageError
from .core.progress import Progress, silent

if TYPE_CHECKING:
    import onnx_ir as ir
    import torch
    from tokenizers import Tokenizer

    from .export.precision import PrecisionOptions, PrecisionReport
    from .export.quantize.options import QuantizeOptions
    from .export.quantize.report import QuantizeReport
    from .export.search.cost import Roofline
    from .export.search.judge import BudgetMeasure
    from .export.search.ranking import Budget
    from .export.search.search import SearchReport

    Feeds = list[dict[str, torch.Tensor]]

QUANTISERS = {"QuantizeLinear", "DequantizeLinear"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done: typing, quantisation and search, None where it was not asked for or was there before."""

    typing: "PrecisionReport | None"
    quantization: "QuantizeReport | None"
    search: "SearchReport | None" = None

    def to_json(self) -> dict[str, Any]:
        """Both reports as plain data."""
        return {
            "typing": self.typing and self.typing.to_json(),
            "quantization": self.quantization and self.quantization.to_json(),
            "search": self.search and self.search.to_json(),
        }


@dataclass(frozen=True, slots=True)
class Search:
    """Linears are kept high until `budget` holds, at the least cost by `roofline`."""

    budget: "Budget"
    roofline: "Roofline"


def search_of(
    limits: "Mapping[BudgetMeasure, float | None]", gpu: str, tokens: int, *, quantizes: bool
) -> Search | None:
    """The search that the one limit given asks for, None without one.

    UsageError for two, for one that nothing meets, and where nothing is quantised.
    """
    from .export.search.cost import roofline
    from .export.search.ranking import Budget

    given = [(limit, measure) for measure, limit in limits.items() if limit is not None]
    if not given:
        return None
    if len(given) > 1 or not quantizes or not given[0][0] > 0:
        found = f"{given[0][0]:g}" if quantizes else "a 16-bit precision"
        raise UsageError(
            "search within a budget",
            found=f"{len(given)} budgets" if len(given) > 1 else found,
            fix="Give one of --max-kl and --max-error above 0, --max-perplexity-ratio and --max-error-over-floor above 1, "
            "with a precision below 16 bits",
        )
    return Search(Budget(*given[0]), roofline(gpu, tokens))


def quantize_graph(
    source: Path,
    output: Path,
    feeds: "Feeds",
    *,
    typing: "PrecisionOptions | None",
    quantization: "QuantizeOptions | None" = None,
    search: Search | None = None,
    progress: Progress = silent,
) -> Outcome:
    """Write the graph at `source` to `output`, typed, and quantised where `quantization` is given.

    The file stands alone: all its weights lie in `<output>.data`. typing: None keeps the types that the graph has.
    feeds: sets of the graph's inputs, as it declares them; the last quarter of them, one at least, is what a search is
    measured on. A graph that is quantised already is only looked at by the second step. Raises what require_output,
    typed_file, quantize_file and search_file raise; nothing is left then.
    """
    from .export.precision import typed_file
    from .graph.output import require_output

    require_output(source, output)
    if quantization is None:
        assert typing is not None, "nothing was asked for"
        return Outcome(typed_file(source, output, feeds, typing, progress), None)
    _require_feeds(source, feeds, quantization, search)
    if typing is None or _quantized(source):
        _require_finite(source, feeds)
        return _quantize(None, source, output, feeds, quantization, search, progress)
    with tempfile.TemporaryDirectory(prefix="blockforge.") as scratch:
        typed = Path(scratch) / "model.onnx"
        report = typed_file(source, typed, feeds, typing, progress)
        fitting = feeds if report.already else as_declared(typed, feeds)
        return _quantize(report, typed, output, fitting, quantization, search, progress)


def _quantize(
    typing: "PrecisionReport | None",
    source: Path,
    output: Path,
    feeds: "Feeds",
    options: "QuantizeOptions",
    search: Search | None,
    progress: Progress,
) -> Outcome:
    from .export.quantize.quantize import quantize_file
    from .export.search.search import search_file

    if search is None:
        return Outcome(typing, quantize_file(source, output, feeds, options, progress))
    count = max(1, len(feeds) // 4)
    found = search_file(
        source,
        output,
        feeds[:-count],
        feeds[-count:],
        options,
        search.budget,
        search.roofline,
        progress,
    )
    return Outcome(typing, found.quantize, found)


def _require_feeds(
    source: Path, feeds: "Feeds", options: "QuantizeOptions", search: Search | None
) -> None:
    """UsageError where quantising would ask for more feeds than there are, before any work is done."""
    from .export.linears.find import find_linears
    from .graph.io import load_model

    if search is not None and 0 < len(feeds) < 2:
        raise UsageError(
            "search within a budget",
            found="one set of calibration inputs",
            fix="Give 2 or more with --calibration: some for scales, the last to measure by",
        )
    calibrated = options.activations or options.kv_cache or options.rounding == "gptq"
    if feeds or not (calibrated or search is not None):
        return
    if _quantized(source) and all(x.reason for x in find_linears(load_model(source), options)):
        return  # it is written as it is
    weights = "" if options.format.endswith("-weights") else "--precision fp8-weights and "
    raise UsageError(
        f"quantise to {options.format}",
        found="no calibration inputs, which scales or weights are chosen by",
        fix="Give --calibration DATA: .npz, .safetensors, .json, a folder, or .txt"
        + ("" if search is not None else f"; {weights}--rounding nearest needs none"),
    )


def _require_finite(source: Path, feeds: "Feeds") -> None:
    from onnx_ir.passes import common

    from .export.precision.finite import require_finite
    from .graph.io import load_model

    model = load_model(source)
    common.InlinePass()(model)
    require_finite(model, feeds)


def load_feeds(
    model: Path, paths: Sequence[Path], tokenizer: Path | None = None, *, window: int = 256
) -> "Feeds":
    """Calibration inputs for the graph at `model`, from files of tensors or, with a tokenizer.json, from texts.

    paths: .npz, .safetensors, Polygraphy's JSON, folders of these, or .txt. A text fills the one input of token ids
    in windows of `window` tokens; masks are ones, positions count, token types are zero. Raises UsageError for
    what does not fit, ArtefactError for a damaged file.
    """
    import torch

    from .graph.io import load_model
    from .validate.tensor_files import load_tensors

    if not paths:
        return []
    inputs = load_model(model).graph.inputs
    texts = [path for path in paths if path.suffix == ".txt"]
    if texts and tokenizer is None:
        raise UsageError(
            f"calibration text {texts[0]}",
            found="no tokenizer",
            fix="Give --tokenizer tokenizer.json, or tensors in .npz or .safetensors",
        )
    feeds: Feeds = []
    for path in paths:
        if path in texts:
            assert tokenizer is not None
            feeds += _text_feeds(path, _tokenizer(tokenizer), inputs, window)
            continue
        for tensors in load_tensors(path):
            feeds.append({name: torch.from_numpy(array) for name, array in tensors.items()})
    return feeds


def _tokenizer(path: Path) -> "Tokenizer":
    from tokenizers import Tokenizer

    if not path.is_file():
        raise UsageError(f"tokenizer {path}", found="no such file", fix="Name a tokenizer.json")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library has no types of its own
        raise ArtefactError(f"tokenizer {path}", found=f"cannot be read: {error}") from None


def _text_feeds(
    path: Path, tokenizer: "Tokenizer", inputs: "Sequence[ir.Value]", window: int
) -> "Feeds":
    import torch

    from .export.calibration.feeds import token_feeds

    names = [str(value.name) for value in inputs]
    if "input_ids" not in names:
        raise UsageError(
            f"calibration text {path}",
            found=f"the graph has no input_ids, but {', '.join(names)}",
            fix="Give its inputs as tensors in .npz or .safetensors",
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"text {path}", found=str(error), fix="Name a UTF-8 text file") from None
    feeds = []
    for feed in token_feeds(tokenizer, length=window, text=text):
        ids = feed["input_ids"]
        made = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "position_ids": torch.arange(ids.shape[1])[None],
            "token_type_ids": torch.zeros_like(ids),
        }
        if missing := [name for name in names if name not in made]:
            raise UsageError(
                f"calibration text {path}",
                found=f"nothing to give to {', '.join(missing)}",
                fix="Give all inputs as tensors in .npz or .safetensors",
            )
        kinds = {str(v.name): torch_type(v) for v in inputs}
        feeds.append({name: made[name].to(kinds[name]) for name in names})
    return feeds


def torch_type(value: "ir.Value") -> "torch.dtype":
    """torch's type for an input's declared one."""
    assert value.dtype is not None, value.name
    return dtype_from_onnx(int(value.dtype)).torch


def as_declared(model: Path, feeds: "Sequence[Mapping[str, torch.Tensor]]") -> "Feeds":
    """The feeds with float inputs in the types that the graph at `model` declares."""
    from .graph.io import load_model

    kinds = {str(v.name): torch_type(v) for v in load_model(model).graph.inputs}
    return [
        {n: t.to(kinds[n]) if t.is_floating_point() and n in kinds else t for n, t in feed.items()}
        for feed in feeds
    ]


def _quantized(model: Path) -> bool:
    from .graph.io import load_model

    return any(node.op_type in QUANTISERS for node in load_model(model).graph)
