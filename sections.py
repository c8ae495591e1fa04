"""The sections of a recipe, as typed data; recipe.py puts them together and reads the file."""

from typing import TYPE_CHECKING, Annotated, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from .core.records import DTypeName, PrecisionName
from .engines.options import BuildOptions
from .validate.limits import Limits

if TYPE_CHECKING:
    from .export.search.judge import BudgetMeasure

QUANTIZED = tuple(p for p in get_args(PrecisionName) if p not in get_args(DTypeName))


class Section(BaseModel):
    """Closed and frozen: a typo is refused, and nothing changes after it was checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(Section):
    """The reference model: a checkpoint, or a preset with seeded random weights.

    checkpoint: a Hugging Face folder (config.json and safetensors), a GGUF file, or
    `package:<import name>/<file>` for one inside an installed Python package. Relative paths
    start at the recipe's folder.
    part: the whole decoder (token ids -> logits) or one block (hidden states in and out).
    layer: which block, counted from 0; only with part = "block".
    """

    checkpoint: Annotated[str, Field(min_length=1)] | None = None
    preset: str | None = None
    seed: int = 0
    part: Literal["decoder", "block"] = "decoder"
    layer: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.checkpoint is None) == (self.preset is None):
            raise ValueError("give either checkpoint or preset")
        if self.part == "decoder" and self.layer:
            raise ValueError('layer goes with part = "block"')
        return self


class ExportSection(Section):
    """precisions: one graph each. io: element type of floating inputs and outputs ("graph": as inside).

    pack: join linears that read one input (q, k and v; gate and up) into one product, which takes fewer kernels.
    """

    precisions: Annotated[tuple[PrecisionName, ...], Field(min_length=1)] = ("fp32", "fp16")
    io: Literal["graph", "fp32", "fp16"] = "graph"
    pack: bool = True

    @model_validator(mode="after")
    def _unique(self) -> Self:
        if len(set(self.precisions)) != len(self.precisions):
            raise ValueError(f"precisions names one twice: {list(self.precisions)}")
        return self


class CalibrationSection(Section):
    """What the FP32 graph reads while ranges and scales are taken; never the text that is judged on.

    text: a UTF-8 file, None for the one that Blockforge ships; a model without a tokenizer reads seeded
    numbers. tokens: how much of it, in windows of `window`.
    """

    text: str | None = None
    tokens: Annotated[int, Field(ge=2)] = 2048
    window: Annotated[int, Field(ge=2)] = 512
    seed: int = 0


class SearchSection(Section):
    """Let linears stay in the base type until the quantised graph keeps within a budget.

    One budget: max_kl_divergence, of next tokens, in nats; max_error, relative error of the outputs;
    max_perplexity_ratio, to the unquantised graph's; max_error_over_floor, error of the outputs over that which the
    unquantised graph's own arithmetic makes. order: keep what gains most for the time it costs, or what gains most.
    gpu: whose roofline says what time is. tokens: of the calibration text, after those that scales are taken from.
    """

    max_kl_divergence: Annotated[float, Field(gt=0)] | None = None
    max_error: Annotated[float, Field(gt=0)] | None = None
    max_perplexity_ratio: Annotated[float, Field(gt=1)] | None = None
    max_error_over_floor: Annotated[float, Field(gt=1)] | None = None
    order: Literal["cheapest", "fewest"] = "cheapest"
    gpu: str = "l4"
    tokens: Annotated[int, Field(ge=2)] = 256
    min_quantized_share: Annotated[float, Field(ge=0, le=1)] = 0.0

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if len(given := self._budgets()) != 1:
            raise ValueError(
                "give one of max_kl_divergence, max_error, max_perplexity_ratio and max_error_over_floor, "
                f"not {len(given)}"
            )
        return self

    @property
    def budget(self) -> tuple[float, "BudgetMeasure"]:
        """The limit, and what it is of."""
        return self._budgets()[0]

    def _budgets(self) -> list[tuple[float, "BudgetMeasure"]]:
        limits: dict[BudgetMeasure, float | None] = {
            "kl": self.max_kl_divergence,
            "error": self.max_error,
            "perplexity": self.max_perplexity_ratio,
            "floor": self.max_error_over_floor,
        }
        return [(limit, measure) for measure, limit in limits.items() if limit is not None]


class QuantizeSection(Section):
    """How the precisions below 16 bits are made.

    base: the type of everything that is not quantised. observer: how an activation's range is taken from
    the calibration run. rounding: of weights, to the nearest number or with error compensation (GPTQ).
    attention, head: quantise the attention's products and the last linear too. kv_cache: store past and present keys and
    values in FP8. epilogues: write norm and quantise, gate and quantise as one operator, for full TensorRT's plugins.
    keep: linears to leave in `base`, by name or pattern (`layers.*.mlp.down_proj`); only: quantise no others.
    pack: join linears that read one input. search: what must hold, by leaving more linears in `base`.
    """

    base: Literal["fp16", "bf16"] = "fp16"
    observer: Literal["amax", "percentile", "mse"] = "mse"
    rounding: Literal["nearest", "gptq"] = "gptq"
    attention: bool = False
    head: bool = False
    kv_cache: bool = False
    epilogues: bool = False
    keep: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    pack: bool = True
    search: SearchSection | None = None

    @model_validator(mode="after")
    def _no_search_over_caches(self) -> Self:
        if self.kv_cache and self.search is not None:
            raise ValueError("kv_cache goes without search: name the linears to keep instead")
        return self


class ShapesSection(Section):
    """Sizes of every input at one profile's min, opt and max, e.g. `input_ids:1x128`."""

    min: str
    opt: str
    max: str


class DemandsSection(Section):
    """What the planned kernels of a TensorRT engine must show; a violation fails the build.

    max_kernels_per_block: device kernels that one block may take. require_fused: norm, attention, swiglu, rope: one kernel
    for each such operator. require_dtype: the type that every "gemm" or "attention" kernel computes in; spared: nodes
    whose name starts so are left out of it, e.g. "lm_head".
    """

    max_kernels_per_block: Annotated[float, Field(gt=0)] | None = None
    require_fused: tuple[Literal["norm", "attention", "swiglu", "rope"], ...] = ()
    require_dtype: dict[Literal["gemm", "attention"], DTypeName | Literal["fp8"]] = Field(
        default_factory=dict
    )
    spared: tuple[str, ...] = ()


class EnginesSection(DemandsSection):
    """targets: e.g. `onnxruntime:cpu`, `tensorrt-rtx:sm89`, `tensorrt:sm90`.

    check_dtype: a kernel computing in another type than the graph declares fails the build.
    plugins: which blockforge operators run as plugins in full TensorRT: "auto" (where measured to be faster),
    "off", or their names; elsewhere their function bodies run. options: of the builder, for every TensorRT target; one
    that a target's product lacks is refused by name. demands_for: what one precision must show, instead
    of the demands that stand here.
    """

    targets: tuple[str, ...] = ("onnxruntime:cpu",)
    check_dtype: bool = True
    plugins: Literal["auto", "off"] | tuple[str, ...] = "auto"
    options: BuildOptions = BuildOptions()
    demands_for: dict[PrecisionName, DemandsSection] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _unique(self) -> Self:
        if len(set(self.targets)) != len(self.targets):
            raise ValueError(f"targets names one twice: {list(self.targets)}")
        return self

    def demands_of(self, precision: str) -> DemandsSection:
        """What the engines of a precision must show."""
        return next((v for k, v in self.demands_for.items() if k == precision), self)


class ValidateSection(Section):
    """seed: of the random inputs. tokens: how much of the text to read (decoder with a tokenizer only).

    seeds: random inputs at opt sizes, counted up from seed; two or more give error over floor an interval.
    limits: of every precision that limits_for does not name.
    """

    seed: int = 0
    seeds: Annotated[int, Field(ge=1, le=64)] = 1
    tokens: Annotated[int, Field(ge=2)] = 512
    text: str | None = None  # a UTF-8 file; None: the text that Blockforge ships
    limits: Limits | None = None
    limits_for: dict[PrecisionName, Limits] = Field(default_factory=dict)

    def limits_of(self, precision: str) -> Limits | None:
        """The limits that a precision is judged by, None where the recipe sets none."""
        return next((v for k, v in self.limits_for.items() if k == precision), self.limits)
