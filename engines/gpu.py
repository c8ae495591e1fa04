"""The NVIDIA GPUs of this machine, asked of the driver itself."""

import ctypes
import sys
from dataclasses import dataclass

DRIVER = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
MAJOR, MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR (CUDA driver API)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device: name, architecture like sm89, memory in bytes."""

    name: str
    architecture: str
    memory_bytes: int


def driver_version() -> str | None:
    """The CUDA version that the installed driver serves, e.g. 13.0; None without a driver."""
    driver = _driver()
    number = ctypes.c_int()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(number)):
        return None
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def gpus() -> tuple[Gpu, ...]:
    """Every GPU the driver shows; empty without a driver or a device."""
    driver = _driver()
    count = ctypes.c_int()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(_gpu(driver, index) for index in range(count.value))


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(DRIVER)
    except OSError:
        return None


def _gpu(driver: ctypes.CDLL, index: int) -> Gpu:
    device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), index)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    driver.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
    return Gpu(name.value.decode(), f"sm{major.value}{minor.value}", memory.value)
