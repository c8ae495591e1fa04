"""What is recorded of the machine, and the roofline by a GPU's own name; NVIDIA's library through a stand-in."""

import pytest
import torch

from blockforge.core.dtypes import DType
from blockforge.engines.gpu import Gpu, gpus
from blockforge.engines.target import Target
from blockforge.model.cost import cost
from blockforge.model.gpus import GPUS
from blockforge.model.presets import PRESETS
from blockforge.validate.latency import machine, roofline
from blockforge.validate.latency.machine import Watch
from blockforge.validate.latency.opening import Reference
from blockforge.validate.latency.roofline import Rooflines, gpu_name, least_seconds
from blockforge.validate.latency.sides import GraphSide, ModuleSide


class Nvml:
    """pynvml's names for one GPU that gets hot and hides its power limit."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self):
        self.degrees, self.closed = 40, 0

    def nvmlShutdown(self):
        self.closed += 1

    def nvmlDeviceGetCount(self):
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlSystemGetDriverVersion(self):
        return "595.1"

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA L4"

    def nvmlDeviceGetPowerUsage(self, handle):
        return 71500

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle):
        return 0x1 | 0x4 | 0x40  # idle, power cap, hardware thermal

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return {1: 2040, 2: 6251}[kind]

    def nvmlDeviceGetTemperature(self, handle, sensor):
        self.degrees += 20
        return self.degrees


def test_a_gpu_is_read_before_and_after():
    nvml = Nvml()
    watch = Watch(nvml=nvml)
    (gpu,) = watch.record(None).gpus
    assert (gpu.name, gpu.driver) == ("NVIDIA L4", "595.1")
    assert (gpu.before.temperature_celsius, gpu.after.temperature_celsius) == (60, 80)
    assert (gpu.after.sm_clock_mhz, gpu.after.memory_clock_mhz) == (2040, 6251)
    assert gpu.after.power_watts == 71.5 and gpu.after.power_limit_watts is None
    assert gpu.after.throttled_by == ("power cap", "hardware thermal")
    watch.close()
    watch.close()
    assert nvml.closed == 1


def test_the_cpu_is_described_and_what_cannot_be_read_is_none(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, "GOVERNOR", tmp_path / "none")
    found = Watch().record(3)
    assert found.governor is None and found.cores >= 1 and found.processor
    assert found.load_before is None or found.load_before >= 0
    assert found.torch_threads == torch.get_num_threads() and found.onnxruntime_threads == 3
    assert {"torch", "onnxruntime", "numpy"} <= set(found.versions)
    (tmp_path / "governor").write_text("performance\n")
    monkeypatch.setattr(machine, "GOVERNOR", tmp_path / "governor")
    assert Watch().record(None).governor == "performance"


@pytest.mark.skipif(bool(gpus()), reason="only where there is no GPU")
def test_without_a_gpu_nothing_is_imported_and_the_record_says_why():
    found = Watch().record(None)
    assert found.gpus == () and found.gpu_note == "no NVIDIA GPU here"


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", None),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", None),
        ("NVIDIA H200", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100 80GB PCIe", "a100-80-pcie"),
        ("NVIDIA A10", None),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA GeForce RTX 5090", "rtx-5090"),
    ],
)
def test_drivers_names_of_gpus(driver, name):
    assert gpu_name(driver) == name
    assert name is None or name in GPUS


def test_the_least_time_is_that_of_the_cost_account():
    config = PRESETS["llama-3-8b"]
    sizes = {"batch": 4, "sequence": 512}
    expected = cost(config, **sizes, dtype="fp16", gpu="l4").seconds
    here = {"driver_name": "NVIDIA L4", **sizes}
    assert least_seconds(config, precision="fp16", **here) == expected
    assert least_seconds(config, precision="int4-weights", **here) is None
    cold = {"driver_name": "NVIDIA A100-SXM4-40GB", **sizes}
    assert least_seconds(config, precision="fp8", **cold) is None, "no FP8 before sm89"


def test_only_what_ran_on_a_gpu_has_a_share_of_the_roofline(monkeypatch):
    monkeypatch.setattr(roofline, "gpus", lambda: (Gpu("NVIDIA L4", "sm89", 24 << 30),))
    config = PRESETS["llama-3-8b"]
    opened = []

    def reference(layer=None):
        opened.append(layer)
        return Reference(config, layer, (), lambda dtype: None)

    def graph(target):
        return GraphSide("g", "fp16", None, Target.parse(target), (), None, DType.FP16)

    least = cost(config, batch=1, sequence=128, dtype="fp16", gpu="l4").seconds
    found = Rooflines(reference)
    assert found.share(graph("onnxruntime:cpu"), 1, 128, 1.0) is None and not opened
    assert found.share(graph("tensorrt-rtx:sm89"), 1, 128, 2 * least) == pytest.approx(0.5)
    eager = ModuleSide("eager fp16", "eager", DType.FP16, "cuda")
    assert found.share(eager, 1, 128, 4 * least) == pytest.approx(0.25)
    assert found.share(graph("tensorrt-rtx:sm89"), None, 128, 1.0) is None
    assert opened == [None], "opened once"
    block = Rooflines(lambda: reference(layer=0))
    assert block.share(graph("tensorrt-rtx:sm89"), 1, 128, 1.0) is None
    assert found.notes == ()
