"""Lower bounds of a time: the roofline of a problem on a device, and the parts of a configuration's time.

S. Williams, A. Waterman, D. Patterson: Roofline: an insightful visual performance model for multicore architectures.
Communications of the ACM 52(4), 2009.
"""

from dataclasses import dataclass

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.work import Work
from tilescout.spaces.devices import Device
from tilescout.spaces.hardware import rated_clock
from tilescout.spaces.problems import Problem
from tilescout.spaces.tiling import Integers

# Round figures, good enough to compare the parts of a time. The analytic model fits rates of its own.
L2_BYTES_A_CYCLE = 32  # read from the L2 by a multiprocessor
STORE_BYTES_A_CYCLE = 32  # written by a multiprocessor
LATENCY_US = 0.8  # from the request of a stage to its first bytes


# How far a true time may be below the vendor's figures: matrix units run at up to 1.13 times the clock that an H200's
# peak is for, and a cache may hold results until the next launch, so that half of the bytes are not moved in time.
_FASTER_COMPUTE = 1.2
_FASTER_MEMORY = 2.0


@dataclass(frozen=True)
class Roofline:
    """Lower bounds of a problem's time on a device, by the vendor's figures.

    Attributes
    ----------
    compute_us
        Time of the arithmetic at the peak rate, in µs.
    memory_us
        Time to move every input and output once at the full bandwidth of device memory, in µs.
    """

    compute_us: float
    memory_us: float

    @classmethod
    def of(cls, problem: Problem, device: Device) -> "Roofline":
        """The roofline of a problem on a device."""
        return cls(problem.flops / device.peak_of(problem.element) * 1e6, device.move_us(problem.bytes))

    @property
    def time_us(self) -> float:
        """The larger of the two, in µs."""
        return max(self.compute_us, self.memory_us)

    @property
    def least_us(self) -> float:
        """A time in µs that is clearly below the roofline: no kernel can have had less."""
        return max(self.compute_us / _FASTER_COMPUTE, self.memory_us / _FASTER_MEMORY)

    def check(self, time_us: float) -> None:
        """Refuse a time that no kernel can have had.

        Raises
        ------
        ValueError
            If it is clearly below the roofline.
        """
        if not time_us >= self.least_us:
            raise ValueError(f"a time of {time_us:.4g} µs is below the roofline of {self.time_us:.4g} µs: it can't be")

    @property
    def bound(self) -> str:
        """The resource that bounds the time: ``compute`` or ``memory``."""
        return "compute" if self.compute_us >= self.memory_us else "memory"


def parts_us(work: Work, stages: Integers, device: Device) -> dict[str, Floats]:
    """The parts of each configuration's time in µs, by name, each of shape [configurations].

    Every part is the time that one resource is busy if nothing else holds it up: ``mma`` the tensor cores, ``l2`` the
    way from the L2, ``memory`` device memory, ``latency`` the ring of stages, ``store`` the way of the results.

    Parameters
    ----------
    work
        The work of the configurations.
    stages
        Stages of their rings, of shape [configurations].
    device
        Where they run.
    """
    per_us = rated_clock(device) * 1e-6  # cycles
    multiply_us = np.maximum(work.mma_cycles, work.smem_cycles) / per_us
    fill_us = work.l2_bytes / (L2_BYTES_A_CYCLE * per_us)
    # A stage is requested, arrives and is multiplied before it can be requested again.
    round_trip = LATENCY_US + fill_us + multiply_us
    return {
        "mma": work.waves * work.steps * multiply_us,
        "l2": work.waves * work.steps * fill_us,
        "memory": device.move_us(work.memory_bytes),
        "latency": work.waves * (work.steps * round_trip / stages + LATENCY_US),
        "store": work.waves * work.tile_bytes / (STORE_BYTES_A_CYCLE * per_us),
    }
