"""The stopping rule: when a search is not worth going on.

A search is not worth going on when the chance that any of the `GuidedOptions.ahead` likeliest candidates is more than
`GuidedOptions.gain` faster than the best so far is below `GuidedOptions.chance`.

The chance counts the errors of candidates as independent. They are not: a model is wrong about groups of configurations
together. So it is computed with larger standard deviations than the posterior has. The factor, the option `widening`,
is calibrated, so that the rule keeps its word on problems that the model has not seen
(`experiments/results/stop-rule.md`).
"""

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.posterior import chance_below
from tilescout.search.samplers.guided.history import History
from tilescout.search.samplers.guided.options import GuidedOptions

LARGEST = 1e6
"""The largest factor that is told apart from infinity."""


def may_stop(history: History, has_prior: bool, options: GuidedOptions, coming: int = 0) -> bool:
    """Whether enough is known for the rule to be asked, `coming` trials in flight included."""
    least = options.least if has_prior else options.least_cold
    return len(history.settled) + coming >= least and history.best is not None and history.are_times


def reason_to_stop(mean: Floats, std: Floats, best: float, options: GuidedOptions, widening: float) -> str | None:
    """Why a search is not worth going on; None if it is.

    Parameters
    ----------
    mean, std
        Of each candidate's log time, of shape [candidates].
    best
        The log time of the best so far.
    options
        The options of the search.
    widening
        The factor on the standard deviations.
    """
    chance = _chance(_likeliest(mean, std, best, options), widening)
    if chance >= options.chance:
        return None
    return (
        f"the chance that {options.ahead} more measurements find one more than {options.gain:.0%} faster is "
        f"{chance:.1%}"
    )


def widest_stop(mean: Floats, std: Floats, best: float, options: GuidedOptions) -> float:
    """The factor on the standard deviations from which on the search would go on; 0 if it would with any.

    The chance grows with the factor, as candidates are expected to be no such gain: with a smaller one the search would
    stop. Parameters are those of `reason_to_stop`.
    """
    from scipy.optimize import brentq

    likeliest = _likeliest(mean, std, best, options)
    if _chance(likeliest, LARGEST) < options.chance:
        return LARGEST
    if _chance(likeliest, 1 / LARGEST) >= options.chance:
        return 0.0
    root = brentq(
        lambda log: _chance(likeliest, float(np.exp(log))) - options.chance, -np.log(LARGEST), np.log(LARGEST)
    )
    return float(np.exp(root))


def _likeliest(mean: Floats, std: Floats, best: float, options: GuidedOptions) -> Floats:
    """How many standard deviations those candidates that are likeliest to be a gain lie above it."""
    return np.sort((mean - best - np.log(1 - options.gain)) / std)[: options.ahead]


def _chance(above: Floats, widening: float) -> float:
    """The chance that any of them is a gain, counting their errors as independent."""
    return 1 - float(np.prod(1 - chance_below(above, np.full(len(above), widening), 0.0)))
