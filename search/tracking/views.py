"""The figures of a study as plain columns, for the plots, the description in MLflow and the HTML report."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescout.search.measure.measurement import Status, Timing
from tilescout.search.measure.race import Estimate
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.tracking import fields
from tilescout.spaces.knobs import Configuration, Value

_MAP = ("tile_m", "tile_n")  # the knobs of the heat map, where a space has them
_TREES, _DEPTH = 16, 6  # of fANOVA's forest: shares within 0.05 of those of 64 deep trees on three searches of 500
FEWEST, _MOST = 8, 300  # timed trials for importances, and the most that they are computed from
_COUNTED = (Status.OK, Status.PRUNED)


@dataclass(frozen=True)
class Importance:
    """How much each knob matters to the times of a study, estimated from its trials.

    Attributes
    ----------
    variance
        Share of the variance of the log times that is the knob's alone (fANOVA; Hutter, Hoos and Leyton-Brown, 2014);
        what is left of 1 is interactions of knobs.
    fastest
        Share in what sets the fastest tenth apart from the others (PED-ANOVA; Watanabe, Bansal and Hutter, 2023); 1 in
        all.
    """

    variance: Mapping[str, float]
    fastest: Mapping[str, float]


@dataclass(frozen=True)
class HeatMap:
    """The fastest time for each pair of values of two knobs.

    Attributes
    ----------
    x, y
        The knobs.
    x_values, y_values
        Their values that were tried, ascending.
    time_us
        In µs, of shape [y values, x values]; NaN where nothing was timed.
    """

    x: str
    y: str
    x_values: Sequence[Value]
    y_values: Sequence[Value]
    time_us: NDArray[np.float64]


def knob_values(trials: Sequence[TrialRecord]) -> dict[str, list[Value]]:
    """The values that were tried of each knob that all trials have, in order, for those that had more than one."""
    if not trials:
        return {}
    shared = [name for name in trials[0].configuration if all(name in trial.configuration for trial in trials)]
    tried = {name: {trial.configuration[name] for trial in trials} for name in shared}
    return {
        name: sorted(values, key=lambda value: (isinstance(value, str), value))
        for name, values in tried.items()
        if len(values) > 1
    }


def importance(result: StudyResult) -> Importance | None:
    """How much each knob matters, the most important first; None if too few trials were timed.

    Only trials with a time count, and a search does not try configurations at random: this describes its trials.
    """
    timed = [trial for trial in result.trials if trial.measurement.ok]
    timed = timed[:: max(1, math.ceil(len(timed) / _MOST))]  # evenly over the search: a thousand would take seconds
    values = knob_values(timed)
    if len(timed) < FEWEST or not values or len({trial.measurement.time_us for trial in timed}) == 1:
        return None
    # With scikit-learn and SciPy, a second of imports.
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator
    from optuna.trial import create_trial

    distributions: dict[str, BaseDistribution] = {
        name: IntDistribution(0, len(tried) - 1) if _is_ordered(tried) else CategoricalDistribution(range(len(tried)))
        for name, tried in values.items()
    }
    codes = {name: {value: code for code, value in enumerate(tried)} for name, tried in values.items()}
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would announce a study that nobody is to see
    study = optuna.create_study()
    optuna.logging.set_verbosity(verbosity)
    study.add_trials(
        [
            create_trial(
                params={name: codes[name][trial.configuration[name]] for name in values},
                distributions=distributions,
                value=math.log(trial.measurement.time_us),
            )
            for trial in timed
        ]
    )
    variance = FanovaImportanceEvaluator(n_trees=_TREES, max_depth=_DEPTH, seed=0).evaluate(study)
    fastest = PedAnovaImportanceEvaluator().evaluate(study)
    total = sum(fastest.values()) or 1.0
    order = sorted(values, key=lambda name: -variance[name])
    return Importance(
        {name: float(variance[name]) for name in order}, {name: float(fastest[name]) / total for name in order}
    )


def heat_map(result: StudyResult, found: Importance | None) -> HeatMap | None:
    """The map of tile_m and tile_n, or of the two most important ordered knobs; None if there are no two to map."""
    timed = [trial for trial in result.trials if trial.measurement.ok]
    values = {name: tried for name, tried in knob_values(timed).items() if _is_ordered(tried)}
    order = list(found.variance) if found is not None else list(values)
    names = _MAP if set(_MAP) <= set(values) else tuple(sorted(values, key=order.index)[:2])
    if len(names) < 2:
        return None
    y, x = names
    grid = np.full((len(values[y]), len(values[x])), np.nan)
    for trial in timed:
        at = values[y].index(trial.configuration[y]), values[x].index(trial.configuration[x])
        grid[at] = np.fmin(grid[at], trial.measurement.time_us)
    return HeatMap(x, y, values[x], values[y], grid)


def gpu_account(result: StudyResult) -> dict[str, dict[str, float]]:
    """Seconds of GPU time by purpose, and within a purpose by how the trials ended. The race is one of the purposes."""
    account: dict[str, dict[str, float]] = {}
    for what in ("verify", "pilot", "timing"):
        spent = {"ok": 0.0, "pruned": 0.0, "failed": 0.0}
        for trial in result.trials:
            measurement = trial.measurement
            end = str(measurement.status) if measurement.status in _COUNTED else "failed"
            spent[end] += getattr(measurement, f"{what}_seconds")
        account[what] = spent
    if result.race is not None:
        account["race"] = {"race": result.race.gpu_seconds}
    return account


def failures(result: StudyResult) -> list[tuple[str, str, int, int]]:
    """The failures of trials: status, reason, number of trials and the first of them; the most frequent first."""
    found = [trial for trial in result.trials if trial.measurement.failed]
    reasons = Counter((str(trial.measurement.status), trial.measurement.error) for trial in found)
    first = {(str(trial.measurement.status), trial.measurement.error): trial.number for trial in reversed(found)}
    return [(status, error, count, first[status, error]) for (status, error), count in reasons.most_common()]


def others(result: StudyResult) -> list[tuple[str, Estimate]]:
    """The kernels of others that were timed, by name: the time of each over the library's."""
    best = [] if result.library_best is None else [(result.library_best.name, result.library_best.ratio)]
    return best + [(peer.name, peer.ratio) for peer in result.peers if peer.ratio is not None]


def over_default(result: StudyResult) -> Estimate | None:
    """How many times faster than the default the answer is, with its 95 % interval.

    After a race it is what the race measured in the same rounds. Otherwise both intervals are to the library, and their
    logarithms' half widths are added as those of independent errors.
    """
    best, default, race = result.best, result.default, result.race
    if best is None or default is None or best.measurement.timing is None or default.measurement.timing is None:
        return None
    if best.number == default.number:
        return Estimate(1.0, 1.0, 1.0)
    if race is not None:
        return race.over_default.inverse()
    ours, theirs = best.measurement.timing, default.measurement.timing
    value = fields.speedup(ours, theirs)
    below = math.hypot(math.log(ours.ratio_high / ours.ratio), math.log(theirs.ratio / theirs.ratio_low))
    above = math.hypot(math.log(ours.ratio / ours.ratio_low), math.log(theirs.ratio_high / theirs.ratio))
    return Estimate(value, value * math.exp(-below), value * math.exp(above))


def over_library(timing: Timing) -> Estimate:
    """How many times faster than the library a configuration is, with its 95 % interval."""
    return Estimate.of(timing).inverse()


def differing(best: Configuration | None, default: Configuration) -> list[tuple[str, Value | str, Value | str]]:
    """Every knob with its value in the best and in the default configuration; nothing without a best one."""
    if best is None:
        return []
    return [(name, best.get(name, ""), default.get(name, "")) for name in dict.fromkeys([*best, *default])]


def trial_rows(result: StudyResult) -> list[dict[str, object]]:
    """The trials as rows with the same columns: times in µs, costs in seconds, sizes in bytes; None for the unknown.

    A knob that is called like another column has ``knob:`` before its name.
    """
    default = result.default
    reference = default.measurement.timing if default is not None else None
    leading = ("time_us", result.info.problem.rate.unit.name, "speedup_over_library", "speedup_over_default")
    raced = fields.race_metrics(result)
    rows: list[dict[str, object]] = []
    measured = [
        fields.trial_metrics(each, result.info, reference) | raced.get(each.number, {}) for each in result.trials
    ]
    others = {"trial", "status", *leading, "space_index", "error"}.union(*measured)
    for trial, metrics in zip(result.trials, measured, strict=True):
        del metrics["trial"]
        first = {"trial": trial.number, "status": str(trial.measurement.status)}
        first |= {name: metrics.pop(name, None) for name in leading}
        knobs = {f"knob:{name}" if name in others else name: value for name, value in trial.configuration.items()}
        last = {"space_index": trial.index, "error": trial.measurement.error}
        rows.append(first | knobs | last | metrics)
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def _is_ordered(values: Sequence[Value]) -> bool:
    return all(isinstance(value, int) for value in values)
