"""What decides an engine, as one TOML file.

[model]        where the weights come from and which part of the model is built
[export]       precisions of the graph and the type of its inputs and outputs
[calibration]  what the model reads while its ranges are taken
[quantize]     how precisions below 16 bits are made
[shapes]       optimisation profile, as trtexec spells it
[[profiles]]   instead of [shapes]: several, each with kernels of its own
[engines]      targets, and what their kernels must show
[validate]     seeded inputs, text and limits
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from .core.errors import UsageError
from .sections import (
    QUANTIZED,
    CalibrationSection,
    EnginesSection,
    ExportSection,
    ModelSection,
    QuantizeSection,
    Section,
    ShapesSection,
    ValidateSection,
)
from .validate.limits import Limits


class Recipe(Section):
    """A whole recipe."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    model: ModelSection
    export: ExportSection = ExportSection()
    calibration: CalibrationSection = CalibrationSection()
    quantize: QuantizeSection = QuantizeSection()
    shapes: ShapesSection | None = None
    profiles: tuple[ShapesSection, ...] = ()
    engines: EnginesSection = EnginesSection()
    validate_: ValidateSection = Field(alias="validate")

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.shapes is None and not self.profiles:
            raise ValueError("shapes is missing: the sizes that an engine is built for")
        if self.shapes is not None and self.profiles:
            raise ValueError(
                "give [shapes] for one optimisation profile or [[profiles]] for several"
            )
        return self

    @model_validator(mode="after")
    def _judges(self) -> Self:
        for precision in self.export.precisions:
            limits = self.validate_.limits_of(precision)
            if limits is None:
                raise ValueError(f"validate.limits is missing: what {precision} is judged by")
            if fault := _unjudged(precision, limits):
                raise ValueError(fault)
        for where, named in (
            ("validate.limits_for", self.validate_.limits_for),
            ("engines.demands_for", self.engines.demands_for),
        ):
            if unused := set(named) - set(self.export.precisions):
                raise ValueError(f"{where}.{min(unused)} is not in export.precisions")
        if unread := _unread(self.quantize, self.export.precisions):
            raise ValueError(unread)
        folded = [n for n in self.engines.plugins if n.endswith("Quantize")]
        if folded and not self.quantize.epilogues and not isinstance(self.engines.plugins, str):
            raise ValueError(
                f"engines.plugins names {folded[0]}, which a graph has only with quantize.epilogues = true"
            )
        return self

    @property
    def all_shapes(self) -> tuple[ShapesSection, ...]:
        """Every optimisation profile in its order; calibration and validation draw their inputs from the first."""
        return self.profiles if self.shapes is None else (self.shapes,)

    def limits_of(self, precision: str) -> Limits:
        """The limits that a precision of this recipe is judged by."""
        limits = self.validate_.limits_of(precision)
        assert limits is not None, precision  # checked when the recipe was made
        return limits

    @property
    def layer(self) -> int | None:
        """The block to build, None for the whole decoder."""
        return self.model.layer if self.model.part == "block" else None


def _unread(asked: QuantizeSection, precisions: Sequence[str]) -> str | None:
    """What no precision of the recipe would read in the section [quantize], if anything."""
    plain = QuantizeSection()
    below = [p for p in precisions if p in QUANTIZED]
    if not below and asked != plain:
        return f"quantize is read by {', '.join(QUANTIZED)}, none of which is in export.precisions"
    if "fp8" in below:
        return None
    given = [
        n for n in ("observer", "attention", "epilogues") if getattr(asked, n) != getattr(plain, n)
    ]
    return (
        f"quantize.{given[0]} is read by fp8, which is not in export.precisions" if given else None
    )


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
