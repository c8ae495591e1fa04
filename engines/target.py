"""A target: the runtime that executes an engine, and what it runs on.

"tensorrt-rtx:sm89" -> Target(runtime="tensorrt-rtx", device="sm89")
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


@dataclass(frozen=True, slots=True, order=True)
class Target:
    """One runtime on one kind of device; str() gives the text that parse() reads."""

    runtime: str
    device: str

    @classmethod
    def parse(cls, text: str) -> "Target":
        """Read `runtime:device`; UsageError lists what exists."""
        runtime, _, device = text.strip().partition(":")
        devices = DEVICES.get(runtime)
        if devices is None:
            raise UsageError(
                f"target {text!r}",
                found=f"no runtime named {runtime!r}",
                fix=f"Known: {', '.join(all_targets())}",
            )
        if device not in devices:
            raise UsageError(
                f"target {text!r}",
                found=f"{runtime} has no {device!r}" if device else "no device after ':'",
                fix=f"Known: {', '.join(f'{runtime}:{d}' for d in devices)}",
            )
        return cls(runtime, device)

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
    def compute_capability(self) -> str | None:
        """The member of TensorRT's ComputeCapability, e.g. SM89; None for ONNX Runtime."""
        return self.device.upper() if self.is_tensorrt else None


def all_targets() -> tuple[str, ...]:
    """Every target that can be named."""
    return tuple(f"{runtime}:{d}" for runtime, devices in DEVICES.items() for d in devices)
