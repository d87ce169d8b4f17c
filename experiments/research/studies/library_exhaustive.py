"""Is the best of all of cuBLASLt's algorithms found by a short search?

    python -m tilescout.experiments.research library-exhaustive --out exhaustive.json --times times/

On each problem as many of the configurations that the library says are legal are screened as --each seconds allow (see
`tilescout.experiments.research.screening`); how many is told. That tells within some per cent. The fastest of the
screening and the heuristic's candidates are then verified and timed by the protocol, and the fastest of these race.
Searches of the same space with few trials follow, each from nothing, and their answers race the best of all in
interleaved rounds. The times of the screening are written to --times, a file a problem.

The winner of that race is a little lucky in it. So it meets each answer once more, in rounds that it was not chosen by,
until the ratio is known to within 0.3 % (see `tilescout.experiments.research.duels`). That tells an answer within 1 %
of the best from a miss, or says that it can't.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import Finite, collected, seed_option, store_option
from tilescout.experiments.research.backend_rows import known_before
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.duels import Verdict, duel, verdict
from tilescout.experiments.research.kernels import LIVE_CHAINS
from tilescout.experiments.research.runner import Run, device_option, study
from tilescout.experiments.research.screening import Screen, Screened, screened
from tilescout.experiments.research.studies.library_best import measured
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.races import Racetrack
from tilescout.search.measure.machine import make_machine
from tilescout.search.measure.protocol import VERSION
from tilescout.search.measure.race import RaceOptions, run_race
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.cublaslt.algorithms import KNOBS
from tilescout.spaces.cublaslt.loader import CublasLt
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.loaders import load_loader
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import load_workload

SPACE = "cublaslt"
PROBLEMS = (  # of the suite `spread`, those whose product takes some ten µs
    *("350x7360x832:bf16", "128x6144x4160:bf16", "171x1856x17024:bf16", "524x768x3904:bf16"),
    *("87x17280x768:bf16", "42x2112x2304:bf16", "1005x2368x5632:bf16", "760x64x512:bf16"),
)
FINALISTS, RACERS = 48, 6
MARGIN = 0.01
"""An answer that is slower than the best by no more counts as found."""


def found_by(
    engine: LocalEngine, problem: GemmProblem, samplers: Sequence[str], trials: int, seed: int, store: Path,
    model: Path | None,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """The answers of searches, by sampler."""
    answers = {}
    for sampler in samplers:
        clock = Clock()
        name, _, text = sampler.partition(":")
        options = dict(each.split("=", 1) for each in text.split(",")) if text else {}
        settings: dict[str, Any] = {"options": options} if options else {}
        if model is not None and name == "guided":
            settings["model"] = model
        asked = TuneOptions(name, seed, Budget(trials), studies(store), settings=settings)
        with Evaluator(engine, problem) as evaluator:
            result = run_study(evaluator, asked)
        best = result.best
        if best is None:
            continue
        answers[sampler] = {
            "configuration": list(best.configuration.values()),
            "trials": len(result.trials),
            "gpu_seconds": result.gpu_seconds,
            "seconds": clock.spent,
            "found at": next(trial.number for trial in result.trials if trial.configuration == best.configuration),
        }
    return answers


def compared(
    engine: LocalEngine, found: Screened, answers: Mapping[str, Mapping[str, Any]], seed: int
) -> dict[str, Any]:
    """The best of what was screened, by the protocol and a race, and how far the answers of searches are behind it."""
    problem, rows = found.problem, found.rows
    fastest = np.argsort(found.us, kind="stable")[:FINALISTS]
    chosen = list(dict.fromkeys([*np.flatnonzero(rows[:, 0] > 0).tolist(), *fastest.tolist()]))
    tried = [Configuration(tuple(zip(KNOBS, rows[at].tolist(), strict=True))) for at in chosen]
    library_us = engine.prepare(0, problem).result()
    outcomes = measured(engine, problem, tried, library_us, prune=True)
    ratios = {at: each.timing.ratio for at, each in enumerate(outcomes) if each.timing is not None}
    runners = sorted(ratios, key=lambda at: ratios[at])[:RACERS]
    theirs = {}
    for who, answer in answers.items():
        configuration = Configuration(tuple(zip(KNOBS, answer["configuration"], strict=True)))
        if configuration not in tried:
            tried.append(configuration)
        theirs[who] = tried.index(configuration)
    track = Racetrack(engine, 0, problem, library_us, tried)
    running = list(dict.fromkeys([*runners, *theirs.values(), *([0] if 0 in ratios else [])]))
    race = run_race(running, running[0], track.measure, RaceOptions(candidates=len(running), looks=4), seed)
    best = race.ratios[race.winner]
    listed = [race.ratios[at] for at in race.ratios if tried[at]["guess"]]
    duels: dict[int, dict[str, Any]] = {race.winner: {"verdict": Verdict.WITHIN, "is it": True}}
    for at in theirs.values():
        if at not in duels:
            slower, heats = duel(track.measure, race.winner, at, seed)
            duels[at] = {"verdict": verdict(slower, MARGIN), "slower": asdict(slower), "heats": heats}
    return {
        "library_us": library_us,
        "verified": len(tried),
        "wrong": sum(each.failed for each in outcomes),
        "best": list(tried[race.winner].values()),
        "best of all": asdict(best.inverse()),
        "best of list, if it raced": max((1 / each.value for each in listed), default=None),
        "answers": {
            who: {
                **answers[who],
                "speed": asdict(race.ratios[at].inverse()),
                "slower by": race.ratios[at].value / best.value - 1,
                "duel": duels[at],
            }
            for who, at in theirs.items()
        },
        "raced": {str(list(tried[at].values())): asdict(ratio.inverse()) for at, ratio in race.ratios.items()},
    }


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    problems: tuple[str, ...]
    before: tuple[Path, ...]
    samplers: tuple[str, ...]
    trials: int
    each: float
    seconds: float
    model: Path | None
    times: Path | None
    device: str
    seed: int
    store: Path

    def left(self, known: Container[str]) -> list[str]:
        """The problems that no earlier file has."""
        return [text for text in self.problems or (() if self.before else PROBLEMS) if text not in known]


@study("a Hopper or Blackwell GPU", out_required=True)
@click.option("--problem", "problems", multiple=True, help=f"Repeatable.  [default: {' '.join(PROBLEMS)}]")
@click.option(
    "--before",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Keep the problems of this earlier file, and run the others; repeatable.",
)
@click.option(
    "--sampler",
    "samplers",
    multiple=True,
    default=("guided-cold", "random"),
    show_default=True,
    help="A strategy to search with; repeatable.",
)
@click.option("--trials", type=click.IntRange(min=1), default=40, show_default=True, help="Of each search.")
@click.option("--each", type=Finite(min=0), default=12.0, show_default=True, help="Seconds of screening a problem.")
@seconds_option(150.0)
@click.option("--model", type=click.Path(path_type=Path, exists=True), help="Of `guided`; the shipped one otherwise.")
@click.option("--times", type=click.Path(path_type=Path), help="Folder for the times of the screening.")
@device_option
@seed_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Run all of the library's algorithms on each problem, and search among them with few trials."""
    console, clock = Console(width=160), Clock()

    def say(line: str) -> None:
        console.print(f"{clock.spent:4.0f} s {line}", highlight=False, soft_wrap=True, markup=False)

    runs, results = known_before(asked.before)
    report: dict[str, Any] = {"protocol": VERSION, "knobs": KNOBS, "runs": runs, "problems": results}
    run.keep(report)
    if left := asked.left(results):
        assert run.record is not None
        runs.append({"about": run.record.about})
        for text, one in _run_all(left, asked, runs[-1], say):
            results[text] = one | {"run": len(runs) - 1}
            run.keep(report)
            say(f"{text}: {one['error'] if 'error' in one else _summary(one)}")
    report["verdicts"] = verdicts(results)
    run.keep(report)
    print_answers(console, results)
    for who, counted in report["verdicts"].items():
        console.print(f"{who}, within {MARGIN:.0%} of the best: {counted}", highlight=False)


def _run_all(
    problems: Sequence[str], asked: Asked, about: dict[str, Any], say: Callable[[str], None]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is found on each problem that there is time for; device, versions and seconds of the run are noted."""
    clock, template = Clock(asked.seconds), find_template(SPACE)
    loader = load_loader(template.loader)
    assert isinstance(loader, CublasLt)
    machine, workload = make_machine(asked.device), load_workload(template.workload)
    with LocalEngine(template, artifacts(asked.store), [asked.device], options=LIVE_CHAINS) as engine:
        about |= {"device": engine.product, "versions": dict(engine.versions)}
        for text in problems:
            if clock.left < 0:
                say(f"{text}: not begun, {asked.seconds:g} s are over")
                continue
            problem = GemmProblem.parse(text)
            try:
                listed = engine.listing(0, template, problem, None).result()
                screen = Screen(machine, workload, loader, problem, asked.seed)
                found = screened(screen, problem, np.array(listed.rows, dtype=np.int32), asked.each, asked.seed)
                if asked.times is not None:
                    found.write(asked.times)
                del screen  # its operands
                machine.release()
                answers = found_by(engine, problem, asked.samplers, asked.trials, asked.seed, asked.store, asked.model)
                one = compared(engine, found, answers, asked.seed)
            except TilescoutError as error:
                one = {"error": one_line(error)}
            else:
                one |= {"legal": len(listed.rows), "complete": listed.complete, "screened": len(found.us)}
                one |= {
                    "asking_seconds": listed.seconds,
                    "asked": listed.asked,
                    "refused": int(np.isnan(found.us).sum()),
                }
            about["seconds"] = clock.spent
            yield text, one


def verdicts(results: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """How many answers of each search have which verdict."""
    found: dict[str, dict[str, int]] = {}
    for one in results.values():
        for who, answer in one.get("answers", {}).items():
            if "duel" in answer:  # not in the first files
                counts = found.setdefault(who, dict.fromkeys(map(str, Verdict), 0))
                counts[str(answer["duel"]["verdict"])] += 1
    return found


def print_answers(console: Console, results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print what was screened on each problem, its best, and how far each answer is behind."""
    names = list(dict.fromkeys(who for one in results.values() for who in one.get("answers", {})))
    grid = Grid(title="speeds over torch.mm, and how much slower each answer is than the best")
    for heading in ("problem", "screened, of legal", "best of all", *names):
        grid.add_column(heading)
    for text, one in results.items():
        if "error" not in one:
            best, answers = one["best of all"], [one["answers"].get(who) for who in names]
            cells = (f"{one['screened']} of {one['legal']}", f"{best['value']:.3f} ({one['library_us']:.1f} µs)")
            grid.add_row(text, *cells, *("-" if each is None else _told(each) for each in answers))
    console.print(grid)


def _summary(one: Mapping[str, Any]) -> str:
    """The findings on a problem in a line."""
    answers = ", ".join(f"{who} {_told(answer)}" for who, answer in one["answers"].items())
    return f"{one['screened']} of {one['legal']} screened, {one['verified']} verified; {answers}"


def _told(answer: Mapping[str, Any]) -> str:
    """The outcome of an answer's duel."""
    found = answer["duel"]
    if "slower" not in found:
        return f"is it, found at trial {answer['found at']}"
    slower = found["slower"]
    value, low, high = (slower[name] - 1 for name in ("value", "low", "high"))
    return f"{value:.2%} slower ({low:.2%} to {high:.2%}): {found['verdict']}, found at trial {answer['found at']}"
