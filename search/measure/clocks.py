"""The state of a GPU's clocks, as NVML tells it."""

import os
from typing import Any, Self

from tilescout.search.measure.measurement import Clocks
from tilescout.spaces.errors import one_line

# Reasons for which the SM clock is below its maximum (nvml.h, nvmlClocksEventReason*); idle is none of ours.
_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}


UNREAD = "unreadable"
"""Begins the version of NVML, in an engine's versions, where it could not be read."""


class NoClocksError(Exception):
    """NVML, or its Python binding, is missing or refuses."""


class ClockSampler:
    """Reads one GPU's clocks; made by `of`.

    Parameters
    ----------
    nvml, handle
        The module ``pynvml``, initialised, and its handle of the GPU.
    version, driver
        The versions of NVML and of the driver.
    """

    def __init__(self, nvml: Any, handle: Any, version: str, driver: str) -> None:
        self._nvml, self._handle, self.version, self.driver = nvml, handle, version, driver

    @classmethod
    def of(cls, uuid: str) -> Self:
        """The sampler of the GPU with this UUID.

        Raises
        ------
        NoClocksError
            With the reason.
        """
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)  # what the estimator goes by
            return cls(pynvml, handle, str(pynvml.nvmlSystemGetNVMLVersion()), str(pynvml.nvmlSystemGetDriverVersion()))
        except Exception as error:  # ImportError, or any of NVML's errors
            raise NoClocksError(one_line(error) or type(error).__name__) from error

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

    def is_shared(self) -> bool:
        """Whether several processes may use the GPU at a time; False if NVML does not answer."""
        try:
            mode = self._nvml.nvmlDeviceGetComputeMode(self._handle)
        except self._nvml.NVMLError:
            return False
        return bool(mode == self._nvml.NVML_COMPUTEMODE_DEFAULT)

    def other_processes(self, host: int) -> int:
        """How many processes compute on the GPU but this one and its host, which waits; 0 if NVML does not answer."""
        try:
            running = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._nvml.NVMLError:
            return 0
        return sum(process.pid not in (os.getpid(), host) for process in running)
