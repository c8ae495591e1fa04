"""How an engine is built: the options of TensorRT's builder as the field knows them, and what exists in which product.

BuildOptions -> refused_option(options, runtime, features) -> UsageError that names the option, or None
"""

import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..core.errors import UnavailableError, UsageError

Verbosity = Literal["warning", "info", "verbose"]
HardwareCompatibility = Literal["ampere_plus", "same_compute_capability"]
IDLE = ("timeout_seconds", "timing_cache", "verbosity")  # change how a build goes, not its engine


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What the builder may do.

    DIFFERENCES says what each option is and where it exists; naming one that does not exist is an error. timing_cache: a
    file. tactic_sources: names of tensorrt's TacticSource in lower case, () for none. None: the product's default;
    for timeout_seconds, no limit. Several architectures in one engine are no option but the target's:
    `tensorrt-rtx:sm89+sm120`.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 a typo in a recipe is refused

    workspace_bytes: int | None = None
    optimization_level: int | None = None
    tf32: bool = False
    timeout_seconds: float | None = None
    timing_cache: Path | None = None
    version_compatible: bool = False
    hardware_compatibility: HardwareCompatibility | None = None
    weight_streaming: bool = False
    refit: bool = False
    strip_plan: bool = False
    tactic_sources: tuple[str, ...] | None = None
    verbosity: Verbosity = "warning"

    def as_job(self) -> dict[str, Any]:
        """The options as the build child reads them."""
        fields = dataclasses.asdict(self)
        if self.timing_cache is not None:
            fields["timing_cache"] = str(self.timing_cache.absolute())
        plain: dict[str, Any] = json.loads(json.dumps(fields))
        return plain

    def deciding(self) -> dict[str, Any]:
        """The options that decide what the engine is: a part of the cache's key."""
        return {name: value for name, value in self.as_job().items() if name not in IDLE}

    def recorded(self) -> dict[str, Any]:
        """What an engine's record says of them: those that decide what it is, and are not the default."""
        named = self.named()
        return {name: value for name, value in self.deciding().items() if name in named}

    def named(self) -> tuple[str, ...]:
        """The options that are set to something else than their default."""
        return tuple(
            field.name
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """One option in both products: "" where it works, else why it does not.

    meaning: what it is. api: what of TensorRT's API it sets, "" for none. feature: what the installed module must have.
    needs_gpu: it builds with TensorRT-RTX only where a GPU is at hand.
    """

    option: str
    meaning: str
    api: str = ""
    tensorrt: str = ""
    tensorrt_rtx: str = ""
    feature: str | None = None
    needs_gpu: bool = False

    def why_not(self, runtime: str) -> str:
        """Why `runtime` does not have it; "" where it does."""
        return self.tensorrt_rtx if runtime == "tensorrt-rtx" else self.tensorrt


# What TensorRT 11.4 and TensorRT-RTX 1.7.1 do with each option; tests/engines/test_options.py holds it against both.
# docs/targets.md shows it: `python -m blockforge.engines.options_table docs/targets.md` writes it there.
DIFFERENCES: dict[str, Difference] = {
    row.option: row
    for row in (
        Difference(
            "workspace_bytes",
            "scratch memory that a kernel may use, in bytes",
            "MemoryPoolType.WORKSPACE",
        ),
        Difference(
            "optimization_level",
            "how long the builder searches: 0 (shortest) to 5",
            "IBuilderConfig.builder_optimization_level",
        ),
        Difference(
            "tf32",
            "FP32 matrix products may round their inputs to ten bits of mantissa; both products do by default, and the "
            "verdict on an FP32 graph does not cover it",
            "BuilderFlag.TF32",
            feature="tf32",
        ),
        Difference("timeout_seconds", "a build that takes longer is ended"),
        Difference("verbosity", "which of TensorRT's words reach the log: warning, info, verbose"),
        Difference(
            "tactic_sources",
            "libraries that kernels may come from",
            "TacticSource",
            feature="tactic_sources",
        ),
        Difference(
            "weight_streaming",
            "weights may stay in host memory while the engine runs",
            "BuilderFlag.WEIGHT_STREAMING",
            feature="weight_streaming",
        ),
        Difference(
            "refit",
            "weights can be exchanged later",
            "BuilderFlag.REFIT",
            feature="refit",
            needs_gpu=True,
        ),
        Difference(
            "strip_plan",
            "the plan carries no weights and must be refitted; goes with refit",
            "BuilderFlag.STRIP_PLAN",
            feature="strip_plan",
            needs_gpu=True,
        ),
        Difference(
            "timing_cache",
            "a file of measured kernel times: read when it exists, written after the build",
            "ITimingCache",
            tensorrt_rtx="it times no kernels while building: they are chosen on the GPU that runs them",
            feature="timing_cache",
        ),
        Difference(
            "version_compatible",
            "later TensorRT versions of the same major number may load the engine",
            "BuilderFlag.VERSION_COMPATIBLE",
            tensorrt_rtx="its engines never cross releases: it has no lean runtime to put into them",
            feature="version_compatible",
        ),
        Difference(
            "hardware_compatibility",
            "other GPUs may run the engine: ampere_plus, same_compute_capability",
            "HardwareCompatibilityLevel",
            tensorrt_rtx="its builder ignores the setting: name several architectures in the target instead",
            feature="hardware_compatibility",
        ),
    )
}


def check_options(
    options: BuildOptions, runtime: str, features: Collection[str], *, gpu: bool, asked: str
) -> None:
    """Raise UsageError naming the first option that `runtime` lacks, UnavailableError for one that needs a GPU here.

    features: those of the installed module (tensorrt_api.FEATURES); gpu: whether this machine has one.
    """
    for name in options.named():
        row = DIFFERENCES[name]
        reason = row.why_not(runtime)
        if not reason and row.feature is not None and row.feature not in features:
            reason = "the installed version does not have it"
        if reason:
            raise UsageError(
                asked, found=f"{runtime} has no option {name}: {reason}", fix=f"Leave {name} out"
            )
        if row.needs_gpu and runtime == "tensorrt-rtx" and not gpu:
            raise UnavailableError(
                asked,
                found=f"{runtime} builds with {name} only where a GPU is at hand, and here is none",
                fix=f"Build on a machine with an NVIDIA GPU, or leave {name} out",
            )
    if options.strip_plan and not options.refit:
        raise UsageError(
            asked,
            found="strip_plan without refit: a plan without weights that can be given none",
            fix="Set refit too",
        )
