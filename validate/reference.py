"""Truth and noise floor: the PyTorch module in float64, and what it loses in the variant's dtype.

    checkpoint -> float64 module -> Truth (outputs, layer outputs)      computed once for all precisions
    checkpoint -> module in fp16 -> Floor (its spread about the truth)  computed once for each precision

One module is in memory at a time; the floor keeps sums, not tensors.
"""

import gc
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from ..core.dtypes import DType
from ..core.errors import UsageError
from ..core.manifest import TensorRecord
from ..core.progress import Progress, Step, silent
from .inputs import Case
from .language import LanguageScore, LanguageTally, next_token_nll, perplexity
from .spread import Spread, measure, pool, row_error
from .ulps import ElementTally

Load = Callable[[torch.dtype], nn.Module]  # the module with its weights in that dtype
Tensors = dict[str, torch.Tensor]
LAYER = re.compile(r"layers\.\d+")


@dataclass(frozen=True, slots=True)
class Floor:
    """What PyTorch in `dtype` loses: spreads by case and output, relative errors by layer, language.

    ulps: by output, upper edge -> elements, in ulps of `dtype`.
    """

    dtype: DType
    spreads: Mapping[str, Mapping[str, Spread]]
    layers: Mapping[str, float]
    language: LanguageScore | None
    ulps: Mapping[str, dict[str, int]] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """Whether PyTorch computed numbers: without them there is nothing to measure by."""
        spreads = (s for by_output in self.spreads.values() for s in by_output.values())
        return all(math.isfinite(s.rms) for s in spreads)

    def pooled(self, output: str) -> Spread:
        """The spread of one output over all cases."""
        return pool(by_output[output] for by_output in self.spreads.values())


@dataclass(frozen=True, slots=True)
class Truth:
    """The float64 results that every variant and runner is judged against.

    outputs: names and dims (dtype fp64). results: case -> output -> float64. layers: the output of every
    `layers.{i}` for cases[0]. vocabulary: the output that holds logits, None for a block.
    """

    load: Load
    outputs: tuple[TensorRecord, ...]
    cases: tuple[Case, ...]
    results: Mapping[str, Tensors]
    layers: Tensors
    vocabulary: str | None
    perplexity: float | None
    _floors: dict[tuple[DType, DType], Floor] = field(default_factory=dict)

    def floor(self, precision: DType, io: DType, progress: Progress = silent) -> Floor:
        """The noise floor of `precision` with outputs delivered as `io`; computed at the first call.

        Where PyTorch in fp16 overflows (its outputs are not finite), the floor is that of bf16, which
        rounds eight times more coarsely; the floor's dtype says so.
        """
        key = (precision, io)
        if key not in self._floors:
            floor = _compute_floor(self, precision, io, progress)
            if precision is DType.FP16 and not floor.finite:
                floor = self.floor(DType.BF16, io, progress)
            self._floors[key] = floor
        return self._floors[key]

    @property
    def floors(self) -> Mapping[tuple[DType, DType], Floor]:
        """The floors computed so far, by (precision, io)."""
        return self._floors

    def language_cases(self) -> tuple[Case, ...]:
        """The cases that language measures count: the windows of the text, all where there is none."""
        if self.vocabulary is None:
            return ()
        return tuple(c for c in self.cases if c.text) or self.cases


def compute_truth(
    load: Load,
    outputs: tuple[TensorRecord, ...],
    cases: tuple[Case, ...],
    *,
    vocabulary: str | None = None,
    progress: Progress = silent,
) -> Truth:
    """Run the float64 module on every case.

    load: gives the module in a dtype; its inputs are the case's feeds in order, it returns the outputs in
    order. vocabulary: which output holds logits [batch, sequence, vocabulary]. Raises UsageError for no
    case, and for a truth that is not finite: nothing could be judged against it.
    """
    if not cases:
        raise UsageError("reference run", found="no inputs", fix="Give one case or more")
    results: dict[str, Tensors] = {}
    layers: Tensors = {}
    for case, found, kept in run_module(load, torch.float64, outputs, cases, "truth", progress):
        for name, value in found.items():
            if value.is_floating_point() and not value.isfinite().all():
                raise UsageError(
                    f"float64 reference, {case.name}",
                    found=f"{name} holds values that are not finite",
                    fix="The checkpoint or the inputs are broken: no result can be judged against it",
                )
        results[case.name] = found
        layers.update(kept)
    nll = [
        next_token_nll(results[c.name][vocabulary], _ids(c)).reshape(-1)
        for c in cases
        if c.text and vocabulary is not None
    ]
    return Truth(
        load=load,
        outputs=outputs,
        cases=cases,
        results=results,
        layers=layers,
        vocabulary=vocabulary,
        perplexity=perplexity(torch.cat(nll)) if nll else None,
    )


def run_module(
    load: Load,
    dtype: torch.dtype,
    outputs: tuple[TensorRecord, ...],
    cases: tuple[Case, ...],
    label: str,
    progress: Progress = silent,
) -> Iterator[tuple[Case, Tensors, Tensors]]:
    """Load the module in `dtype` and yield each case with its outputs and, for the first, its layers.

    The module is freed when the last case has been taken.
    """
    module = load(dtype)
    total = len(cases)
    try:
        for number, case in enumerate(cases):
            progress(Step("validate", number, total, f"{label}: {case.name}"))
            kept: Tensors = {}
            hooks = _keep_layers(module, kept) if number == 0 else []
            feeds = [cast_floats(feed, dtype) for feed in case.feeds.values()]
            with torch.inference_mode():
                result = module(*feeds)
            for hook in hooks:
                hook.remove()
            values = result if isinstance(result, tuple) else (result,)
            yield case, dict(zip((o.name for o in outputs), values, strict=True)), kept
            del values, result, kept
        progress(Step("validate", total, total, label))
    finally:
        del module
        gc.collect()


def cast_floats(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The tensor in `dtype` where it holds floats; integers stay as they are."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def tally(language: LanguageTally, truth: Truth, case: Case, logits: torch.Tensor | None) -> None:
    """Count one case's logits, where the case counts and they have the truth's shape."""
    if truth.vocabulary is None or logits is None or case not in truth.language_cases():
        return
    expected = truth.results[case.name][truth.vocabulary]
    if logits.shape == expected.shape and logits.is_floating_point():
        language.add(expected, logits, _ids(case) if case.text else None, case=case.name)


def _compute_floor(truth: Truth, precision: DType, io: DType, progress: Progress) -> Floor:
    spreads: dict[str, dict[str, Spread]] = {}
    layers: dict[str, float] = {}
    language = LanguageTally()
    elements: defaultdict[str, ElementTally] = defaultdict(lambda: ElementTally(precision, worst=0))
    runs = run_module(
        truth.load,
        precision.torch,
        truth.outputs,
        truth.cases,
        f"{precision.value} floor",
        progress,
    )
    for case, found, kept in runs:
        delivered = {name: cast_floats(value, io.torch) for name, value in found.items()}
        spreads[case.name] = {
            name: measure(truth.results[case.name][name], value)
            for name, value in delivered.items()
            if value.is_floating_point()
        }
        for name in spreads[case.name]:
            elements[name].add(case.name, truth.results[case.name][name], delivered[name])
        layers |= {name: row_error(truth.layers[name], value) for name, value in kept.items()}
        tally(language, truth, case, delivered.get(truth.vocabulary or ""))
    ulps = {name: found.ulps for name, found in elements.items()}
    return Floor(precision, spreads, layers, language.score(), ulps)


def _keep_layers(module: nn.Module, kept: Tensors) -> list[torch.utils.hooks.RemovableHandle]:
    """Hook every `layers.{i}` so that its output lands in `kept`."""

    def keeper(name: str) -> Callable[[nn.Module, object, object], None]:
        def keep(_module: nn.Module, _inputs: object, output: object) -> None:
            value = output[0] if isinstance(output, tuple) else output
            assert isinstance(value, torch.Tensor), type(value)
            kept[name] = value

        return keep

    return [
        part.register_forward_hook(keeper(name))
        for name, part in module.named_modules()
        if LAYER.fullmatch(name)
    ]


def _ids(case: Case) -> torch.Tensor:
    """The token ids of a decoder's case: its only input."""
    (ids,) = case.feeds.values()
    return ids
