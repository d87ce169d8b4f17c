"""The state of a GPU's clocks, as NVML tells it."""

import os
from typing import Any, Self

from tilescout.search.measure.measurement import Clocks

# Reasons for which the SM clock is below its maximum (nvml.h, nvmlClocksEventReason*); idle is none of ours.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


class ClockSampler:
    """Reads one GPU's clocks; made by `of`.

    Parameters
    ----------
    nvml, handle
        The module ``pynvml``, initialised, and its handle of the GPU.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    @classmethod
    def of(cls, uuid: str) -> Self | None:
        """The sampler of the GPU with this UUID; None where NVML or its Python binding is missing."""
        try:
            import pynvml

            pynvml.nvmlInit()
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"))
        except Exception:  # ImportError, or any of NVML's errors: measuring goes on without
            return None

    def sample(self) -> Clocks | None:
        """The state now; None if NVML does not answer."""
        nvml, handle = self._nvml, self._handle
        try:
            reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
            return Clocks(
                sm_mhz=float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
                power_w=nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
                temperature_c=float(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
                throttle=", ".join(name for bit, name in _REASONS.items() if reasons & bit),
            )
        except nvml.NVMLError:
            return None

    def other_processes(self) -> int:
        """How many processes but this one compute on the GPU; 0 if NVML does not answer."""
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return 0
        return sum(process.pid != os.getpid() for process in running)
