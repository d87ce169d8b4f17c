"""Which GPUs this machine has, asked of the driver alone: no torch, no CUDA context."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tilescout.spaces.processes import module_command, safe_environment

_SHOWN = (Path("/proc/driver/nvidia/gpus"), Path("/proc/driver/nvidia/capabilities"))
"""Where Linux shows GPUs and parts of them: other files mean other GPUs."""

_Asked = tuple[str | None, tuple[str, ...]]
_told: dict[_Asked, tuple[str, ...]] = {}


def know_ahead() -> None:
    """Have the driver tell for the processes, too, that are forked from this one: it takes 0.2 s to start in each.

    It is started in another process, for it does not survive a fork. What it tells holds as long as the files that
    stand for GPUs are the same, and the variable that chooses among them.
    """
    asked = _asked()
    if not asked[1]:
        return
    command = module_command(__name__)
    answer = subprocess.run(command, stdout=subprocess.PIPE, env=safe_environment(), text=True, check=False)
    if not answer.returncode:
        _told[asked] = tuple(json.loads(answer.stdout))


def _asked() -> _Asked:
    """All that the answer of the driver depends on; no files where it shows none."""
    found = [path for place in _SHOWN if place.is_dir() for path in place.rglob("*")]
    devices = Path("/dev").glob("nvidia*") if found else ()
    return os.environ.get("CUDA_VISIBLE_DEVICES"), tuple(sorted(map(str, [*found, *devices])))


def visible_gpus() -> list[str]:
    """Product names of the GPUs that CUDA shows to this process; empty where there is no driver or no GPU."""
    if _told and (told := _told.get(_asked())) is not None:
        return list(told)
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


if __name__ == "__main__":
    sys.stdout.write(json.dumps(visible_gpus()))
