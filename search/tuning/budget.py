"""When a search ends. It is known before what searches is imported."""

import math
from dataclasses import dataclass
from numbers import Integral, Real

from tilescout.spaces.errors import SamplerError


@dataclass(frozen=True)
class Budget:
    """When a search ends; trials in flight are finished then, but most of them given up where the sampler ends it.

    None sets no limit.

    Raises
    ------
    SamplerError
        If a limit is no finite number from 0 on, or that of trials no whole one.

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
        for name, kind, allowed in (
            ("trials", Integral, "whole numbers"),
            ("gpu_seconds", Real, "finite numbers"),
            ("seconds", Real, "finite numbers"),
        ):
            limit = getattr(self, name)
            is_number = isinstance(limit, kind) and not isinstance(limit, bool)
            if limit is not None and not (is_number and 0 <= limit < math.inf):
                raise SamplerError(f"the budget's {name} can't be {limit!r}: allowed are {allowed} from 0 on, and None")
