r"""Searches on kernels of which no table and no model exist: how few trials are enough.

    python -m tilescout.experiments.research few-shot \
        experiments/results/few-shot-2026-11-22/quack_sm90-h200.parquet --seeds 5 --out few-shot.json

Each table is of one kernel family, and of each problem it has all of a stated sub-space. Searches are replayed on it.
`guided` may use what `tilescout tune` would give it: the model of a relative, where one is shipped
(`tilescout.costmodel.relatives`). A table of a kernel that has a shipped model of its own is refused, as is one with a
problem that the relative's model has seen: then nothing would be left out.

With --model it is the model of another kernel that is named: so even the kernel that most tables hold is left out.
With --learn `guided` has a model that learned from tables of several other kernels, without the problems of the table
that is searched.
The first trial of every search is the table's default, as it is in `tilescout tune`; --no-default leaves it out, where
it was chosen on the table. One that is no longer legal is left out too. Samplers learn from it. Strategies
of other projects are played as they are, behind it. The option ``whole`` is on: no search stops by itself, but for each
it is noted where it would have.

With --together the problems of a table are searched one after the other, in a random order for each seed, and each
search knows the trials of those before it, as in a suite; such strategies are named ``NAME together``. With --behind
each search knows as many earlier studies of other problems, drawn at random, each of a search by itself, as in a store;
such strategies are named ``NAME behind 2``.

With --again the searches of a file are printed; with tables as well, what was asked for is played and joins them, in
the place of equal searches.

What the figures are, `tilescout.experiments.research.few_shot_figures` tells.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import click
import numpy as np
import optuna
from rich.console import Console

from tilescout.costmodel.blend import BlendModel, BlendOptions
from tilescout.costmodel.persistence import ModelCard, TrainingTable, load_model, save_model, shipped_model
from tilescout.costmodel.relatives import relative_model
from tilescout.experiments.commands.options import collected, processes_option
from tilescout.experiments.compare.contenders import parse_contender
from tilescout.experiments.compare.processes import each
from tilescout.experiments.compare.sampler import SamplerContender
from tilescout.experiments.compare.truth import Truth
from tilescout.experiments.research.few_shot_figures import AFTER, TOLERANCE, Search, figures_of, print_all
from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.build.cores import available_cores
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.samplers import find_sampler, make_sampler, parse_sampler
from tilescout.search.samplers.others import OtherTrials
from tilescout.search.studies.trials import enqueue
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.search.tables.training import problem_sample
from tilescout.search.tuning import loop
from tilescout.search.tuning.budget import Budget
from tilescout.spaces.errors import ModelError, SamplerError

SAMPLERS = ("guided", "guided-cold", "guided-cold:startup=10:drawn=1", "lfbo", "lfbo:initial=10", "tpe", "random")
TOGETHER = " together"
BEHIND = " behind "
"""Ends of the names of strategies whose searches know others' trials; how many studies follows the second."""


def search(
    path: Path, name: str, strategy: str, seed: int, trials: int, model: Path | None = None, default: bool = True
) -> Search:
    """One search of the problem of this name on a table, the default first if asked for; `guided` may have a model."""
    played = _Searches(path, strategy, seed, trials, default)
    if isinstance(contender := parse_contender(strategy), SamplerContender):
        settings: dict[str, Any] = {}
        if model is not None and find_sampler(parse_sampler(strategy)[0]).uses_model:
            settings["model"] = model
        tried, stopped, _ = played.sampled(name, settings)
    else:
        first = played.first(name)
        others = contender.play(played.engine, played.table.problem(name), trials, played.entropy(name))
        tried, stopped = [*first, *(int(index) for index in others if index not in first)][:trials], None
    return played.outcome(name, tried, stopped)


def search_together(path: Path, strategy: str, seed: int, trials: int, default: bool = True) -> list[Search]:
    """A search of every problem of a table, in a random order, by a sampler that knows the trials of those before it.

    Raises
    ------
    SamplerError
        If the strategy does not learn from the trials of other problems.
    """
    if not find_sampler(parse_sampler(strategy)[0]).learns_from_others:
        raise SamplerError(f"{strategy} learns nothing from other problems: name one that does, such as guided-cold")
    played = _Searches(path, strategy, seed, trials, default)
    found, known = [], list[OtherTrials]()
    for at in np.random.default_rng(seed).permutation(len(played.names)):
        name = played.names[at]
        tried, stopped, told = played.sampled(name, {"others": partial(tuple, known.copy())})
        found.append(played.outcome(name, tried, stopped, TOGETHER))
        known += [told] if told is not None else []
    return found


def search_behind(path: Path, strategy: str, count: int, seed: int, trials: int, default: bool = True) -> list[Search]:
    """A search of every problem of a table, by a sampler that knows so many earlier studies of others.

    Raises
    ------
    SamplerError
        If the strategy learns nothing from earlier studies.
    """
    if not find_sampler(parse_sampler(strategy)[0]).recalls:
        raise SamplerError(f"{strategy} learns nothing from earlier studies: name one that does, such as guided-cold")
    played = _Searches(path, strategy, seed, trials, default)
    alone = {name: played.sampled(name, {})[2] for name in played.names}
    found = []
    for at, name in enumerate(played.names):
        others = np.random.default_rng([seed, at]).permutation([other for other in played.names if other != name])
        earlier = [told for other in others[:count] if (told := alone[str(other)]) is not None]
        tried, stopped, _ = played.sampled(name, {"earlier": partial(tuple, earlier)})
        found.append(played.outcome(name, tried, stopped, f"{BEHIND}{count}"))
    return found


class _Searches:
    """Searches of problems of a table by one strategy; Optuna does not tell of each trial.

    Parameters
    ----------
    path
        The table.
    strategy, seed, trials
        How they search, the seed of all, and the trials of each.
    default
        Whether the table's default is tried first.
    """

    def __init__(self, path: Path, strategy: str, seed: int, trials: int, default: bool) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.table = _read(path)
        self.engine = ReplayEngine(self.table, template_of(self.table))
        self.names = [str(problem) for problem in self.table.problems]
        self._strategy, self._seed, self._trials, self._default = strategy, seed, trials, default

    def entropy(self, name: str) -> int:
        """The seed of a search, another one for each problem of each table."""
        key = crc32(f"{self.table.card.sha256} {name}".encode())
        return int(np.random.SeedSequence([self._seed, key]).generate_state(1)[0])

    def first(self, name: str) -> list[int]:
        """The configuration to try first: the table's default, if it is asked for and legal."""
        held = self.engine.recording(self.table.problem(name))
        return [held.space.index(held.default)] if self._default and held.default in held.space else []

    def sampled(self, name: str, settings: Mapping[str, Any]) -> tuple[list[int], int | None, OtherTrials | None]:
        """The configurations that a sampler tries, when it would have stopped, and what others learn from it."""
        problem = self.table.problem(name)
        space = self.engine.recording(problem).space
        sampler = make_sampler(self._strategy, space, self.entropy(name), **settings)
        about = optuna.create_study(sampler=sampler, direction="minimize")
        for index in self.first(name):
            enqueue(about, space, index)
        tried: list[int] = []
        stops: list[int] = []
        with Evaluator(self.engine, problem) as evaluator:

            def note(index: int) -> None:
                tried.append(index)
                if not stops and sampler.done(about) is not None:
                    stops.append(len(tried))

            budget = Budget(self._trials, whole=True)
            loop.run(about, evaluator, budget, evaluator.library_us(), lambda trial: note(trial.index))
        return tried, stops[0] if stops else None, OtherTrials.of_study(about, space)

    def outcome(self, name: str, tried: Sequence[int], stopped: int | None, knowing: str = "") -> Search:
        """How good a search was that tried these configurations, `knowing` others' trials."""
        truth = Truth.of(self.engine.recording(self.table.problem(name)))
        regret = np.minimum.accumulate(truth.times_us[tried]) / truth.best_us - 1
        within = np.flatnonzero(regret <= TOLERANCE)
        return Search(
            family=self.table.card.space,
            table=self.table.path.stem,
            problem=name,
            strategy=self._strategy + knowing,
            seed=self._seed,
            regret=tuple(float(regret[min(count, len(regret)) - 1]) for count in AFTER if count <= self._trials),
            within=int(within[0]) + 1 if len(within) else None,
            stopped=stopped,
            left=None if stopped is None else float(regret[stopped - 1]),
        )


@lru_cache(maxsize=4)
def _read(path: Path) -> Table:
    return Table.read(path)


def check_left_out(table: Table, model: Path | None = None) -> str:
    """The name of the model that `guided` uses on a table of a kernel that it was not trained on; empty without one.

    Raises
    ------
    ModelError
        If the model is of the kernel, as one that is shipped is, or has seen a problem of the table.
    """
    space, device = table.card.space, table.card.device
    if model is None and shipped_model(space, device) is not None:
        raise ModelError(f"{table.path}: a model of {space} on {device} is shipped, so that the kernel is not left out")
    relative = model or relative_model(space, device)
    if relative is None:
        return ""
    card = load_model(relative)[1]
    if card.space == space:
        raise ModelError(f"{relative} is a model of {space} itself, so that the kernel is not left out")
    known = set(card.problems) & set(map(str, table.problems))
    if known:
        raise ModelError(f"{table.path}: the model {relative.name} was trained on {min(known)}, so that it is known")
    return relative.name


def learned(table: Table, others: Sequence[Table], path: Path, options: BlendOptions | None = None) -> Path:
    """Train a model of other kernels' tables for the searches of a table, and write it to a file.

    Raises
    ------
    ModelError
        If one of them is of the kernel that is searched, or of another device, or nothing is left to learn from.
    """
    known = set(map(str, table.problems))
    samples = []
    for other in others:
        if other.card.space == table.card.space or other.card.device != table.card.device:
            held = f"{other.card.space} on {other.card.device}"
            raise ModelError(f"{other.path} is of {held}: name tables of other kernels on {table.card.device}")
        template = template_of(other)
        samples += [problem_sample(other, template, one) for one in other.problems if str(one) not in known]
    if not samples:
        raise ModelError(f"all problems of the other tables are in {table.path}: nothing is left to learn from")
    card = ModelCard(
        space="+".join(dict.fromkeys(other.card.space for other in others)),
        device=table.card.device,
        problems=tuple(dict.fromkeys(sample.problem for sample in samples)),
        tables=tuple(TrainingTable(one.path.name, one.card.sha256, str(one.card.objective)) for one in others),
        rows=sum(map(len, samples)),
    )
    save_model(path, BlendModel(options).fit(samples), card)
    return path


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    tables: tuple[Path, ...]
    strategies: tuple[str, ...]
    seeds: int
    trials: int
    processes: int | None
    model: Path | None
    learn: tuple[Path, ...]
    default: bool
    together: bool
    behind: tuple[int, ...]

    def model_for(self, table: Table, folder: Path) -> Path | None:
        """The model that is named, or one that learns from the tables that are; None if neither is."""
        if not self.learn:
            return self.model
        return learned(table, [Table.read(path) for path in self.learn], folder / f"others-of-{table.path.stem}.npz")


@study(TABLES, again=True)
@click.argument("tables", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--strategy", "strategies", multiple=True, default=SAMPLERS, metavar="NAME", help="A contender; repeatable."
)
@click.option("--seeds", default=5, show_default=True, help="Searches of a problem by each.")
@click.option("--trials", default=AFTER[-1], show_default=True, help="Trials of a search.")
@processes_option
@click.option(
    "--model", type=click.Path(path_type=Path), help="A model of another kernel, in place of the shipped one."
)
@click.option(
    "--learn",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A table of another kernel to learn from; repeatable.",
)
@click.option("--default/--no-default", default=True, show_default=True, help="Whether the first trial is the default.")
@click.option("--together", is_flag=True, help="Each search knows the trials of the problems before it.")
@click.option(
    "--behind", multiple=True, type=click.IntRange(min=1), help="Each knows so many earlier studies; repeatable."
)
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Search the tables by each strategy, and print how soon each was good."""
    console = Console(width=200)
    held = run.record.result if run.record is not None else {"models": {}, "searches": []}
    earlier = [Search(**{**one, "regret": tuple(one["regret"])}) for one in held["searches"]]
    if run.record is not None and not asked.tables:
        print_all(console, held["models"], earlier)
        return
    if not asked.tables:
        raise click.UsageError("name the tables of some families, or a file with --again")
    read = {path.absolute(): Table.read(path) for path in asked.tables}
    with TemporaryDirectory(prefix="tilescout-") as folder:
        given = {path: asked.model_for(table, Path(folder)) for path, table in read.items()}
        models = held["models"] | {table.card.space: check_left_out(table, given[path]) for path, table in read.items()}
        processes = asked.processes or available_cores()
        whole = list(product(read, asked.strategies, range(asked.seeds)))
        if asked.together or asked.behind:
            suites = [(*one, asked.trials, asked.default) for one in whole] if asked.together else []
            later = [
                (path, strategy, count, seed, asked.trials, asked.default)
                for path, strategy, seed in whole
                for count in asked.behind
            ]
            found = [one for searches in each(search_together, suites, processes, "search") for one in searches]
            found += [one for searches in each(search_behind, later, processes, "search") for one in searches]
        else:
            jobs = [
                (path, str(problem), strategy, seed, asked.trials, given[path], asked.default)
                for path, table in read.items()
                for problem in table.problems
                for strategy in asked.strategies
                for seed in range(asked.seeds)
            ]
            found = list(each(search, jobs, processes, "search"))
    anew = {(one.table, one.strategy) for one in found}
    found += [one for one in earlier if (one.table, one.strategy) not in anew]
    order = list(dict.fromkeys(one.strategy for one in [*earlier, *found]))
    found.sort(key=lambda one: (one.family, one.table, one.problem, order.index(one.strategy), one.seed))
    figures = {
        family: {strategy: one.plain() for strategy, one in held.items()} for family, held in figures_of(found).items()
    }
    run.keep({"models": models, "figures": figures, "searches": [asdict(one) for one in found]})
    print_all(console, models, found)
