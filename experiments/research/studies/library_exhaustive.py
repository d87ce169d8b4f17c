"""Is the best of all of cuBLASLt's algorithms found by a short search?

    python -m tilescout.experiments.research library-exhaustive --out exhaustive.json --times times/

On each problem every configuration that the library says is legal is run: one launch, then two that are timed together,
all on the same operands. That is a screening: it tells within some per cent. The fastest of it and the heuristic's
candidates are then verified and timed by the protocol, and the fastest of these race. Searches of the same space with
few trials follow, each from nothing, and their answers race the best of all in interleaved rounds.

Configurations are run in random order until --each seconds are over, so that what is left out is a random part; how
many were run is told. The times of the screening are written to --times, a file a problem. Problems of --screen are
screened alone, before the others, for --briefly seconds each: a model learns from them.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.research.kernels import LIVE_CHAINS
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.library_best import measured
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.races import Racetrack
from tilescout.search.measure.protocol import VERSION
from tilescout.search.measure.race import RaceOptions, run_race
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.tuning.loop import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.cublaslt.abi import Found, LibraryError
from tilescout.spaces.cublaslt.algorithms import KNOBS, Row
from tilescout.spaces.cublaslt.loader import CublasLt
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.loaders import Listing, load_loader
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import load_workload

if TYPE_CHECKING:
    import torch

SPACE = "cublaslt"
PROBLEMS = (  # of the suite `spread`, those whose product takes some ten µs
    *("350x7360x832:bf16", "128x6144x4160:bf16", "171x1856x17024:bf16", "524x768x3904:bf16"),
    *("87x17280x768:bf16", "42x2112x2304:bf16", "1005x2368x5632:bf16", "760x64x512:bf16"),
)
BATCH = 256  # configurations that are queued before the device is waited for
FINALISTS, RACERS = 48, 6


class Screen:
    """Times of configurations of one problem, taken in this process.

    Parameters
    ----------
    loader
        The library.
    problem
        The problem.
    seed
        Of the operands.
    """

    def __init__(self, loader: CublasLt, problem: GemmProblem, seed: int) -> None:
        import torch

        gemm = load_workload(find_template(SPACE).workload)
        on_gpu = torch.cuda.is_available()
        self._device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        generator = torch.Generator(self._device).manual_seed(seed)
        self._inputs, self._output = gemm.inputs(problem, generator), gemm.output(problem, self._device)
        self._problem, self._operation = problem, loader.operation(problem)

    def run(self, rows: Sequence[Row]) -> tuple[list[float], list[float]]:
        """The time of a launch of each, in µs (NaN where it is refused), and its waves of blocks by the library."""
        operation, marks, waves = self._operation, list[tuple[Mark, Mark] | None](), list[float]()
        for row in rows:
            knobs = dict(zip(KNOBS, row, strict=True))
            found = Found()
            try:
                algorithm = operation.configured(knobs["algorithm"], knobs)
                check, asked = operation.question(algorithm, found)
                if status := check(*asked):
                    raise LibraryError("cublasLtMatmulAlgoCheck", status)
                arguments = (algorithm, int(found.workspace), self._problem, self._inputs, self._output)
                operation.run(*arguments)
                begin = mark(self._device)
                operation.run(*arguments)
                operation.run(*arguments)
                marks.append((begin, mark(self._device)))
            except LibraryError:
                marks.append(None)
            waves.append(float(found.waves))
        return [np.nan if each is None else between_us(*each) / 2 for each in marks], waves


Mark = Any  # a CUDA event, or a time in seconds on the host


def mark(device: "torch.device") -> Mark:
    """A point in the work of a device, which may be ahead."""
    import torch

    if device.type == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def between_us(begin: Mark, end: Mark) -> float:
    """The time between two points, in µs, once the device has come to the second."""
    if isinstance(begin, float):
        return float(end - begin) * 1e6
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def screened(
    loader: CublasLt, problem: GemmProblem, listed: Listing, seconds: float, seed: int
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]:
    """Rows in random order, the heuristic's first, their times in µs and their waves, as many as fit into the time."""
    started, screen = time.monotonic(), Screen(loader, problem, seed)
    rows = np.array(listed.rows, dtype=np.int32)
    guesses = np.flatnonzero(rows[:, 0] > 0)
    others = np.random.default_rng(seed).permutation(np.flatnonzero(rows[:, 0] == 0))
    rows = rows[np.concatenate([guesses, others])]
    times: list[float] = []
    waves: list[float] = []
    while len(times) < len(rows) and time.monotonic() - started < seconds:
        us, told = screen.run([tuple(row) for row in rows[len(times) : len(times) + BATCH].tolist()])
        times, waves = times + us, waves + told
    return rows[: len(times)], np.array(times, dtype=np.float32), np.array(waves, dtype=np.float32)


def keep_times(
    folder: Path, problem: GemmProblem, rows: NDArray[np.int32], us: NDArray[np.float32], waves: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Write what was screened of a problem to a file of its own, and return the times."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{str(problem).replace(':', '-')}.npz"
    np.savez_compressed(file, rows=rows.astype(np.int16), us=us, waves=waves)
    return us


def found_by(
    engine: LocalEngine, problem: GemmProblem, samplers: Sequence[str], trials: int, seed: int, store: Path
) -> dict[str, dict[str, Any]]:
    """The answers of searches, by sampler."""
    answers = {}
    for sampler in samplers:
        started = time.monotonic()
        name, _, text = sampler.partition(":")
        options = dict(each.split("=", 1) for each in text.split(",")) if text else {}
        asked = TuneOptions(
            name, seed, Budget(trials), studies(store), settings={"options": options} if options else {}
        )
        with Evaluator(engine, problem) as evaluator:
            result = run_study(evaluator, asked)
        best = result.best
        if best is None:
            continue
        answers[sampler] = {
            "configuration": list(best.configuration.values()),
            "trials": len(result.trials),
            "gpu_seconds": result.gpu_seconds,
            "seconds": time.monotonic() - started,
            "found at": next(trial.number for trial in result.trials if trial.configuration == best.configuration),
        }
    return answers


def compared(
    engine: LocalEngine, problem: GemmProblem, rows: NDArray[np.int32], times: NDArray[np.float32],
    answers: Mapping[str, Mapping[str, Any]], seed: int,
) -> dict[str, Any]:  # fmt: skip
    """The best of what was screened, by the protocol and a race, and the answers of searches in the same rounds."""
    fastest = np.argsort(np.where(np.isnan(times), np.inf, times), kind="stable")[:FINALISTS]
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
            }
            for who, at in theirs.items()
        },
        "raced": {str(list(tried[at].values())): asdict(ratio.inverse()) for at, ratio in race.ratios.items()},
    }


@study("a Hopper or Blackwell GPU", out_required=True)
@click.option("--problem", "problems", multiple=True, default=PROBLEMS, show_default=True, help="Repeatable.")
@click.option(
    "--sampler",
    "samplers",
    multiple=True,
    default=("guided-cold", "random"),
    show_default=True,
    help="A strategy to search with; repeatable.",
)
@click.option("--trials", type=click.IntRange(min=1), default=40, show_default=True, help="Of each search.")
@click.option("--each", type=float, default=12.0, show_default=True, help="Seconds of screening a problem.")
@click.option("--seconds", type=float, default=150.0, show_default=True, help="Begin no further problem after that.")
@click.option("--screen", metavar="SUITE", help="A suite whose problems are screened alone.")
@click.option("--briefly", type=float, default=1.0, show_default=True, help="Seconds of screening each of these.")
@click.option("--times", type=click.Path(path_type=Path), help="Folder for the times of the screening.")
@click.option("--device", default="cuda", show_default=True, metavar="cuda[:N]", help="The GPU.")
@seed_option
@store_option
def main(
    run: Run, problems: tuple[str, ...], samplers: tuple[str, ...], trials: int, each: float, seconds: float,
    screen: str | None, briefly: float, times: Path | None, device: str, seed: int, store: Path,
) -> None:  # fmt: skip
    """Run all of the library's algorithms on each problem, and search among them with few trials."""
    console, started = Console(width=160), time.monotonic()
    template = find_template(SPACE)
    loader = load_loader(template.loader)
    assert isinstance(loader, CublasLt)
    found: dict[str, dict[str, Any]] = {}
    report: dict[str, Any] = {"protocol": VERSION, "version": loader.library.version, "problems": found}
    if screen is not None:
        if times is None:
            raise click.UsageError("--screen needs --times, a folder for what it finds")
        for problem in find_suite(screen).parsed(GemmProblem.parse):
            try:
                listed = loader.listing(str(problem), None)
                us = keep_times(times, problem, *screened(loader, problem, listed, briefly, seed))
            except (TilescoutError, RuntimeError) as error:  # torch raises the latter where memory is short
                console.print(f"{problem}: {one_line(error)}", highlight=False, soft_wrap=True)
                continue
            line = f"{len(us)} of {len(listed.rows)} in {briefly:g} s, listed in {listed.seconds:.2f} s"
            console.print(f"{time.monotonic() - started:4.0f} s {problem}: {line}", highlight=False, soft_wrap=True)
    with LocalEngine(template, artifacts(store), [device], options=LIVE_CHAINS) as engine:
        report |= {"device": engine.product, "versions": dict(engine.versions), "knobs": KNOBS}
        for text in problems:
            if time.monotonic() - started > seconds:
                console.print(f"{seconds:g} s are over: not begun with {text}", highlight=False)
                continue
            problem = GemmProblem.parse(text)
            try:
                listed = loader.listing(text, None)
                rows, us, waves = screened(loader, problem, listed, each, seed)
                if times is not None:
                    keep_times(times, problem, rows, us, waves)
                answers = found_by(engine, problem, samplers, trials, seed, store)
                one = compared(engine, problem, rows, us, answers, seed)
            except TilescoutError as error:
                one = {"error": one_line(error)}
            else:
                one |= {"legal": len(listed.rows), "complete": listed.complete, "screened": len(us)}
                one |= {"asking_seconds": listed.seconds, "asked": listed.asked, "refused": int(np.isnan(us).sum())}
            found[text] = one
            run.keep(report)
            told = {name: value for name, value in one.items() if name not in ("raced", "answers")}
            told |= {
                who: f"{a['slower by']:.2%} slower, trial {a['found at']}" for who, a in one.get("answers", {}).items()
            }
            console.print(f"{time.monotonic() - started:4.0f} s {text}: {told}", highlight=False, soft_wrap=True)
    report["seconds"] = time.monotonic() - started
    run.keep(report)
