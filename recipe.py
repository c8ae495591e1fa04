"""What decides an engine, as one TOML file.

[model]        where the weights come from and which part of the model is built
[export]       precisions of the graph and the type of its inputs and outputs
[calibration]  what the model reads while its ranges are taken
[quantize]     how precisions below 16 bits are made
[shapes]       optimisation profile, as trtexec spells it
[engines]      targets
[validate]     seeded inputs, text and limits
"""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from .core.errors import UsageError
from .core.records import DTypeName, PrecisionName
from .validate.limits import Limits

QUANTIZED = tuple(p for p in get_args(PrecisionName) if p not in get_args(DTypeName))


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSection(_Section):
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


class ExportSection(_Section):
    """precisions: one graph each. io: element type of floating inputs and outputs ("graph": as inside)."""

    precisions: Annotated[tuple[PrecisionName, ...], Field(min_length=1)] = ("fp32", "fp16")
    io: Literal["graph", "fp32", "fp16"] = "graph"

    @model_validator(mode="after")
    def _unique(self) -> Self:
        if len(set(self.precisions)) != len(self.precisions):
            raise ValueError(f"precisions names one twice: {list(self.precisions)}")
        return self


class CalibrationSection(_Section):
    """What the FP32 graph reads while ranges and scales are taken; never the text that is judged on.

    text: a UTF-8 file, None for the one that Blockforge ships; a model without a tokenizer reads seeded
    numbers. tokens: how much of it, in windows of `window`.
    """

    text: str | None = None
    tokens: Annotated[int, Field(ge=2)] = 1024
    window: Annotated[int, Field(ge=2)] = 256
    seed: int = 0


class SearchSection(_Section):
    """Let linears stay in the base type until the quantised graph keeps within a budget.

    max_kl_divergence: of next tokens, in nats; max_error: relative error of the outputs (one of the two). order: keep
    what gains most for the time it costs, or what gains most. gpu: whose roofline says what time is. tokens: of
    the calibration text, after those that scales are taken from.
    """

    max_kl_divergence: Annotated[float, Field(gt=0)] | None = None
    max_error: Annotated[float, Field(gt=0)] | None = None
    order: Literal["cheapest", "fewest"] = "cheapest"
    gpu: str = "l4"
    tokens: Annotated[int, Field(ge=2)] = 256

    @model_validator(mode="after")
    def _one_budget(self) -> Self:
        if (self.max_kl_divergence is None) == (self.max_error is None):
            raise ValueError("give either max_kl_divergence or max_error")
        return self


class QuantizeSection(_Section):
    """How the precisions below 16 bits are made.

    base: the type of everything that is not quantised. observer: how an activation's range is taken from
    the calibration run. rounding: of weights, to the nearest number or with error compensation (GPTQ).
    attention, head: quantise the attention's products and the last linear too.
    keep: linears to leave in `base`, by name or pattern (`layers.*.mlp.down_proj`); only: quantise no others.
    pack: join linears that read one input. search: what must hold, by leaving more linears in `base`.
    """

    base: Literal["fp16", "bf16"] = "fp16"
    observer: Literal["amax", "percentile", "mse"] = "mse"
    rounding: Literal["nearest", "gptq"] = "gptq"
    attention: bool = False
    head: bool = False
    keep: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    pack: bool = True
    search: SearchSection | None = None


class ShapesSection(_Section):
    """Sizes of every input at the profile's min, opt and max, e.g. `input_ids:1x128`."""

    min: str
    opt: str
    max: str


class EnginesSection(_Section):
    """targets: e.g. `onnxruntime:cpu`, `tensorrt-rtx:sm89`, `tensorrt:sm90`.

    require_dtype: a kernel computing in another type than the graph declares fails the build.
    plugins: which blockforge operators run as plugins in full TensorRT: "auto" (where measured to be faster),
    "off", or their names; elsewhere their function bodies run.
    """

    targets: tuple[str, ...] = ("onnxruntime:cpu",)
    require_dtype: bool = True
    plugins: Literal["auto", "off"] | tuple[str, ...] = "auto"

    @model_validator(mode="after")
    def _unique(self) -> Self:
        if len(set(self.targets)) != len(self.targets):
            raise ValueError(f"targets names one twice: {list(self.targets)}")
        return self


class ValidateSection(_Section):
    """seed: of the random inputs. tokens: how much of the text to read (decoder with a tokenizer only).

    limits: of every precision that limits_for does not name.
    """

    seed: int = 0
    tokens: Annotated[int, Field(ge=2)] = 512
    text: str | None = None  # a UTF-8 file; None: the text that Blockforge ships
    limits: Limits | None = None
    limits_for: dict[PrecisionName, Limits] = Field(default_factory=dict)

    def limits_of(self, precision: str) -> Limits | None:
        """The limits that a precision is judged by, None where the recipe sets none."""
        return next((v for k, v in self.limits_for.items() if k == precision), self.limits)


class Recipe(_Section):
    """A whole recipe."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    model: ModelSection
    export: ExportSection = ExportSection()
    calibration: CalibrationSection = CalibrationSection()
    quantize: QuantizeSection = QuantizeSection()
    shapes: ShapesSection
    engines: EnginesSection = EnginesSection()
    validate_: ValidateSection = Field(alias="validate")

    @model_validator(mode="after")
    def _judges(self) -> Self:
        for precision in self.export.precisions:
            limits = self.validate_.limits_of(precision)
            if limits is None:
                raise ValueError(f"validate.limits is missing: what {precision} is judged by")
            if fault := _unjudged(precision, limits):
                raise ValueError(fault)
        if unused := set(self.validate_.limits_for) - set(self.export.precisions):
            raise ValueError(f"validate.limits_for.{min(unused)} is not in export.precisions")
        return self

    def limits_of(self, precision: str) -> Limits:
        """The limits that a precision of this recipe is judged by."""
        limits = self.validate_.limits_of(precision)
        assert limits is not None, precision  # checked when the recipe was made
        return limits

    @property
    def layer(self) -> int | None:
        """The block to build, None for the whole decoder."""
        return self.model.layer if self.model.part == "block" else None


def _unjudged(precision: str, limits: Limits) -> str | None:
    """Why these limits say nothing about a precision, if so."""
    if precision not in QUANTIZED:
        if limits.max_error_over_floor is None:
            return (
                "limits.max_error_over_floor is missing: how many times PyTorch's own error in the same "
                "type an output may be off (2.0 leaves room for another order of sums)"
            )
    elif limits.max_kl_divergence is None and limits.min_cosine is None:
        return (
            f"validate.limits_for.{precision} lacks max_kl_divergence (of a decoder's next tokens, in nats) or "
            "min_cosine (of a block): rounding to 8 bits is no noise that a floor could measure"
        )
    return None


def recipe_from_dict(data: dict[str, Any], origin: str = "recipe") -> Recipe:
    """Check a recipe given as nested dictionaries; UsageError lists every field that does not fit."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(_problem(e) for e in error.errors())
        raise UsageError(
            origin, found=problems, fix="See recipes/smollm2.toml for every section"
        ) from None


def load_recipe(path: str | Path) -> Recipe:
    """Read a TOML recipe; relative paths in it become relative to its folder.

    Raises UsageError: no such file (ready recipes are listed), not TOML, or a field that does not fit.
    """
    path = Path(path)
    file = path if path.is_file() else _ready(str(path))
    if file is None:
        ready = ", ".join(sorted(f.stem for f in _recipes_folder().glob("*.toml")))
        raise UsageError(f"recipe {path}", found="no such file", fix=f"Ready recipes: {ready}")
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(
            f"recipe {path}", found=str(error), fix="A recipe is a TOML file"
        ) from None
    recipe = recipe_from_dict(data, f"recipe {path}")
    return _anchored(recipe, file.parent.resolve())


def _anchored(recipe: Recipe, folder: Path) -> Recipe:
    """Resolve the recipe's relative paths against its folder."""

    def anchor(text: str) -> str:
        return text if text.startswith("package:") else str(folder / Path(text).expanduser())

    updates: dict[str, Any] = {}
    if recipe.model.checkpoint:
        checkpoint = anchor(recipe.model.checkpoint)
        updates["model"] = recipe.model.model_copy(update={"checkpoint": checkpoint})
    if recipe.calibration.text:
        text = anchor(recipe.calibration.text)
        updates["calibration"] = recipe.calibration.model_copy(update={"text": text})
    if recipe.validate_.text:
        text = anchor(recipe.validate_.text)
        updates["validate_"] = recipe.validate_.model_copy(update={"text": text})
    return recipe.model_copy(update=updates)


def _recipes_folder() -> Path:
    return Path(__file__).parent / "recipes"


def _ready(name: str) -> Path | None:
    file = _recipes_folder() / f"{name}.toml"
    return file if Path(name).name == name and file.is_file() else None


def _problem(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"]) or "the recipe"
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{where} is not a field"
    if error["type"] == "missing":
        return f"{where} is missing"
    return f"{where}: {error['msg'].removeprefix('Value error, ')}"
