"""A comparison's figures, from the searches that were run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilescout.experiments.compare.baseline import expected_trials, quantile_trials
from tilescout.experiments.compare.inference import CONFIDENCE, PairedTest, bootstrap, paired_tests
from tilescout.experiments.compare.play import Case, Trace
from tilescout.experiments.compare.scores import Baselines, RunScore, best_so_far
from tilescout.experiments.compare.truth import Floats, Truth

TOLERANCES = (0.05, 0.01)
"""How far from the table's best "to within" is asked for, relative."""

SCORES = ("score", "score_at_rank", "score_gpu_seconds")


@dataclass(frozen=True, eq=False)
class Standing:
    """How one strategy did.

    Attributes
    ----------
    name
        The strategy.
    runs, failed
        Searches that ended well, and what went wrong with the others.
    scores
        For each of `SCORES` the mean over the problems, and the low and high end of its 95 % interval.
    within
        For each tolerance: the share of the searches that came so close, and the median and 90th percentile of the
        trials and of the GPU seconds that it took; infinite where fewer came so close.
    curve
        Best so far over the table's best after each trial: the geometric mean over problems and seeds, and the low and
        high end of its 95 % interval, of shape [3, trials].
    seconds_per_trial
        What the strategy itself took to propose, in seconds.
    by_case
        The mean scores on each problem.
    stops
        Of the searches that ended before the budget and the table did: how many, after how many trials (median), what
        was left to find then, relative (median and 90th percentile), and in how many more than each tolerance.
    """

    name: str
    runs: int
    failed: tuple[str, ...]
    scores: Mapping[str, tuple[float, float, float]]
    within: Mapping[str, Mapping[str, float]]
    curve: Floats
    seconds_per_trial: float
    by_case: Mapping[str, Mapping[str, float]]
    stops: Mapping[str, float]


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that a comparison found.

    Attributes
    ----------
    trials, seeds
        The budget, and seeds a problem.
    tables
        The files of the tables.
    cases
        The problems, with what is known of them and what random search is expected to need.
    standings
        The strategies, the highest score first.
    tests
        Every two of them.
    """

    trials: int
    seeds: int
    tables: tuple[str, ...]
    cases: Mapping[str, Mapping[str, float]]
    standings: Sequence[Standing]
    tests: Sequence[PairedTest]

    def to_dict(self) -> dict[str, Any]:
        """The comparison as the command line writes it with ``--json``; what is infinite or unknown becomes null."""
        record = {
            "trials": self.trials,
            "seeds": self.seeds,
            "confidence": CONFIDENCE,
            "cases": dict(self.cases),
            "contenders": {
                standing.name: {
                    "runs": standing.runs,
                    "failed": list(standing.failed),
                    **{
                        name: dict(zip(("mean", "low", "high"), values, strict=True))
                        for name, values in standing.scores.items()
                    },
                    "within": standing.within,
                    "stops": standing.stops,
                    "seconds_per_trial": standing.seconds_per_trial,
                    "time_over_best": dict(
                        zip(("geometric_mean", "low", "high"), standing.curve.tolist(), strict=True)
                    ),
                    "by_case": standing.by_case,
                }
                for standing in self.standings
            },
            "paired_tests": [asdict(test) for test in self.tests],
        }
        cleaned: dict[str, Any] = _finite(record)
        return cleaned


def compare_traces(truths: Mapping[Case, Truth], traces: Sequence[Trace], trials: int, seeds: int) -> Comparison:
    """Score searches and compare the strategies.

    Parameters
    ----------
    truths
        What is known of each problem.
    traces
        The searches; strategies appear in the order of their first one, until they are ranked.
    trials, seeds
        The budget, and seeds a problem.
    """
    baselines = {case: Baselines.of(truth, trials) for case, truth in truths.items()}
    names = list(dict.fromkeys(trace.run.contender for trace in traces))
    by_run: dict[str, dict[str, dict[int, float]]] = {}
    standings = []
    for name in names:
        own = [trace for trace in traces if trace.run.contender == name]
        good = [trace for trace in own if not trace.error]
        scored = {
            trace.run: RunScore.of(truths[trace.run.case], baselines[trace.run.case], trace.indices, trials, TOLERANCES)
            for trace in good
        }
        for run, score in scored.items():
            by_run.setdefault(name, {}).setdefault(run.case.label, {})[run.seed] = score.score
        failed = tuple(f"{t.run.case.label}, seed {t.run.seed}: {t.error}" for t in own if t.error)
        standings.append(_standing(name, failed, good, scored, truths, trials))
    standings.sort(key=lambda standing: -np.nan_to_num(standing.scores["score"][0], nan=-np.inf))
    ordered = {standing.name: by_run[standing.name] for standing in standings if standing.name in by_run}
    cases = {case.label: _describe(truth) for case, truth in truths.items()}
    tables = tuple(sorted({case.table for case in truths}))
    return Comparison(trials, seeds, tables, cases, standings, paired_tests(ordered))


def _standing(
    name: str,
    failed: tuple[str, ...],
    traces: Sequence[Trace],
    scored: Mapping[Any, RunScore],
    truths: Mapping[Case, Truth],
    trials: int,
) -> Standing:
    rng = np.random.default_rng(0)  # of the resamples only: the same searches give the same intervals
    groups = {case: [trace for trace in traces if trace.run.case == case] for case in truths}
    groups = {case: own for case, own in groups.items() if own}
    if not groups:
        nothing = (float("nan"),) * 3
        return Standing(name, 0, failed, dict.fromkeys(SCORES, nothing), {}, np.full((3, trials), np.nan), 0.0, {}, {})
    of_case = {
        field: [np.array([getattr(scored[trace.run], field) for trace in own]) for own in groups.values()]
        for field in SCORES
    }
    curves = [
        np.log(np.stack([best_so_far(truths[case], trace.indices, trials) for trace in own]) / truths[case].best_us)
        for case, own in groups.items()
    ]
    runs = list(scored.values())
    tried = sum(len(trace.indices) for trace in traces)
    return Standing(
        name=name,
        runs=len(traces),
        failed=failed,
        scores={field: _triple(bootstrap(values, _over_problems, rng)) for field, values in of_case.items()},
        within={
            f"{tolerance:.0%}": {
                "share": float(np.mean([np.isfinite(run.trials_within[at]) for run in runs])),
                **_spread("trials", [run.trials_within[at] for run in runs]),
                **_spread("gpu_seconds", [run.gpu_seconds_within[at] for run in runs]),
            }
            for at, tolerance in enumerate(TOLERANCES)
        },
        curve=np.exp(np.stack(bootstrap(curves, _over_problems, rng))),
        seconds_per_trial=sum(trace.seconds for trace in traces) / max(tried, 1),
        by_case={
            case.label: {field: float(of_case[field][at].mean()) for field in SCORES} for at, case in enumerate(groups)
        },
        stops=_stops(traces, truths, trials),
    )


def _stops(traces: Sequence[Trace], truths: Mapping[Case, Truth], trials: int) -> dict[str, float]:
    """The figures of `Standing.stops`; their number alone, if it is 0."""
    ended = [trace for trace in traces if 0 < len(trace.indices) < min(trials, len(truths[trace.run.case]))]
    if not ended:
        return {"searches": 0}
    left = [best_so_far(truths[t.run.case], t.indices, trials)[-1] / truths[t.run.case].best_us - 1 for t in ended]
    return {
        "searches": len(ended),
        "trials_median": float(np.median([len(trace.indices) for trace in ended])),
        "left_median": float(np.median(left)),
        "left_p90": float(np.quantile(left, 0.9)),
        **{f"left_over_{tolerance:.0%}": float(np.sum(np.array(left) > tolerance)) for tolerance in TOLERANCES},
    }


def _over_problems(means: Floats) -> Floats:
    return np.asarray(means.mean(axis=0), dtype=np.float64)


def _triple(values: tuple[Floats, Floats, Floats]) -> tuple[float, float, float]:
    point, low, high = (float(value) for value in values)
    return point, low, high


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Median and 90th percentile as values that occur, so that infinite ones do no harm to finite ones."""
    at = np.quantile(np.array(values), [0.5, 0.9], method="inverted_cdf")
    return {f"{name}_median": float(at[0]), f"{name}_p90": float(at[1])}


def _describe(truth: Truth) -> dict[str, float]:
    record = {
        "configurations": len(truth),
        "timed": int(truth.timed.sum()),
        "best_us": truth.best_us,
        "exhaustive_gpu_seconds": float(truth.gpu_seconds.sum()),
    }
    for tolerance in TOLERANCES:
        good = int(truth.within(tolerance).sum())
        record |= {
            f"within_{tolerance:.0%}": good,
            f"random_trials_to_{tolerance:.0%}_mean": expected_trials(good, len(truth)),
            f"random_trials_to_{tolerance:.0%}_median": quantile_trials(good, len(truth), 0.5),
        }
    return record


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
