r"""Replay what `tune` does: search two spaces at the same time, or with the portfolio's kernels in the store.

    python -m tilescout.experiments.research replayed-tunings FIRST.parquet --beside SECOND.parquet --out replayed.json

Each problem is searched by models that never saw its shape: of four parts of the shapes, drawn at random so that each
has as many of the problems of both spaces, they have not seen the problem's. The problems that tables of both spaces
hold are searched in both, and a regret is to the best that is recorded in either. All problems of the first tables are
searched in that space alone. Each is done with nothing in the store, and with the kernels of the templates' stock that
the tables have for the problem, as ``tilescout compile --portfolio`` compiles it; that was chosen on the same tables.
A search ends by itself, as a live one does. The figures tell how many lose to the library's best kernel, after some
trials and in the end, where the table has its time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
import optuna

from tilescout.costmodel.blend import BlendOptions
from tilescout.costmodel.estimator import CostModel
from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.compare.held_out import HeldOutModels
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.experiments.research.studies.stop_rule import GAIN
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.joint import Joint
from tilescout.search.samplers.options import OptionValue
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.sharing import SoleTuner
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.lane import Lane
from tilescout.search.tuning.loop import run_together
from tilescout.spaces.problems import Problem
from tilescout.spaces.shapes import shape_groups

PARTS = 4
AHEAD = 14
"""Proposals in flight: a live search has up to 16, and fewer where it is about to stop."""

TRIALS = 96
AFTER = (7, 12)
"""Trials after which it is told whether a search loses so far."""

LOST = 0.01
"""How much slower than the library's best a search's best is that loses."""

TOGETHER, STOCKED, ALONE, PORTFOLIO = "both spaces", "both spaces, portfolio", "first space", "first space, portfolio"


@dataclass(frozen=True)
class Replayed:
    """A search that ended by itself.

    Attributes
    ----------
    problem, how
        What was searched, and in which spaces, with which store: `TOGETHER`, `STOCKED`, `ALONE` or `PORTFOLIO`.
    trials
        In each space.
    compiled
        Kernels of trials that the store did not have.
    regret
        The best found over the best recorded in the spaces, less 1.
    ahead
        The ratio of the library's best kernel over the least ratio after each trial, less 1: below `-LOST` it loses.
        Empty where the first table does not have that kernel.
    """

    problem: str
    how: str
    trials: Sequence[int]
    compiled: int
    regret: float
    ahead: Sequence[float] = ()

    def loses(self, trials: int | None = None) -> bool:
        """Whether the best of so many trials, or of all, is slower than the library's best by more than `LOST`."""
        held = self.ahead[:trials]
        return bool(held) and held[-1] < 1 / (1 + LOST) - 1


def replay(
    name: str, spaces: Sequence[tuple[Table, CostModel]], how: str, given: Mapping[str, OptionValue | str]
) -> Replayed:
    """Search a problem in spaces at the same time.

    Parameters
    ----------
    name
        The problem.
    spaces
        Of each space a table that holds the problem, and a model.
    how
        See `Replayed`.
    given
        Options of the searches; see `GuidedOptions`.
    """
    joints = [Joint()] * len(spaces)
    lanes, best = list[Lane](), list[float]()
    told: list[tuple[int, TrialRecord]] = []
    kept: list[set[int]] = []

    def tell(at: int, trial: TrialRecord) -> None:
        told.append((at, trial))

    def see(found: Sequence[Joint]) -> None:
        joints[:] = found

    for at, (table, model) in enumerate(spaces):
        problem = table.problem(name)
        template = template_of(table)
        engine = ReplayEngine(table, template, ahead=AHEAD)
        evaluator, recording = Evaluator(engine, problem), engine.recording(problem)
        joint = {"joint": partial(joints.__getitem__, at)} if len(spaces) > 1 else {}
        sampler = make_sampler("guided", recording.space, 0, given, model=model, **joint)
        stock = evaluator.stock()
        stored = stock if how in (STOCKED, PORTFOLIO) else stock[:0]
        kept.append(set(evaluator.kernels[stored].tolist()))
        sampler.find_stored(stored, stock, evaluator.kernels)
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        search = optuna.create_study(sampler=sampler, direction="minimize")
        tuner = SoleTuner(search, recording.space)
        lanes.append(Lane(search, evaluator, evaluator.library_us(), partial(tell, at), (), tuner))
        best.append(_least_ratio(table, problem))
    run_together(lanes, Budget(TRIALS), see)
    timings = [trial.measurement.timing for _, trial in told]
    ratios = [timing.ratio if timing is not None else np.inf for timing in timings]
    library = lanes[0].evaluator.engine.recorded_library_best(lanes[0].evaluator.problem)
    ahead = np.empty(0) if library is None else library.ratio.value / np.minimum.accumulate(ratios) - 1
    return Replayed(
        problem=name,
        how=how,
        trials=[sum(at == number for at, _ in told) for number in range(len(spaces))],
        compiled=sum(
            len({int(lane.evaluator.kernels[trial.index]) for at, trial in told if at == number} - kept[number])
            for number, lane in enumerate(lanes)
        ),
        regret=min(ratios) / min(best) - 1,
        ahead=ahead.tolist(),
    )


def _least_ratio(table: Table, problem: Problem) -> float:
    return float(np.asarray(table.data["ratio"].fill_null(np.inf))[table.rows(problem)].min())


def summary(found: Sequence[Replayed]) -> dict[str, float]:
    """The figures of searches."""
    trials, compiled = (
        np.array(each) for each in zip(*((sum(one.trials), one.compiled) for one in found), strict=True)
    )
    regrets = np.array([one.regret for one in found])
    return {
        "problems": len(found),
        "trials_median": float(np.median(trials)),
        "trials_mean": float(trials.mean()),
        "compiled_median": float(np.median(compiled)),
        "compiled_mean": float(compiled.mean()),
        "compiled_few": int((compiled <= 3).sum()),
        "regret_mean": float(regrets.mean()),
        "missed": int((regrets > GAIN).sum()),
        "compared": sum(bool(one.ahead) for one in found),
        "lose": sum(one.loses() for one in found),
        **{f"lose_after_{count}": sum(one.loses(count) for one in found) for count in AFTER},
        **{f"recover_after_{count}": sum(one.loses(count) and not one.loses() for one in found) for count in AFTER},
    }


def unseen_parts(first: Sequence[Problem], second: Sequence[Problem], seed: int) -> dict[str, int]:
    """The part that each problem is in: one of `PARTS`, with whole shapes."""
    problems = {str(problem): problem for problem in (*first, *second)}
    labels = dict(zip(problems, shape_groups(list(problems.values())), strict=True))
    both = {labels[name] for name in {*map(str, first)} & {*map(str, second)}}
    generator, part_of = np.random.default_rng(seed), dict[str, int]()
    for shapes in (sorted(both), sorted({*labels.values()} - both)):
        part_of |= {shape: at % PARTS for at, shape in enumerate(generator.permutation(shapes).tolist())}
    return {name: part_of[label] for name, label in labels.items()}


@study(TABLES)
@click.argument("tables", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--beside",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="Table of a second space; repeatable.",
)
@click.option(
    "--set", "given", type=(str, str), multiple=True, metavar="OPTION VALUE", help="Of the searches; repeatable."
)
@seed_option
@store_option
def main(
    run: Run,
    tables: tuple[Path, ...],
    beside: tuple[Path, ...],
    given: tuple[tuple[str, str], ...],
    seed: int,
    store: Path,
) -> None:
    """Search every problem, and print what it took and left."""
    spaces = [[Table.read(path) for path in paths] for paths in (tables, beside)]
    held = [{str(problem): table for table in some for problem in table.problems} for some in spaces]
    models = [HeldOutModels.of(some, store, BlendOptions()) for some in spaces]
    part_of = unseen_parts(models[0].problems(), models[1].problems(), seed)

    def searched(name: str, at: int) -> tuple[Table, CostModel]:
        unseen = [other for other in held[at] if part_of[other] == part_of[name]]
        return held[at][name], models[at].without(unseen)

    found: dict[str, list[Replayed]] = {}
    for how, places in ((TOGETHER, (0, 1)), (STOCKED, (0, 1)), (ALONE, (0,)), (PORTFOLIO, (0,))):
        names = [name for name in held[0] if all(name in held[at] for at in places)]
        found[how] = [replay(name, [searched(name, at) for at in places], how, dict(given)) for name in names]
    figures = {how: summary(searches) for how, searches in found.items()}
    run.keep({"searches": [asdict(one) for searches in found.values() for one in searches], "figures": figures})
    for how, values in figures.items():
        print(f"{how}: " + ", ".join(f"{key} {value:.4g}" for key, value in values.items()))
