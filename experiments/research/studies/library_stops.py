"""Tell where a guided search of cuBLASLt's algorithms stops by itself, and what is left to find then and later.

    python -m tilescout.experiments.research library-stops TIMES --out stops.json

TIMES are folders that `library-screen` wrote, a file a problem. A search of a problem is replayed on the rows that were
screened of it, guided by a model that learned from none of its fold, as `library-model` learns. The search goes on for
all its trials; where its rule would have ended it is noted, whatever the least number of trials. With --sampler other
values of the options of `guided` are tried.
"""

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import optuna
from numpy.typing import NDArray
from rich.console import Console

from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.forest import ForestModel, ForestOptions
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.screening import Screened
from tilescout.experiments.research.studies.library_model import SPACE, Ordered, files_in, times_argument
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.samplers import make_sampler, parse_sampler
from tilescout.search.studies.ledger import distributions
from tilescout.search.studies.trials import enqueue, record_outcome
from tilescout.spaces.devices import find_device
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

DEVICE = "h200"
LEAST = 10  # finished trials from which on the rule is asked: as of spaces whose kernels are compiled


@dataclass(frozen=True)
class Search:
    """One search.

    Attributes
    ----------
    problem
        The problem.
    rows
        Algorithms to choose among.
    stop
        Trials after which the rule would have ended it; all of them if it would not.
    at_stop, at_end
        How much slower the best found is than the best of all, then and after all trials.
    """

    problem: str
    rows: int
    stop: int
    at_stop: float
    at_end: float


def searched(found: Screened, model: CostModel, trials: int, sampler: str = "guided") -> Search:
    """Replay a search on what was screened of a problem, by `guided` with its options."""
    template, right = find_template(SPACE), np.isfinite(found.us)
    rows = found.rows[right].astype(np.int64).tolist()
    codes = SearchSpace.codes_of(template.knobs, rows)
    space = template.space_of(codes, found.problem, find_device(DEVICE))
    assert space is not None
    us = np.empty(len(space))
    us[space.find(codes)] = found.us[right]
    name, options = parse_sampler(sampler)
    guided = make_sampler(name, space, 0, model=model, options={"least_apart": LEAST, **options})
    told = optuna.create_study(sampler=guided)
    knobs, default = distributions(space), space.index(template.default_in(space))
    for index in (default, *template.first_in(space)):
        enqueue(told, space, index)
    best: list[float] = []
    stop = None
    while len(best) < min(trials, len(space)):
        if stop is None and guided.done(told):
            stop = len(best)
        trial = told.ask()
        chosen = [trial.suggest_int(name, knob.low, knob.high) for name, knob in knobs.items()]
        index = int(space.find(np.array(chosen)))
        ratio = float(us[index] / us[default])
        timing = Timing(ratio, ratio, ratio, ratio, ratio, float(us[default]), pairs=6)
        record_outcome(told, trial, Measurement(Status.OK, timing=timing))
        best.append(min([us[index], *best[-1:]]))
    ended = len(best) if stop is None else stop
    return Search(str(found.problem), len(space), ended, best[ended - 1] / us.min() - 1, best[-1] / us.min() - 1)


def summary(searches: list[Search], trials: int) -> dict[str, float]:
    """The figures over the problems."""
    stops, at_stop, at_end = (np.array([getattr(one, name) for one in searches]) for name in _NUMBERS)

    def within(left: NDArray[np.float64]) -> int:
        return int((left <= 0.01).sum())

    return {
        "problems": len(searches),
        "stopped early": int((stops < trials).sum()),
        "median trials": float(np.median(stops)),
        "within 1 % at the stop": within(at_stop),
        f"within 1 % after {trials}": within(at_end),
    }


_NUMBERS = ("stop", "at_stop", "at_end")


@study("files that library-screen wrote")
@times_argument
@click.option(
    "--sampler", "samplers", multiple=True, default=("guided",), show_default=True, help="With options; repeatable."
)
@click.option("--trials", type=click.IntRange(min=1), default=40, show_default=True, help="Of each search.")
@click.option("--most", type=click.IntRange(min=1), default=1000, show_default=True, help="Rows that are learned from.")
@click.option("--folds", type=click.IntRange(min=2), default=6, show_default=True, help="Parts of the problems.")
def main(run: Run, times: tuple[Path, ...], samplers: tuple[str, ...], trials: int, most: int, folds: int) -> None:
    """Replay searches on the times in TIMES, each with a model that did not learn from its problem."""
    console, files = Console(width=160), files_in(times)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samples = [Ordered.read(file, DEVICE).sample(most, np.random.default_rng([0, at])) for at, file in enumerate(files)]
    searches: dict[str, list[Search]] = {sampler: [] for sampler in samplers}
    for fold in range(folds):
        out = range(fold, len(files), folds)
        model = ForestModel(ForestOptions(trees=16, leaf=4, seed=0))
        model.fit([sample for at, sample in enumerate(samples) if at not in out])
        for at, (sampler, found) in itertools.product(out, searches.items()):
            found.append(one := searched(Screened.read(files[at]), model, trials, sampler))
            console.print(
                f"{one.problem}, {sampler}: stops after {one.stop}, {one.at_stop:.2%} behind; "
                f"after {trials} {one.at_end:.2%}",
                highlight=False,
            )
        told = {
            sampler: {**summary(found, trials), "searches": [asdict(each) for each in found]}
            for sampler, found in searches.items()
        }
        run.keep({"trials": trials, "samplers": told})
    for sampler, found in searches.items():
        console.print(f"{sampler}: {summary(found, trials)}")
