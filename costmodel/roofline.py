"""The time that no kernel can beat: the roofline of a problem on a device.

S. Williams, A. Waterman, D. Patterson: Roofline: an insightful visual performance model for multicore architectures.
Communications of the ACM 52(4), 2009.
"""

from dataclasses import dataclass

from tilescout.spaces.devices import Device
from tilescout.spaces.problems import Problem


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
        # Tensor cores multiply elements of half the size at twice the rate.
        peak = device.peak * 2 / problem.element.bytes
        return cls(problem.flops / peak * 1e6, problem.bytes / device.bandwidth * 1e6)

    @property
    def time_us(self) -> float:
        """The larger of the two, in µs."""
        return max(self.compute_us, self.memory_us)

    @property
    def bound(self) -> str:
        """What the problem is bound by: ``compute`` or ``memory``."""
        return "compute" if self.compute_us >= self.memory_us else "memory"
