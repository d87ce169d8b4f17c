"""The stopping rule: when a search is not worth going on.

With a prior: after `GuidedOptions.patience` trials in a row without a faster one, those of all spaces that are searched
for the problem, and at least `GuidedOptions.each` in each, to which of what is tried before a model is asked only the
default counts. Of those in a row `GuidedOptions.seeing` were proposed once the best was known; one that takes more
patience counts as much. With as many in flight as the patience is long, all of them might have been proposed before,
and nothing would have been tried for what the best tells. The posterior has a chance of a gain, too, but it tells less:
it counts the errors of a cost model as independent, and a model is wrong about groups of configurations together. On
recorded problems that the models had not seen, a rule by that chance took 29.5 trials in the median and 64 at the 90th
percentile, this one 24 and 34, with as many answers that are more than 1 % off (`experiments/results/stop-rule.md`).

Without a prior: when the chance that any of the `GuidedOptions.ahead` likeliest candidates is more than
`GuidedOptions.gain` faster than the best so far is below `GuidedOptions.chance`.
"""

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.posterior import chance_below
from tilescout.search.samplers.guided.history import History
from tilescout.search.samplers.guided.options import GuidedOptions
from tilescout.search.samplers.joint import Joint
from tilescout.spaces.texts import number_of


def least_trials(has_prior: bool, calibrated: bool, options: GuidedOptions) -> int:
    """Finished trials before which a search does not stop by itself, where its rule is calibrated and where not."""
    if not has_prior:
        return options.least_cold
    return options.least if calibrated else max(options.least, options.least_apart)


def alone(history: History) -> Joint:
    """How far a search is that is alone."""
    best_us = float(np.exp(history.best)) if history.best is not None else None
    return Joint(
        best_us,
        None,
        history.since,
        history.finished,
        len(history.running),
        blind=history.blind,
        blind_running=history.blind_running,
    )


def may_stop(found: Joint, own: int, least: int, options: GuidedOptions) -> bool:
    """Whether enough is known for a rule to be asked, trials in flight included; `own` is a study's part in them."""
    return found.trials + found.running >= least and own >= min(least, options.each) and found.best_us is not None


def out_of_patience(found: Joint, options: GuidedOptions) -> str | None:
    """Why a search with a prior is not worth going on; None if it is. Trials in flight count as no faster ones."""
    more = (options.compiled - 1) * (found.dear + found.dear_running)
    counted = found.since + found.running + more
    seeing = counted - found.blind - found.blind_running
    if counted < options.patience or seeing < min(options.seeing, options.patience):
        return None
    return f"{number_of(found.since + found.running, 'trial')} in a row found none that is faster"


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
