"""Judge a checkpoint's variants: run each ONNX graph by each runner, beside the truth and the noise floor.

    checkpoint -> Truth, once
    Truth + Variant + Limits -> VerdictRecord of the typed evaluator, VerdictRecord of onnxruntime:cpu

The typed evaluator follows TensorRT's rules and is the gate in every precision. ONNX Runtime computes
fp16 on the CPU through fp32 and so hides overflow: in 16 bits it is a second opinion without a gate.
A TensorRT plan cannot run without a GPU; nothing is recorded for it here.
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..core.dtypes import DType, dtype_from_name
from ..core.errors import BlockforgeError, UsageError
from ..core.manifest import TensorRecord, VerdictRecord
from ..core.progress import Progress, Step, silent
from ..core.shapes import Profile
from ..model.build import load_module, signature
from ..model.checkpoints import Checkpoint
from .inputs import InputPlan, build_cases, real_states, shipped_text, text_tokens
from .limits import Limits, check_applicable
from .reference import Truth, compute_truth
from .runners import Runner, SessionRunner, TypedRunner
from .trial import Trial

SECOND_OPINION = (
    "A second opinion without a gate: ONNX Runtime's CPU kernels compute 16-bit operators through fp32, "
    "so an overflow inside the graph stays hidden here."
)


@dataclass(frozen=True, slots=True)
class Variant:
    """The graph to judge: ONNX file, and the inputs and outputs that it declares.

    precision: the type that it computes in; where it is quantised, the type that is left between its
    quantised products. name: how reports call it, the precision's name if empty.
    """

    precision: DType
    model: Path
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[TensorRecord, ...]
    name: str = ""

    @property
    def io(self) -> DType:
        """The dtype of the float outputs; the precision where there is none."""
        floats = [d for d in (dtype_from_name(o.dtype) for o in self.outputs) if d.floating]
        return floats[0] if floats else self.precision


@dataclass(frozen=True, slots=True)
class Way:
    """One way to run a variant, made only when its turn comes; judged False: a second opinion."""

    name: str
    make: Callable[[], Runner]
    judged: bool = True


def truth_for(
    checkpoint: Checkpoint,
    *,
    layer: int | None,
    profile: Profile,
    plan: InputPlan,
    text: str | None = None,
    progress: Progress = silent,
) -> Truth:
    """The float64 truth of a decoder (layer None) or one block, on cases that fit the profile.

    text: what to read instead of the shipped text; only a model whose checkpoint has a tokenizer reads, and only
    token ids that nothing else goes with say what the next one is. A block gets the hidden states that the
    decoder around it makes from the text, besides seeded numbers.
    Raises UsageError as text_tokens and compute_truth do, and what load_module raises.
    """
    config = checkpoint.config
    inputs, outputs = signature(config, layer, DType.FP64)
    reads = layer is None and len(inputs) == 1 and outputs[0].name == "logits"
    tokenizer = checkpoint.tokenizer() if reads else None
    tokens = None
    if tokenizer is not None and plan.text_tokens:
        words = shipped_text() if text is None else text
        tokens = text_tokens(tokenizer, words, count=plan.text_tokens, vocab_size=config.vocab_size)
    cases = build_cases(inputs, profile, plan, vocab_size=config.vocab_size, tokens=tokens)
    if layer is not None:
        cases = (*real_states(checkpoint, layer, profile, text), *cases)
    return compute_truth(
        lambda dtype: load_module(checkpoint, layer=layer, dtype=dtype),
        outputs,
        cases,
        vocabulary=outputs[0].name if reads else None,
        progress=progress,
    )


def ways_of(variant: Variant) -> tuple[Way, ...]:
    """The typed evaluator and ONNX Runtime on the CPU; the latter is a gate from 32 bits up."""
    wide = variant.precision.itemsize >= 4
    return (
        Way(TypedRunner.name, lambda: TypedRunner(variant.model)),
        Way(SessionRunner.name, lambda: SessionRunner(variant.model), judged=wide),
    )


def judge_variant(
    truth: Truth,
    variant: Variant,
    limits: Limits,
    progress: Progress = silent,
    *,
    ways: Sequence[Way] | None = None,
) -> list[VerdictRecord]:
    """One verdict for each way of running the variant; the truth's floor for it is computed once.

    Raises UsageError when a limit is set that this model cannot be measured by, and whatever a judged
    runner raises. A second opinion that cannot run is recorded as such.
    """
    check_limits(truth, limits)
    truth.floor(variant.precision, variant.io, progress)
    verdicts = []
    for way in ways if ways is not None else ways_of(variant):
        try:
            verdict = _try(truth, variant, way, limits, progress)
        except BlockforgeError as error:
            if way.judged:
                raise
            found = f"It could not run: {error.found}"  # without the path of a temporary folder
            verdict = VerdictRecord(
                runner=way.name, passed=True, outputs=(), gates=(), notes=(found,)
            )
        verdicts.append(verdict if way.judged else _without_gate(verdict))
        gc.collect()
    return verdicts


def check_limits(truth: Truth, limits: Limits) -> None:
    """Raise UsageError for a limit that would never be applied."""
    check_applicable(
        limits, language=truth.vocabulary is not None, text=truth.perplexity is not None
    )
    if limits.max_layer_error_over_floor is not None and not truth.layers:
        raise UsageError(
            "limit max_layer_error_over_floor",
            found="the module has no part called layers.{i}",
            fix="Leave this limit out of the recipe",
        )


def feeds_for(
    inputs: Sequence[TensorRecord], feeds: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The case's feeds in the dtypes that the graph declares."""
    return {r.name: feeds[r.name].to(dtype_from_name(r.dtype).torch) for r in inputs}


def _try(
    truth: Truth, variant: Variant, way: Way, limits: Limits, progress: Progress
) -> VerdictRecord:
    """Run every case one way and judge what was seen."""
    floor = truth.floor(variant.precision, variant.io)
    trial = Trial(
        truth,
        floor,
        variant.precision,
        variant.outputs,
        slack=limits.max_error_over_floor,
        closely=way.judged,
    )
    label = f"{variant.name or variant.precision.value} {way.name}"
    total = len(truth.cases)
    runner = way.make()
    try:
        for number, case in enumerate(truth.cases):
            progress(Step("validate", number, total, f"{label}: {case.name}"))
            keep = [n for n in truth.layers if n in runner.values] if number == 0 else []
            trial.see(case, runner.run(feeds_for(variant.inputs, case.feeds), keep))
    finally:
        runner.close()
    progress(Step("validate", total, total, label))
    return trial.verdict(way.name, limits, inner=runner.inner)


def _without_gate(verdict: VerdictRecord) -> VerdictRecord:
    """The same measurements as a second opinion."""
    notes = (SECOND_OPINION, *verdict.notes)
    return verdict.model_copy(update={"passed": True, "judged": False, "gates": (), "notes": notes})
