"""Which GPUs this machine has, asked of the driver alone: no torch, no CUDA context."""

import ctypes
from collections.abc import Sequence


def visible_gpus() -> list[str]:
    """Product names of the GPUs that CUDA shows to this process; empty where there is no driver or no GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    names = []
    for ordinal in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        if driver.cuDeviceGet(ctypes.byref(device), ordinal) or driver.cuDeviceGetName(name, len(name), device):
            return []
        names.append(name.value.decode())
    return names


def products_of(gpus: Sequence[str]) -> list[str]:
    """Product names of the GPUs that are called ``cuda`` or ``cuda:N``; empty if the driver does not know them all."""
    visible = visible_gpus()
    numbers = [gpu.removeprefix("cuda").removeprefix(":") or "0" for gpu in gpus if gpu.startswith("cuda")]
    known = [visible[int(number)] for number in numbers if int(number) < len(visible)]
    return known if len(known) == len(gpus) else []


def driver_version() -> tuple[int, int] | None:
    """The newest CUDA that the driver is for; None where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int()
    return (
        None if driver.cuDriverGetVersion(ctypes.byref(number)) else (number.value // 1000, number.value % 1000 // 10)
    )
