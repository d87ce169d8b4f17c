r"""Do the ranks of a program, each with a GPU of its own, choose the same kernels?

    python -m tilescout.experiments.research ranks --device cuda:0 --device cuda:1 \
        --problem 768x18432x6144:bf16 --tuner tune.guided --tuner quack.autotuner --seconds 110 --out ranks.json

A program on several GPUs tunes on each. Where its ranks run different kernels the slowest sets the pace, and sums are
rounded differently. Every rank measures all of a problem's part of `gemm_sm90` (--within, else the part of the study
`field`), and searches it by every tuner, with the same seeds, at the same time as the other and without a word to it.
Then the answers of all ranks race on each GPU, with the default and the fastest of its survey.

Two answers are the same if they are the same configuration. They are apart if they are more than 1 % apart by the races
of all GPUs together. Regret is that of the rank which is furthest behind the best of the race on its own GPU, for the
others wait for it. The surveys tell how well the GPUs agree on the order of the configurations.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Self

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import Finite, collected, store_option
from tilescout.experiments.compare.answers import APART
from tilescout.experiments.research.clock import Clock
from tilescout.experiments.research.field.playing import Play, Player
from tilescout.experiments.research.field.referee import Referee
from tilescout.experiments.research.field.standings import Raced, agreement
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, study
from tilescout.experiments.research.studies.field import (
    RESERVED,
    SPACE,
    TOP,
    TUNERS,
    bucket_space,
    kernels_of,
    parts,
    raced,
    searched,
    searched_in,
    versions,
)
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.protocol import VERSION
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    problems: tuple[str, ...]
    tuners: tuple[str, ...]
    devices: tuple[str, ...]
    space: str
    within: Path | None
    trials: int
    searches: int
    seconds: float
    processes: int
    store: Path

    def plays(self, problem: str) -> list[Play]:
        """The searches of a problem by each rank."""
        return [Play(tuner, problem, number, self.trials) for number in range(self.searches) for tuner in self.tuners]


@dataclass(frozen=True)
class Agreement:
    """How well the ranks of a tuner agree.

    Attributes
    ----------
    searches
        Searches that all ranks ended with an answer.
    same, apart
        Shares of these of which all ranks chose one configuration, and of which two chose such that are more than 1 %
        apart.
    regret, worst
        By how much the rank that is furthest behind is slower than the best of the race on its GPU: mean and largest.
    """

    searches: int
    same: float
    apart: float
    regret: float
    worst: float

    @classmethod
    def of(cls, told: Sequence[tuple[bool, bool, float]]) -> Self:
        """From what `_compared` tells of each search."""
        same, apart, regrets = zip(*told, strict=True)
        return cls(len(told), float(np.mean(same)), float(np.mean(apart)), float(np.mean(regrets)), max(regrets))


def standings(problems: Mapping[str, Mapping[str, Any]]) -> dict[str, Agreement]:
    """How well the ranks of every tuner agree, over all problems; those that agree most come first."""
    found: dict[str, list[tuple[bool, bool, float]]] = {}
    for record in problems.values():
        races = [Raced.of({**rank, "default": record["default"]}) for rank in record["ranks"]]
        runs = [{(run["tuner"], run["number"]): run["answer"] for run in rank["runs"]} for rank in record["ranks"]]
        for tuner, number in runs[0]:
            answers = [answer for each in runs if (answer := each.get((tuner, number))) is not None]
            if len(answers) == len(runs):
                found.setdefault(tuner, []).append(_compared(answers, races))
    of = {tuner: Agreement.of(told) for tuner, told in found.items()}
    return dict(sorted(of.items(), key=lambda item: (-item[1].same, item[1].regret)))


def _compared(answers: Sequence[int], races: Sequence[Raced]) -> tuple[bool, bool, float]:
    """Whether the answers of the ranks to one search are the same, whether they are apart, and the largest regret."""
    both = [race for race in races if set(answers) <= race.logs.keys()]  # one that fails on a GPU did not run there
    apart = not both or any(
        abs(np.mean([race.behind(one, other) for race in both])) > APART for one, other in combinations(answers, 2)
    )
    behind = [race.behind(answer, race.best) for answer, race in zip(answers, races, strict=True)]
    return len(set(answers)) == 1, apart, max(behind)


def compete(
    part: SearchSpace,
    plays: Sequence[Play],
    referees: Sequence[Referee],
    players: Sequence[Sequence[Player]],
    clock: Clock,
) -> dict[str, Any]:
    """One problem: surveys and searches of all ranks side by side, then the races of all answers on each GPU.

    Indices in the record are those of the part; a survey leaves out what fails on its GPU.
    """
    template = find_template(part.name)
    default, ranks = template.default_in(part), range(len(referees))
    wide = bucket_space(template, str(part.problem), plays, part.device)
    with ThreadPoolExecutor(len(referees)) as pool:
        fields = list(pool.map(lambda rank: referees[rank].survey(part, default), ranks))
        at = [part.find(field.space.codes) for field in fields]
        runs = list(
            pool.map(lambda rank: searched(fields[rank], wide, plays, players[rank], referees[rank], clock), ranks)
        )
        ended = [
            (run, places) for own, places in zip(runs, at, strict=True) for run in own if run["answer"] is not None
        ]
        for run, places in ended:
            run["answer"] = int(places[run["answer"]])
        told = [run["answer"] for run, _ in ended]
        racing = [np.flatnonzero(np.isin(own, told)).tolist() for own in at]
        races = list(pool.map(lambda rank: raced(fields[rank], racing[rank], referees[rank]), ranks))
    found = []
    for field, places, own, race in zip(fields, at, runs, races, strict=True):
        ratios = np.full(len(part), np.nan)
        ratios[places] = field.ratios
        record = {key: {str(places[int(index)]): one for index, one in of.items()} for key, of in race.items()}
        known = [None if np.isnan(ratio) else round(float(ratio), 6) for ratio in ratios]
        found.append({"library_us": field.library_us, "ratios": known, "runs": own, **record})
    return {"size": len(part), "default": part.index(default), "ranks": found}


def print_all(console: Console, result: Mapping[str, Any]) -> None:
    """Print how well the ranks of each tuner agree, and how well their GPUs do."""
    problems = result["problems"]
    grid = Grid(title=f"{len(problems)} problems, {result['trials']} trials a search", title_justify="left")
    for heading in ("tuner", "searches", "same kernel", "more than 1 % apart", "regret of the slowest rank", "worst"):
        grid.add_column(heading, no_wrap=True)
    for tuner, one in standings(problems).items():
        shares = (f"{value:.1%}" for value in (one.same, one.apart))
        grid.add_row(tuner, str(one.searches), *shares, f"{one.regret:.2%}", f"{one.worst:.2%}")
    console.print(grid)
    for name, record in problems.items():
        first, second = (np.array(rank["ratios"], dtype=np.float64) for rank in record["ranks"][:2])
        console.print(f"{name} by the first two GPUs: {agreement(first, second, TOP)}", highlight=False)
    errors = {
        run["error"]: run["tuner"]
        for record in problems.values() for rank in record["ranks"] for run in rank["runs"] if run["error"]
    }  # fmt: skip
    for error, tuner in errors.items():
        console.print(f"{tuner} failed: {error}", highlight=False, markup=False)
    console.print(f"versions: {result['versions']}", highlight=False)


@study(GPU_OR_RECORD, again=True)
@click.option("--problem", "problems", multiple=True, metavar="NAME", help="A problem; repeatable, played in order.")
@click.option("--tuner", "tuners", multiple=True, default=TUNERS, metavar="NAME", help="A tuner; repeatable.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    default=("cuda:0", "cuda:1"),
    metavar="cuda:N|cpu",
    help="A rank's GPU; repeatable.",
)
@click.option("--space", default=SPACE, show_default=True, help="The kernel.")
@click.option("--within", type=click.Path(path_type=Path), help="The sub-space, a TOML file; else that of `field`.")
@click.option("--trials", type=click.IntRange(min=1), default=40, show_default=True, help="Trials of a search.")
@click.option(
    "--searches", type=click.IntRange(min=1), default=1, show_default=True, help="Of a problem by each tuner."
)
@click.option("--seconds", type=Finite(min=0), default=600.0, show_default=True, help="End after that.")
@click.option(
    "--processes", type=click.IntRange(min=1), default=7, show_default=True, help="Searches of a rank at a time."
)
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Have the ranks tune side by side, and print how well they agree."""
    console = Console(width=200)
    if run.record is not None:
        print_all(console, run.record.result)
        return
    if not asked.problems or run.out is None or len(asked.devices) < 2:
        raise click.UsageError("name --problem, --out and two times --device, or a file with --again")
    template, within = searched_in(asked.space, asked.within, asked.tuners)
    clock = Clock(asked.seconds)
    result: dict[str, Any] = {
        "protocol": VERSION, "space": asked.space, "within": str(within), "trials": asked.trials,
        "versions": versions(), "problems": {},
    }  # fmt: skip
    with ExitStack() as stack:
        engine = stack.enter_context(LocalEngine(template, artifacts(asked.store), asked.devices))
        wanted = parts(template, asked.problems, within, engine.device)
        kernels = kernels_of(engine, wanted.values())
        referees = [Referee(engine, kernels, gpu) for gpu in range(len(asked.devices))]
        players = [[Player(template, engine.device, asked.tuners) for _ in range(asked.processes)] for _ in referees]
        for player in (each for own in players for each in own):
            stack.callback(player.close)
        result["objective"] = str(engine.objective)
        for name, part in wanted.items():
            if clock.left < 2 * RESERVED:
                break
            result["problems"][name] = compete(part, asked.plays(name), referees, players, clock)
            run.keep(result)
            console.print(f"{name}: {len(part)} configurations, {clock.left:.0f} s left", highlight=False)
    print_all(console, result)
