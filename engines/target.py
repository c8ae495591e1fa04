"""A target: the runtime that executes an engine, and what it runs on.

"tensorrt-rtx:sm89" -> Target(runtime="tensorrt-rtx", device="sm89")
"tensorrt-rtx:sm89+sm120" -> one engine for both architectures: one plan, which may be another than either would get alone
"""

from dataclasses import dataclass

from ..core.errors import UsageError

# What each runtime can be asked for. TensorRT-RTX 1.7.1 lists the architectures it builds ahead of time;
# full TensorRT builds for the GPU it finds, so its list is every architecture TensorRT 11 supports.
DEVICES: dict[str, tuple[str, ...]] = {
    "tensorrt": (
        *("sm75", "sm80", "sm86", "sm87", "sm89", "sm90"),
        *("sm100", "sm103", "sm110", "sm120", "sm121"),
    ),
    "tensorrt-rtx": ("sm75", "sm80", "sm86", "sm89", "sm120", "sm121"),
    "onnxruntime": ("cpu", "cuda"),
}

JOINT = "+"  # between the architectures of one engine


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One runtime on one kind of device; str() gives the text that parse() reads, with architectures in ascending order."""

    runtime: str
    device: str

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Read `runtime:device`, or `tensorrt-rtx:sm89+sm120`; UsageError lists what exists."""
        runtime, _, device = text.strip().partition(":")
        devices = DEVICES.get(runtime)
        if devices is None:
            raise UsageError(
                f"target {text!r}",
                found=f"no runtime named {runtime!r}",
                fix=f"Known: {', '.join(all_targets())}",
            )
        named = device.split(JOINT)
        for each in named:
            if each not in devices:
                raise UsageError(
                    f"target {text!r}",
                    found=f"{runtime} has no {each!r}" if each else "no device after ':'",
                    fix=f"Known: {', '.join(f'{runtime}:{d}' for d in devices)}",
                )
        if len(named) > 1:
            _check_joint(text, runtime, named)
        return cls(runtime, JOINT.join(d for d in devices if d in named))

    def __str__(self) -> str:
        return f"{self.runtime}:{self.device}"

    @property
    def slug(self) -> str:
        """The target as a file name: `tensorrt-rtx-sm89`."""
        return f"{self.runtime}-{self.device}"

    @property
    def is_tensorrt(self) -> bool:
        """Whether compiling writes a plan; ONNX Runtime runs the ONNX file itself."""
        return self.runtime.startswith("tensorrt")

    @property
    def architectures(self) -> tuple[str, ...]:
        """The GPU architectures that one engine is for, e.g. sm89; none for ONNX Runtime."""
        return tuple(self.device.split(JOINT)) if self.is_tensorrt else ()

    def covers(self, other: "Target") -> bool:
        """Whether what was built for this target serves `other`: the same one, or some of its architectures."""
        if self.runtime != other.runtime or not self.is_tensorrt:
            return self == other
        return set(other.architectures) <= set(self.architectures)

    @property
    def apart(self) -> tuple["Target", ...]:
        """A target for each architecture: what holds for one must hold for all."""
        return tuple(Target(self.runtime, device) for device in self.device.split(JOINT))


def _check_joint(text: str, runtime: str, named: list[str]) -> None:
    """Raise UsageError unless one engine can be for all that is named."""
    if runtime != "tensorrt-rtx":
        reason = (
            "it builds for the one GPU it runs on: set the option hardware_compatibility instead"
            if runtime == "tensorrt"
            else "it builds no engines"
        )
        raise UsageError(
            f"target {text!r}",
            found=f"several devices in one target of {runtime}",
            fix=f"Only tensorrt-rtx has it; {runtime}: {reason}",
        )
    if len(set(named)) != len(named):
        raise UsageError(
            f"target {text!r}", found="an architecture twice", fix="Name each architecture once"
        )


def all_targets() -> tuple[str, ...]:
    """Every target that can be named."""
    return tuple(f"{runtime}:{d}" for runtime, devices in DEVICES.items() for d in devices)
