"""When a search ends. It is known before what searches is imported."""

from dataclasses import dataclass
from numbers import Real

from tilescout.spaces.errors import SamplerError


@dataclass(frozen=True)
class Budget:
    """When a search ends; trials in flight are finished then, but most of them given up where the sampler ends it.

    None sets no limit.

    Raises
    ------
    SamplerError
        If a limit is no number: nothing is below it, and a search would end at once.

    Attributes
    ----------
    trials
        Finished trials of the study, those of earlier runs included.
    gpu_seconds
        Seconds of GPU time of the study.
    seconds
        Wall-clock seconds of this run.
    whole
        Use the budget up, also where the sampler would stop earlier.
    """

    trials: int | None = None
    gpu_seconds: float | None = None
    seconds: float | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        limits = {"trials": self.trials, "gpu_seconds": self.gpu_seconds, "seconds": self.seconds}
        for name, limit in limits.items():
            if limit is not None and not (isinstance(limit, Real) and limit >= 0):
                raise SamplerError(f"the budget's {name} can't be {limit!r}: allowed are numbers from 0 on, and None")
