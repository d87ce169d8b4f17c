"""The record of a measurement: how a configuration ended that was tried, its times, and its cost."""

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from tilescout.search.build.artifacts import CompileFailure
from tilescout.spaces.resources import Resources

LARGEST = 2.0**53
"""Of a number: beyond it a float has no fraction, and ours are times, ratios and counts."""


class Status(StrEnum):
    """How the trial of a configuration ended."""

    OK = "ok"  #: compiled, right, timed
    PRUNED = "pruned"  #: compiled, right, and after one launch too slow to be the best: its time is censored
    COMPILE_ERROR = "compile_error"  #: the compiler or the linker refused it
    COMPILE_TIMEOUT = "compile_timeout"  #: the compiler did not finish in time
    LOAD_ERROR = "load_error"  #: the artifact is damaged or does not load
    LAUNCH_ERROR = "launch_error"  #: the launch failed, or CUDA reported an error after it
    WRONG = "wrong"  #: it ran and its result is not the reference's
    CRASH = "crash"  #: it took the measuring process down
    TIMEOUT = "timeout"  #: it did not finish in time
    INTERRUPTED = "interrupted"  #: the search ended before the trial did


@dataclass(frozen=True)
class Timing:
    """How long a kernel takes on a problem, measured in turns with the library's kernel.

    The kernel and the library alternate within the same milliseconds, so that both see the same clocks; `ratio` is what
    was measured, and a time in µs is the ratio times the library's steady time.

    Attributes
    ----------
    ratio, ratio_q25, ratio_q75
        The kernel's time divided by the library's, and the quartiles of that over the pairs.
    ratio_low, ratio_high
        The 95 % confidence interval of `ratio`.
    library_us
        The library's steady time on the problem, in µs.
    pairs
        Number of pairs.
    """

    ratio: float
    ratio_q25: float
    ratio_q75: float
    ratio_low: float
    ratio_high: float
    library_us: float
    pairs: int

    @property
    def time_us(self) -> float:
        """The kernel's time in µs."""
        return self.ratio * self.library_us


@dataclass(frozen=True)
class Raced:
    """The same kernel, measured once more in a race, in turns with the fastest of its problem.

    A race is another regime: other kernels run in between, in one long queue. Its ratio may differ from that of
    `Timing` by more than either interval. So the two are kept apart, and whatever compares rows goes by one of them.

    Attributes
    ----------
    ratio
        The kernel's time divided by the library's.
    low, high
        The 95 % confidence interval of `ratio`.
    pairs
        Number of pairs.
    """

    ratio: float
    low: float
    high: float
    pairs: int


def check_interval(value: float, low: float, high: float) -> None:
    """Refuse a ratio that is not a positive number within its own interval.

    Raises
    ------
    ValueError
        If it is not.
    """
    if not 0 < low <= value <= high <= LARGEST:
        raise ValueError(f"a ratio of {value:.6g} can't have the interval {low:.6g} to {high:.6g}")


@dataclass(frozen=True)
class Clocks:
    """The state of a GPU while a kernel was timed, as NVML tells it.

    Attributes
    ----------
    sm_mhz
        Clock of the multiprocessors, in MHz.
    power_w
        Power drawn, in W.
    temperature_c
        Temperature of the chip, in °C.
    throttle
        Why the clock is below its maximum; empty if it is not.
    """

    sm_mhz: float
    power_w: float
    temperature_c: float
    throttle: str


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
        The times, if `status` is ``ok``, measured in turns with the library alone.
    raced
        The outcome of a race with others, if it took part in one.
    pilot_us
        The time that the pilot suggests, in µs: all that is known of the time of a pruned kernel.
    resources
        The resources that the kernel occupies, if it compiled.
    clocks
        The GPU's state at the end of the timing, where NVML answers.
    relative_error
        Largest relative Frobenius error against the fp32 reference over the verified cases, if it ran.
    compile_seconds
        Seconds of one core spent compiling (when the artifact was made, even if that was in an earlier run).
    gpu_seconds
        Seconds for which the GPU (or what stands in for it) was occupied, from loading the kernel to its last result.
    verify_seconds
        Those of them that went into loading (about 1 ms, once a process) and verifying, with the first pilot.
    pilot_seconds
        Those of them that went into a second pilot.
    """

    status: Status
    error: str = ""
    timing: Timing | None = None
    raced: Raced | None = None
    pilot_us: float | None = None
    resources: Resources | None = None
    clocks: Clocks | None = None
    relative_error: float | None = None
    compile_seconds: float = 0.0
    gpu_seconds: float = 0.0
    verify_seconds: float = 0.0
    pilot_seconds: float = 0.0

    @property
    def timing_seconds(self) -> float:
        """Seconds that the pairs took: what is left of `gpu_seconds`."""
        return max(0.0, self.gpu_seconds - self.verify_seconds - self.pilot_seconds)

    @property
    def ok(self) -> bool:
        """Whether the kernel is right and timed."""
        return self.status is Status.OK

    @property
    def failed(self) -> bool:
        """Whether the configuration is of no use; a pruned one is right, and slow."""
        return self.status not in (Status.OK, Status.PRUNED)

    @property
    def time_us(self) -> float:
        """The kernel's time in µs; infinite if it was not timed."""
        return self.timing.time_us if self.timing is not None else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping that `from_dict` reads back; without `raced` for what did not race, as it always was."""
        record = asdict(self)
        return record if self.raced is not None else {name: value for name, value in record.items() if name != "raced"}

    @classmethod
    def of_failure(cls, failure: CompileFailure) -> "Measurement":
        """The outcome of a configuration that has no kernel."""
        status = Status.COMPILE_TIMEOUT if failure.timed_out else Status.COMPILE_ERROR
        return cls(status, failure.error, compile_seconds=failure.compile_seconds)

    @classmethod
    def from_dict(cls, record: dict[str, Any]) -> "Measurement":
        """Read what `to_dict` wrote.

        Raises
        ------
        KeyError, TypeError, ValueError
            If it is something else.
        """
        known = {field.name: record[field.name] for field in fields(cls) if field.name in record}
        known["status"] = Status(known["status"])
        for name, kind in (("timing", Timing), ("raced", Raced), ("resources", Resources), ("clocks", Clocks)):
            if known.get(name) is not None:
                known[name] = kind(**known[name])
                _check_types(known[name])
        made = cls(**known)
        _check_types(made)
        made._check_values()
        return made

    def _check_values(self) -> None:
        """Refuse what no measurement could have told, whoever says so.

        Raises
        ------
        ValueError
            If there is something.
        """
        if self.ok != (self.timing is not None):
            raise ValueError(f"a kernel that is {self.status} {'without' if self.ok else 'with'} times")
        if self.timing is not None:
            check_interval(self.timing.ratio, self.timing.ratio_low, self.timing.ratio_high)
            _check_positive(self.timing)
        if self.raced is not None:
            check_interval(self.raced.ratio, self.raced.low, self.raced.high)
            _check_positive(self.raced)
        if self.pilot_us is not None and not 0 <= self.pilot_us <= LARGEST:
            raise ValueError(f"pilot_us can't be {self.pilot_us}")
        for name in ("compile_seconds", "gpu_seconds", "verify_seconds", "pilot_seconds"):
            if not 0 <= getattr(self, name) <= LARGEST:
                raise ValueError(f"{name} can't be {getattr(self, name)}")


def _check_positive(record: "Timing | Raced") -> None:
    for field in fields(record):
        if not 0 < getattr(record, field.name) <= LARGEST:
            raise ValueError(f"{field.name} can't be {getattr(record, field.name)}")


def _check_types(record: "Measurement | Timing | Raced | Resources | Clocks") -> None:
    """Refuse values that are none of the numbers and texts that a field may have; numbers are finite."""
    for field in fields(record):
        value = getattr(record, field.name)
        if field.type is str:
            fits = isinstance(value, str)
        elif field.type in (int, float):
            fits = _is_number(value)
        else:
            fits = value is None or field.type not in (int | None, float | None) or _is_number(value)
        if not fits:
            raise TypeError(f"{field.name} can't be {value!r}")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -LARGEST <= value <= LARGEST
