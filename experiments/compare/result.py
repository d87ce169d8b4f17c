"""A comparison's figures, from the searches that were run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tilescout.experiments.compare.answers import answers_of
from tilescout.experiments.compare.baseline import expected_trials, quantile_trials
from tilescout.experiments.compare.inference import (
    CONFIDENCE,
    ENOUGH_PROBLEMS,
    ENOUGH_SEEDS,
    FAR_BELOW,
    Interval,
    PairedTest,
    fewest_problems,
    over_problems,
    over_seeds,
    paired_tests,
)
from tilescout.experiments.compare.play import Case, Trace
from tilescout.experiments.compare.scores import Baselines, RunScore, best_so_far
from tilescout.experiments.compare.truth import Floats, Truth
from tilescout.experiments.finite import finite
from tilescout.spaces.shapes import shape_groups
from tilescout.spaces.texts import number_of, plain

TOLERANCES = (0.05, 0.01)
"""How far from the table's best "to within" is asked for, relative."""

SCORES = ("score", "score_at_rank", "score_gpu_seconds")

_ENDS = ("mean", "low", "high", "seeds_low", "seeds_high")


@dataclass(frozen=True, eq=False)
class Standing:
    """How one strategy did.

    Attributes
    ----------
    name
        The strategy.
    runs, failed
        Searches that ended well, and what went wrong with the others.
    deterministic
        Whether the searches of a problem were the same with every seed. They count as one then.
    scores
        For each of `SCORES` the mean over the problems, and the low and high end of its 95 % interval for other
        problems like these; NaN where there is a single one.
    over_seeds
        For each of `SCORES` the low and high end of the interval for other seeds on these very problems; NaN where no
        problem was searched with two.
    within
        For each tolerance: the share of the searches that came so close, and the median and 90th percentile of the
        trials and of the GPU seconds that it took; infinite where fewer came so close, NaN where no GPU seconds were
        recorded.
    curve
        Best so far over the table's best after each trial: the geometric mean over problems and seeds, and the low and
        high end of its 95 % interval for other problems, of shape [3, trials].
    seconds_per_trial
        What the strategy itself took to propose, in seconds.
    by_case
        The mean scores on each problem.
    stops
        Of the searches that ended before the budget and the table did: how many, after how many trials (median), what
        was left to find then, relative (median and 90th percentile), and in how many more than each tolerance.
    answers
        How good the answers were, and what they cost; see `answers_of`.
    """

    name: str
    runs: int
    failed: tuple[str, ...]
    deterministic: bool
    scores: Mapping[str, tuple[float, float, float]]
    over_seeds: Mapping[str, tuple[float, float]]
    within: Mapping[str, Mapping[str, float]]
    curve: Floats
    seconds_per_trial: float
    by_case: Mapping[str, Mapping[str, float]]
    stops: Mapping[str, float]
    answers: Mapping[str, float]


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
    shapes
        How many groups of problems of one shape have a score; its intervals and the tests are over these. See
        `tilescout.spaces.shapes`.
    versions
        Of tilescout and of what the strategies are made with.
    libraries
        The library's functions that speeds are over, where they are known.
    """

    trials: int
    seeds: int
    tables: tuple[str, ...]
    cases: Mapping[str, Mapping[str, float]]
    standings: Sequence[Standing]
    tests: Sequence[PairedTest]
    shapes: int
    versions: Mapping[str, str] = field(default_factory=dict)
    libraries: tuple[str, ...] = ()

    @property
    def asked(self) -> str:
        """How many problems, trials and seeds it is of."""
        return ", ".join(
            number_of(count, what)
            for count, what in ((len(self.cases), "problem"), (self.trials, "trial"), (self.seeds, "seed"))
        )

    @property
    def peers(self) -> str:
        """The speed of the tables' best over the library, and over its own best where that was recorded."""
        told = []
        library = plain(" and ".join(self.libraries) or "the library")
        for name, whom in (("best_over_library", library), ("best_over_library_best", "the library's best")):
            known = [case[name] for case in self.cases.values() if np.isfinite(case.get(name, np.nan))]
            if known:
                mean = np.exp(np.mean(np.log(known)))
                of = number_of(len(self.cases), "problem")
                told.append(f"{mean:.3f} times the speed of {whom} on {len(known)} of {of}")
        return f"the best of the tables: {', '.join(told)} (geometric means)" if told else ""

    @property
    def warnings(self) -> list[str]:
        """The limits of the figures, a sentence each."""
        found = [*self._unscored()]
        if 0 < self.shapes < ENOUGH_PROBLEMS:
            told = f"intervals over {number_of(self.shapes, 'problem')} of different shape"
            found.append(f"{told} hold less than they say: take {ENOUGH_PROBLEMS} or more")
        if self.seeds < ENOUGH_SEEDS and any(each.runs and not each.deterministic for each in self.standings):
            found.append(
                f"intervals over {number_of(self.seeds, 'seed')} hold less than they say: take {ENOUGH_SEEDS} or more"
            )
        low = [s.name for s in self.standings if s.scores["score"][0] < FAR_BELOW and not s.deterministic]
        if low and self.seeds < ENOUGH_SEEDS:
            found.append(
                f"the score of {', '.join(low)} is far below that of random search: with "
                f"{number_of(self.seeds, 'seed')} one unlucky search can make it so; "
                f"take {ENOUGH_SEEDS} or more before you believe it"
            )
        found += self._untested()
        same = [standing.name for standing in self.standings if standing.deterministic and self.seeds > 1]
        if same:
            found.append(f"the searches of {', '.join(same)} are the same with every seed, and count as one a problem")
        return found

    def _untested(self) -> Iterator[str]:
        """Where tests are not over problems, and so speak of no others."""
        if all(test.unit == "problem" for test in self.tests):
            return
        rivals = sum(bool(np.isfinite(standing.scores["score"][0])) for standing in self.standings)
        needed = fewest_problems(rivals)
        if self.shapes < needed:
            yield (
                f"{number_of(self.shapes, 'problem')} of different shape can prove nothing between {rivals} strategies "
                f"on problems like these: take {needed} or more; the paired tests speak of searches of these problems "
                "only"
            )
        else:
            yield (
                f"some strategies have searches of fewer than {needed} problems of different shape in common, which "
                "can prove nothing on problems like these: their paired tests speak of these searches only"
            )

    def _unscored(self) -> Iterator[str]:
        """Which problems the scores are without."""
        searched = list(dict.fromkeys(case for standing in self.standings for case in standing.by_case))

        def unknown(name: str) -> list[str]:
            scores = [standing.by_case for standing in self.standings]
            return [c for c in searched if not any(np.isfinite(known[c][name]) for known in scores if c in known)]

        nothing = unknown("score")
        free = [case for case in unknown("score_gpu_seconds") if case not in nothing]
        if nothing:
            yield f"nothing can be gained on {', '.join(nothing)}: the scores are without"
        if free and len(free) < len(searched):
            yield f"the scores over GPU time are without {', '.join(free)}, whose costs were not recorded"
        for standing in self.standings:
            lacking = [case for case in searched if case not in standing.by_case and case not in nothing]
            if lacking and standing.runs:
                yield (
                    f"every search of {standing.name} failed on {', '.join(lacking)}: its score is without, and is not "
                    "to be compared with scores that are with"
                )

    def to_dict(self) -> dict[str, Any]:
        """The comparison as the command line writes it with ``--json``; what is infinite or unknown becomes null."""
        record = {
            "trials": self.trials,
            "seeds": self.seeds,
            "confidence": CONFIDENCE,
            "intervals": "over problems; seeds_low and seeds_high over seeds",
            "versions": dict(self.versions),
            "libraries": list(self.libraries),
            "warnings": self.warnings,
            "cases": dict(self.cases),
            "contenders": {
                standing.name: {
                    "runs": standing.runs,
                    "failed": list(standing.failed),
                    "deterministic": standing.deterministic,
                    **{
                        name: dict(zip(_ENDS, (*values, *standing.over_seeds.get(name, (np.nan, np.nan))), strict=True))
                        for name, values in standing.scores.items()
                    },
                    "within": standing.within,
                    "stops": standing.stops,
                    "answers": standing.answers,
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
        cleaned: dict[str, Any] = finite(record)
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
    labels = _shapes(truths)
    baselines = {case: Baselines.of(truth, trials) for case, truth in truths.items()}
    names = list(dict.fromkeys(trace.run.contender for trace in traces))
    by_run: dict[str, dict[str, dict[int, float]]] = {}
    standings = []
    fixed: list[str] = []
    for name in names:
        own = [trace for trace in traces if trace.run.contender == name]
        good = [trace for trace in own if not trace.error]
        if same := is_deterministic(good):
            good = list({trace.run.case: trace for trace in reversed(good)}.values())[::-1]
            fixed.append(name)
        scored = {
            trace.run: RunScore.of(truths[trace.run.case], baselines[trace.run.case], trace.indices, trials, TOLERANCES)
            for trace in good
        }
        for run, score in scored.items():
            if np.isfinite(score.score):
                by_run.setdefault(name, {}).setdefault(run.case.label, {})[run.seed] = score.score
        failed = tuple(f"{t.run.case.label}, seed {t.run.seed}: {t.error}" for t in own if t.error)
        standings.append(_standing(name, failed, good, same, scored, truths, labels, trials))
    standings.sort(key=lambda standing: -np.nan_to_num(standing.scores["score"][0], nan=-np.inf))
    ordered = {standing.name: by_run[standing.name] for standing in standings if standing.name in by_run}
    cases = {case.label: _describe(truth) for case, truth in truths.items()}
    tables = tuple(sorted({case.table for case in truths}))
    tests = paired_tests(ordered, fixed, {case.label: shape for case, shape in labels.items()})
    known = {label for found in by_run.values() for label in found}
    shapes = {shape for case, shape in labels.items() if case.label in known}
    libraries = tuple(dict.fromkeys(truth.library for truth in truths.values() if truth.library))
    return Comparison(trials, seeds, tables, cases, standings, tests, len(shapes), libraries=libraries)


def is_deterministic(traces: Sequence[Trace]) -> bool:
    """Whether a strategy searched some problem with several seeds, and every problem in one way only."""
    ways: dict[Case, list[tuple[int, ...]]] = {}
    for trace in traces:
        ways.setdefault(trace.run.case, []).append(trace.indices)
    return any(len(found) > 1 for found in ways.values()) and all(len(set(found)) == 1 for found in ways.values())


def _standing(
    name: str,
    failed: tuple[str, ...],
    traces: Sequence[Trace],
    deterministic: bool,
    scored: Mapping[Any, RunScore],
    truths: Mapping[Case, Truth],
    labels: Mapping[Case, str],
    trials: int,
) -> Standing:
    rng = np.random.default_rng(0)  # of the resamples only: the same searches give the same intervals
    groups = {case: [trace for trace in traces if trace.run.case == case] for case in truths}
    groups = {case: own for case, own in groups.items() if own}
    if not groups:
        nothing = dict.fromkeys(SCORES, (float("nan"),) * 3)
        return Standing(name, 0, failed, False, nothing, {}, {}, np.full((3, trials), np.nan), 0.0, {}, {}, {})
    shapes = [labels[case] for case in groups]
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
        deterministic=deterministic,
        scores={field: _with_interval(values, shapes, rng) for field, values in of_case.items()},
        over_seeds={field: _over_seeds(values, rng) for field, values in of_case.items()},
        within={
            f"{tolerance:.0%}": {
                "share": float(np.mean([np.isfinite(run.trials_within[at]) for run in runs])),
                **_spread("trials", [run.trials_within[at] for run in runs]),
                **_spread("gpu_seconds", [run.gpu_seconds_within[at] for run in runs]),
            }
            for at, tolerance in enumerate(TOLERANCES)
        },
        curve=np.exp(np.stack([(means := _means(curves)).mean(axis=0), *over_problems(means, rng, shapes)])),
        seconds_per_trial=sum(trace.seconds for trace in traces) / max(tried, 1),
        by_case={
            case.label: {field: float(of_case[field][at].mean()) for field in SCORES} for at, case in enumerate(groups)
        },
        stops=_stops(traces, truths, trials),
        answers=answers_of(traces, truths, trials),
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


def _shapes(truths: Mapping[Case, Truth]) -> dict[Case, str]:
    """The shape of each case; a case whose problem is not known is of its own.

    A problem that a recording only names is of one shape with what has its name of the same kernel alone: 4096x4096 is
    the size of an image to one kernel, and of a grid to another.
    """
    known = {case: truth.problem for case, truth in truths.items() if truth.problem is not None}
    found = dict(zip(known, shape_groups(list(known.values())), strict=True))
    named = {case: f"{truths[case].space} {label}" for case, label in found.items() if not known[case].shape}
    return {case: case.label for case in truths} | found | named


def _means(groups: Sequence[Floats]) -> Floats:
    """The mean over the seeds of each problem, of shape [problems, ...]."""
    return np.stack([group.mean(axis=0) for group in groups])


def _with_interval(
    groups: Sequence[Floats], shapes: Sequence[str], rng: np.random.Generator
) -> tuple[float, float, float]:
    """The mean over the problems that have a score, with its interval; NaN if none has."""
    scored = [at for at, group in enumerate(groups) if np.isfinite(group).all()]
    if not scored:
        return (float("nan"),) * 3
    means = _means([groups[at] for at in scored])
    return float(means.mean()), *_ends(over_problems(means, rng, [shapes[at] for at in scored]))


def _over_seeds(groups: Sequence[Floats], rng: np.random.Generator) -> tuple[float, float]:
    """The interval for other seeds on the problems that have a score; NaN if none has."""
    scored = [group for group in groups if np.isfinite(group).all()]
    return _ends(over_seeds(scored, rng)) if scored else (float("nan"),) * 2


def _ends(interval: Interval) -> tuple[float, float]:
    low, high = interval
    return float(low), float(high)


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Median and 90th percentile of what is known, as values that occur: infinite ones do no harm to finite ones.

    NaN if nothing is.
    """
    known = [value for value in values if not np.isnan(value)] or [float("nan")]
    at = np.quantile(np.array(known), [0.5, 0.9], method="inverted_cdf")
    return {f"{name}_median": float(at[0]), f"{name}_p90": float(at[1])}


def _describe(truth: Truth) -> dict[str, float]:
    record = {
        "configurations": len(truth),
        "timed": int(truth.timed.sum()),
        "best_us": truth.best_us,
        "best_over_library": truth.library_us / truth.best_us,
        "best_over_library_best": truth.library_best_us / truth.best_us,
        "exhaustive_gpu_seconds": float(truth.gpu_seconds.sum()) if truth.has_gpu_seconds else float("nan"),
    }
    for tolerance in TOLERANCES:
        good = int(truth.within(tolerance).sum())
        record |= {
            f"within_{tolerance:.0%}": good,
            f"random_trials_to_{tolerance:.0%}_mean": expected_trials(good, len(truth)),
            f"random_trials_to_{tolerance:.0%}_median": quantile_trials(good, len(truth), 0.5),
        }
    return record
