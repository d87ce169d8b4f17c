"""What is known of a configuration after it was tried."""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any


class Status(StrEnum):
    """How the trial of a configuration ended."""

    OK = "ok"  #: compiled, right, timed
    COMPILE_ERROR = "compile_error"  #: the compiler or the linker refused it
    COMPILE_TIMEOUT = "compile_timeout"  #: the compiler did not finish in time
    LOAD_ERROR = "load_error"  #: the artifact is damaged or does not load
    LAUNCH_ERROR = "launch_error"  #: the launch failed, or CUDA reported an error after it
    WRONG = "wrong"  #: it ran and its result is not the reference's
    CRASH = "crash"  #: it took the measuring process down
    TIMEOUT = "timeout"  #: it did not finish in time
    INTERRUPTED = "interrupted"  #: the search ended before the trial did


@dataclass(frozen=True)
class Resources:
    """What a compiled kernel occupies, read from its binary.

    Attributes
    ----------
    registers
        Registers a thread at launch.
    spill_bytes
        Stack frame plus local memory a thread, in bytes; nonzero means that registers spilled.
    shared_memory
        Bytes of shared memory a block.
    """

    registers: int
    spill_bytes: int
    shared_memory: int


@dataclass(frozen=True)
class Timing:
    """How long a kernel takes on a problem, measured in turns with the library's kernel.

    The kernel and the library alternate within the same milliseconds, so that both see the same clocks; `ratio` is what
    was measured, and a time in µs is the ratio times the library's steady time.

    Attributes
    ----------
    ratio, ratio_q25, ratio_q75
        Median and quartiles, over the pairs, of the kernel's time divided by the library's.
    library_us
        The library's steady time on the problem, in µs.
    pairs
        Number of pairs.
    """

    ratio: float
    ratio_q25: float
    ratio_q75: float
    library_us: float
    pairs: int

    @property
    def time_us(self) -> float:
        """The kernel's time in µs."""
        return self.ratio * self.library_us


@dataclass(frozen=True)
class Measurement:
    """The outcome of trying a configuration on a problem, and what it cost.

    Attributes
    ----------
    status
        How it ended.
    error
        Why it failed, in one line; empty if it did not.
    timing
        The times, if `status` is ``ok``.
    resources
        What the kernel occupies, if it compiled.
    relative_error
        Largest relative Frobenius error against the fp32 reference over the verified cases, if it ran.
    compile_seconds
        Seconds of one core spent compiling (when the artifact was made, even if that was in an earlier run).
    gpu_seconds
        Seconds for which the GPU (or what stands in for it) was occupied.
    """

    status: Status
    error: str = ""
    timing: Timing | None = None
    resources: Resources | None = None
    relative_error: float | None = None
    compile_seconds: float = 0.0
    gpu_seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the kernel is right and timed."""
        return self.status is Status.OK

    @property
    def time_us(self) -> float:
        """The kernel's time in µs; infinite if it failed."""
        return self.timing.time_us if self.timing is not None else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping that `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Measurement":
        """Read what `to_dict` wrote."""
        known = {field.name: record[field.name] for field in fields(cls) if field.name in record}
        known["status"] = Status(known["status"])
        if known.get("timing") is not None:
            known["timing"] = Timing(**known["timing"])
        if known.get("resources") is not None:
            known["resources"] = Resources(**known["resources"])
        return cls(**known)
