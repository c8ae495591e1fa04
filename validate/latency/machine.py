"""What the times depend on: cores, load, governor, threads, versions; on a GPU clocks, power, heat, throttling.

NVIDIA's management library (nvidia-ml-py) is imported when a GPU is there, and only then.
"""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ...engines.gpu import gpus
from .record import GpuRecord, GpuState, MachineRecord

PACKAGES = ("blockforge", "torch", "onnxruntime", "tensorrt-rtx", "tensorrt", "numpy")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
CPUINFO = Path("/proc/cpuinfo")
# nvml.h, nvmlClocksEventReason* and nvmlClocksThrottleReason*: what holds the clocks down besides an idle GPU
REASONS = {
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}


class Watch:
    """Reads the machine when made and again at `record`; close it in the end."""

    def __init__(self, *, nvml: Any = None) -> None:
        """nvml: the module pynvml, by default imported where the driver shows a GPU."""
        self.note = ""
        self._nvml = nvml if nvml is not None else self._open()
        self._load, self._before = _load(), self._states()

    def record(self, onnxruntime_threads: int | None) -> MachineRecord:
        """Everything known, with the second reading taken now."""
        import torch

        return MachineRecord(
            system=platform.platform(terse=True),
            processor=_processor(),
            cores=_cores(),
            governor=_text(GOVERNOR),
            load_before=self._load,
            load_after=_load(),
            torch_threads=torch.get_num_threads(),
            onnxruntime_threads=onnxruntime_threads,
            versions=_versions(),
            gpus=self._gpus(),
            gpu_note=self.note,
        )

    def close(self) -> None:
        """Leave the management library."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None

    def _open(self) -> Any:
        if not gpus():
            self.note = "no NVIDIA GPU here"
            return None
        try:
            import pynvml
        except ImportError:
            self.note = "clocks, power and temperature not recorded: pip install 'blockforge[gpu]'"
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.note = f"NVIDIA's management library: {error}"
            return None
        return pynvml

    def _states(self) -> list[GpuState]:
        if self._nvml is None:
            return []
        return [_state(self._nvml, handle) for handle in self._handles()]

    def _handles(self) -> list[Any]:
        nvml = self._nvml
        return [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    def _gpus(self) -> tuple[GpuRecord, ...]:
        if self._nvml is None:
            return ()
        driver = str(self._nvml.nvmlSystemGetDriverVersion())
        after = self._states()
        names = [str(self._nvml.nvmlDeviceGetName(handle)) for handle in self._handles()]
        return tuple(
            GpuRecord(name=name, driver=driver, before=first, after=second)
            for name, first, second in zip(names, self._before, after, strict=True)
        )


def _state(nvml: Any, handle: Any) -> GpuState:
    def ask(name: str, *arguments: Any) -> Any:
        try:
            return getattr(nvml, name)(handle, *arguments)
        except nvml.NVMLError:  # not every GPU tells everything
            return None

    power, limit = ask("nvmlDeviceGetPowerUsage"), ask("nvmlDeviceGetEnforcedPowerLimit")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons") or 0
    return GpuState(
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        power_watts=None if power is None else power / 1000,
        power_limit_watts=None if limit is None else limit / 1000,
        temperature_celsius=ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
        throttled_by=tuple(word for bit, word in REASONS.items() if reasons & bit),
    )


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    for line in (_text(CPUINFO) or "").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
