"""What a quantisation is asked for."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

from ...core.errors import UsageError
from ..calibration.observers import OBSERVERS, Observer

Format = Literal["fp8", "fp8-weights", "int8-weights", "int4-weights", "nvfp4"]
Rounding = Literal["nearest", "gptq"]
FORMATS: tuple[str, ...] = get_args(Format)
ROUNDINGS: tuple[str, ...] = get_args(Rounding)
REFUSED = {  # formats that exist, and why no file is written in them
    "mxfp8": "TensorRT-RTX 1.7.1 cannot import E8M0 scales, and its own operator for them runs nowhere else",
}


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """format: of the weights, and whether activations are quantised too (fp8 only).

    observer: how a static activation scale follows from calibration. rounding: of the weights; gptq makes up for
    errors with the calibration inputs. attention: also the products of attention (their inputs). head: also the
    product that gives the logits. kv_cache: store past and present keys and values in FP8. epilogues: write norm and
    quantise, gate and quantise as one operator, which full TensorRT may run as a plugin. keep: names or patterns (`*.down_proj`) of linears left high; only: the same, of
    those quantised and no others. pack: linears that read one value become one.
    """

    format: Format = "fp8"
    observer: Observer = "mse"
    rounding: Rounding = "gptq"
    attention: bool = False
    head: bool = False
    kv_cache: bool = False
    epilogues: bool = False
    keep: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    pack: bool = True

    def __post_init__(self) -> None:
        if self.format in REFUSED:
            raise UsageError(
                f"quantisation format {self.format!r}",
                found=REFUSED[self.format],
                fix=f"Known: {', '.join(FORMATS)}",
            )
        for what, value, known in (
            ("format", self.format, FORMATS),
            ("observer", self.observer, OBSERVERS),
            ("rounding", self.rounding, ROUNDINGS),
        ):
            if value not in known:
                raise UsageError(
                    f"quantisation {what} {value!r}",
                    found=f"no such {what}",
                    fix=f"Known: {', '.join(known)}",
                )
        for what, given in (("attention", self.attention), ("epilogues", self.epilogues)):
            if given and self.format != "fp8":
                raise UsageError(
                    f"{what} with format {self.format!r}",
                    found="only format 'fp8' quantises activations",
                    fix="Use format 'fp8'",
                )

    @property
    def activations(self) -> bool:
        """Whether activations are quantised with static scales."""
        return self.format == "fp8"


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a linear's name is one of `patterns`, or fits one as a shell pattern."""
    return any(name == p or fnmatchcase(name, p) for p in patterns)
