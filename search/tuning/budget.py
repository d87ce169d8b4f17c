"""When a search ends. It is known before what searches is imported."""

from dataclasses import dataclass

from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.checking import check_number
from tilescout.spaces.errors import SamplerError


@dataclass(frozen=True)
class Budget:
    """When a search ends; trials in flight are finished then, but most of them given up where the sampler ends it.

    None sets no limit.

    Raises
    ------
    SamplerError
        If a limit is no finite number from 0 on, or that of trials no whole one; or if `whole` is no truth value.

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
        for name in ("trials", "gpu_seconds", "seconds"):
            check_number(f"the budget's {name}", getattr(self, name), whole=name == "trials", or_none=True)
        check_kinds(SamplerError, whole=(self.whole, bool))
