"""The stopping rule: when a search is not worth going on.

With a prior: after `GuidedOptions.patience` trials in a row without a faster one; behind a search of another space,
after the first `GuidedOptions.behind` if none of them is faster than what that one found. The posterior has a chance of
a gain, too, but it tells less: it counts the errors of a cost model as independent, and a model is wrong about groups
of configurations together. On recorded problems that the models had not seen, a rule by that chance took 29.5 trials in
the median and 64 at the 90th percentile, this one 24 and 34, with as many answers that are more than 1 % off
(`experiments/results/stop-rule.md`).

Without a prior: when the chance that any of the `GuidedOptions.ahead` likeliest candidates is more than
`GuidedOptions.gain` faster than the best so far is below `GuidedOptions.chance`.
"""

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.posterior import chance_below
from tilescout.search.samplers.guided.history import History
from tilescout.search.samplers.guided.options import GuidedOptions


def least_trials(has_prior: bool, calibrated: bool, to_beat: float | None, options: GuidedOptions) -> int:
    """Finished trials before which a search does not stop by itself, where its rule is calibrated and where not."""
    if not has_prior:
        return options.least_cold
    if not calibrated:
        return max(options.least, options.least_apart)
    return options.least if to_beat is None else min(options.least, options.behind)


def may_stop(history: History, to_beat: float | None, least: int) -> bool:
    """Whether enough is known for a rule to be asked, trials in flight included."""
    known = history.best is not None or to_beat is not None
    return len(history.settled) + len(history.failed) + len(history.running) >= least and known and history.are_times


def out_of_patience(history: History, to_beat: float | None, options: GuidedOptions) -> str | None:
    """Why a search with a prior is not worth going on; None if it is. Trials in flight count as no faster ones.

    Parameters
    ----------
    history
        The trials.
    to_beat
        The least time of kernels of another space on the same problem, in µs; None if that is not known. Trials that
        are not faster than that count as no faster ones, too.
    options
        The options of the search.
    """
    behind = to_beat is not None and (history.best is None or history.best >= np.log(to_beat))
    patience = options.behind if behind else options.patience
    since = len(history.settled) + len(history.failed) if behind else history.since
    if since + len(history.running) < patience:
        return None
    return f"{patience} trials in a row found none that is faster{' than another space has' if behind else ''}"


def unlikely_gain(mean: Floats, std: Floats, best: float, options: GuidedOptions) -> str | None:
    """Why a search without a prior is not worth going on; None if it is.

    Parameters
    ----------
    mean, std
        Of each candidate's log time, of shape [candidates].
    best
        The log time of the best so far.
    options
        The options of the search.
    """
    above = np.sort((mean - best - np.log(1 - options.gain)) / std)[: options.ahead]
    chance = 1 - float(np.prod(1 - chance_below(above, np.ones(len(above)), 0.0)))
    if chance >= options.chance:
        return None
    return (
        f"the chance that {options.ahead} more measurements find one more than {options.gain:.0%} faster is "
        f"{chance:.1%}"
    )
