"""The stopping rule: when a search is not worth going on."""

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.posterior import chance_below
from tilescout.search.samplers.guided.history import History
from tilescout.search.samplers.guided.options import GuidedOptions


def may_stop(history: History, has_prior: bool, options: GuidedOptions, coming: int = 0) -> bool:
    """Whether enough is known for the rule to be asked, `coming` trials in flight included."""
    least = options.least if has_prior else options.least_cold
    return len(history.settled) + coming >= least and history.best is not None and history.are_times


def reason_to_stop(mean: Floats, std: Floats, best: float, options: GuidedOptions) -> str | None:
    """Why a search is not worth going on; None if it is.

    It is not when the chance that any of the `GuidedOptions.ahead` likeliest candidates is more than
    `GuidedOptions.gain` faster than the best so far is below `GuidedOptions.chance`, counting their errors as
    independent.

    Parameters
    ----------
    mean, std
        Of each candidate's log time, of shape [candidates].
    best
        The log time of the best so far.
    """
    each = np.sort(chance_below(mean, std, best + np.log(1 - options.gain)))[-options.ahead :]
    chance = 1 - float(np.prod(1 - each))
    if chance >= options.chance:
        return None
    return (
        f"the chance that {options.ahead} more measurements find one more than {options.gain:.0%} faster is "
        f"{chance:.1%}"
    )
