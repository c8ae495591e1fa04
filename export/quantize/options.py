"""What a quantisation is asked for."""

from dataclasses import dataclass
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

    observer: how a static scale of an activation or a cache follows from calibration, None: mse where there is one. rounding: of the weights; gptq makes up for
    errors with the calibration inputs. attention: also the products of attention (their inputs). head: also the
    product that gives the logits. kv_cache: store past and present keys and values in FP8. epilogues: write norm and
    quantise, gate and quantise as one operator, which full TensorRT may run as a plugin. keep: names or patterns (`*.down_proj`) of linears left high; only: the same, of
    those quantised and no others. pack: linears that read one value become one.
    """

    format: Format = "fp8"
    observer: Observer | None = None
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
            ("observer", self.observer, (None, *OBSERVERS)),
            ("rounding", self.rounding, ROUNDINGS),
        ):
            if value not in known:
                raise UsageError(
                    f"quantisation {what} {value!r}",
                    found=f"no such {what}",
                    fix=f"Known: {', '.join(k for k in known if k)}",
                )
        for what, given in (("attention", self.attention), ("epilogues", self.epilogues)):
            if given and self.format != "fp8":
                raise UsageError(
                    f"{what} with format {self.format!r}",
                    found="only format 'fp8' quantises activations",
                    fix="Use format 'fp8'",
                )
        if self.observer is not None and not self.observes:
            raise UsageError(
                f"observer {self.observer!r} with format {self.format!r}",
                found="only weights are quantised, whose scales follow from the weights",
                fix="Leave it out, or use format 'fp8' or kv_cache",
            )

    @property
    def activations(self) -> bool:
        """Whether activations are quantised with static scales."""
        return self.format == "fp8"

    @property
    def observes(self) -> Observer | None:
        """The observer that chooses static scales, None where the graph gets none."""
        return (self.observer or "mse") if self.activations or self.kv_cache else None
