"""Measure the protocol itself: its cost, how well it repeats, and whether it ever prunes the best.

    tilescout compile gemm_sm90 --problem 4096x4096x4096 --sample 500        # ahead, on any machine
    python -m tilescout.experiments.research measurement --out study.json

Runs on configurations of ``gemm_sm90``, in three parts:

- **pruning**: the same random configurations measured three times: as a search does it (the best so far is the
  incumbent), without pruning, and by 20 launches each. It compares GPU seconds, and tells what became of the best.
  Loading a kernel is paid once a process whoever measures, so it is timed beforehand and kept apart. Some
  configurations that were given up after few pairs then race, which tells how far off those pairs were.
- **spread**: good configurations measured again in rounds of random order, by the protocol and by usual ones, on a card
  that was heated for two seconds. The protocol is also run with pauses, as a search has them where it waits for
  compilers.
- **tunings** (``--tunings N``): N whole searches from different seeds, each ended by its race. The winners and the
  default are measured once more, against each other. GPU seconds are compared with 20 launches of each trial.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from rich.progress import track

from tilescout.experiments.commands.options import collected, seed_option, store_option
from tilescout.experiments.research.figures import draw_spread, spread_of
from tilescout.experiments.research.kernels import (
    BLOCK_US,
    CHAINS,
    HEATING_US,
    LIVE_CHAINS,
    PAUSE_SECONDS,
    compile_all,
    finalists,
    heat,
    load_all,
)
from tilescout.experiments.research.runner import GPU, Run, device_option, study
from tilescout.search.build.loading import Launch
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.jobs import make_job
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import VERSION, ProtocolOptions, block_launches
from tilescout.search.measure.race import Race
from tilescout.search.measure.worker import Job, Worker
from tilescout.search.studies.folders import artifacts
from tilescout.search.studies.records import StudyResult
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.devices import find_device
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template

PROBLEMS = ("1024x1024x1024", "2048x2048x2048", "4096x4096x4096", "8192x8192x8192", "16x4096x4096", "64x8192x8192")
TEMPLATE = find_template("gemm_sm90")
FIXED_LAUNCHES = 20
RACED = 20
FINAL = (20, 5)  # rounds, and pairs in each, that tell the answers of the tunings apart
PAUSED = f"{VERSION} with pauses"


@dataclass(frozen=True)
class Usual:
    """A protocol without a reference: `launches` in a CUDA graph, after `heating_us` of heating, some of them kept.

    Attributes
    ----------
    launches
        Replays of a graph of one launch.
    keep
        The last of them that count.
    heating_us
        The library runs that long first.
    """

    launches: int
    keep: int
    heating_us: float = 0.0

    def time_us(self, bench: Bench, launch: Launch) -> float:
        """The median time of the replays that count."""
        launches = block_launches(bench.library_us, BLOCK_US, CHAINS)
        if self.heating_us:
            heat(bench, self.heating_us)
        kernel = bench.make_block(launch, launches)
        times = bench.machine.times_us([kernel] * (self.launches + 1))
        return median(times[-self.keep :]) / launches


USUAL = {
    "median of 5": Usual(5, 5),
    "median of 5 after 50 ms of heating": Usual(5, 5, heating_us=50_000),
    "8 back to back, the last 4": Usual(8, 4),
}


def loading_seconds(worker: Worker, bench: Bench, jobs: Sequence[Job]) -> float:
    """Seconds that kernels' first launches cost over their second ones: the driver loads a kernel at its first one."""

    def verify_all() -> float:
        started = time.perf_counter()
        for job in jobs:
            bench.verify(worker.load(job), edge=False)
        return time.perf_counter() - started

    return verify_all() - verify_all()


def few_pairs_over_race(worker: Worker, jobs: Sequence[Job], timed: Sequence[Measurement]) -> float | None:
    """Median ratio of what few pairs told of configurations that were given up to what a race of them tells."""
    bench = worker.bench(jobs[0].workload, jobs[0].problem, CHAINS, None)
    few = [
        (job, outcome.timing.ratio)
        for job, outcome in zip(jobs, timed, strict=True)
        if outcome.timing is not None and outcome.timing.pairs <= CHAINS.enough
    ][:RACED]
    if not few:
        return None
    launches = [worker.load(job) for job, _ in few]
    raced = np.exp(np.log(bench.race(launches, rounds=5, pairs=4, seed=0)).mean(axis=0))
    return float(np.median(np.array([ratio for _, ratio in few]) / raced))


def fixed_seconds(bench: Bench, launches: Sequence[Launch]) -> float:
    """Seconds it takes to verify kernels that have run before and to time each by a fixed number of launches."""
    started = time.perf_counter()
    for launch in track(launches, f"{bench.problem} fixed"):
        bench.verify(launch, edge=False)
        Usual(FIXED_LAUNCHES, FIXED_LAUNCHES).time_us(bench, launch)
    return time.perf_counter() - started


def study_pruning(worker: Worker, jobs: Sequence[Job]) -> dict[str, Any]:
    """Measure the same configurations as a search does, without pruning, and by a fixed number of launches."""
    bench = worker.bench(jobs[0].workload, jobs[0].problem, CHAINS, None)
    loading = loading_seconds(worker, bench, jobs)

    def search(options: ProtocolOptions, name: str) -> list[Measurement]:
        incumbent: float | None = None
        outcomes = []
        for job in track(jobs, f"{jobs[0].problem} {name}"):
            outcomes.append(worker.measure(replace(job, options=options, incumbent=incumbent)))
            if (timing := outcomes[-1].timing) is not None:
                incumbent = min(incumbent or math.inf, timing.ratio)
        return outcomes

    pruned = search(CHAINS, "pruned")
    fixed = fixed_seconds(bench, [worker.load(job) for job in jobs])
    everything = replace(CHAINS, prune=math.inf, prune_at_once=math.inf)
    bench = worker.bench(jobs[0].workload, jobs[0].problem, everything, bench.library_us)
    timed = search(everything, "timed")
    ratios = np.array([m.timing.ratio if m.timing is not None else math.inf for m in timed])
    pilots = np.array([m.pilot_us / bench.library_us if m.pilot_us is not None else math.nan for m in timed])
    good = ratios <= 1.1 * ratios.min()
    best = int(ratios.argmin())
    ends = [outcome.status for outcome in pruned]
    spent = {
        name: sum(getattr(outcome, f"{name}_seconds") for outcome in pruned)
        for name in ("gpu", "verify", "pilot", "timing")
    }
    return {
        "configurations": len(jobs),
        "failed": sum(m.failed for m in timed),
        "pruned": ends.count(Status.PRUNED),
        "best_ratio": float(ratios.min()),
        "best_was_pruned": ends[best] is Status.PRUNED,
        "few_pairs_over_race": few_pairs_over_race(worker, jobs, timed),
        "best_of_the_pruned_search": min(m.timing.ratio for m in pruned if m.timing is not None),
        "largest_pilot_over_ratio_of_the_best_tenth": float((pilots[good] / ratios[good]).max()),
        "gpu_seconds": {
            "as searched": spent.pop("gpu"),
            "all timed": sum(m.gpu_seconds for m in timed),
            "fixed": fixed,
            "loading, in none of these": loading,
        },
        "as_searched": spent,
        "trials": [
            {"ratio": None if math.isinf(ratio) else ratio, "pilot": None if math.isnan(pilot) else pilot, "end": end}
            for ratio, pilot, end in zip(ratios.tolist(), pilots.tolist(), ends, strict=True)
        ],
    }


def study_spread(worker: Worker, jobs: Sequence[Job], rounds: int, seed: int, usual: bool) -> dict[str, Any]:
    """Re-measure good configurations in rounds of random order, by the protocol and, if asked, the usual ones."""
    bench = worker.bench(jobs[0].workload, jobs[0].problem, CHAINS, None)
    launches = [worker.load(job) for job in jobs]
    heat(bench, HEATING_US)
    protocols: dict[str, Callable[[Launch], float]] = {
        **{name: partial(one.time_us, bench) for name, one in USUAL.items() if usual},
        **dict.fromkeys((VERSION, PAUSED), lambda launch: bench.time(launch, None).ratio),
    }
    generator = np.random.default_rng(seed)
    results: dict[str, dict[str, Any]] = {}
    for name, protocol in protocols.items():
        times, throttled, spent = np.empty((rounds, len(jobs))), 0, 0.0
        for row in track(range(rounds), f"{jobs[0].problem} {name}"):
            for at in generator.permutation(len(jobs)):
                if name == PAUSED:
                    time.sleep(generator.uniform(0, PAUSE_SECONDS))
                started = time.perf_counter()
                times[row, at] = protocol(launches[at])
                spent += time.perf_counter() - started
                throttled += (clocks := bench.machine.clocks()) is not None and clocks.throttle != ""
        results[name] = {
            **spread_of(times),
            "milliseconds_each": 1e3 * spent / times.size,
            "throttled": throttled / times.size,
            "rounds": times.tolist(),
        }
        if name not in USUAL:
            learnt = bench.reference
            results[name] |= {"within": learnt.within, "between": learnt.between(CHAINS.few_pairs)}
    return results


def fixed_seconds_of(worker: Worker, problem: Problem, store: Path, results: Sequence[StudyResult]) -> list[float]:
    """GPU seconds that each search's trials would have taken by a fixed number of launches each, without a race."""
    bench = worker.bench(TEMPLATE.workload, str(problem), CHAINS, None)
    arch = find_device(worker.machine.name).arch
    tried = [[trial.configuration for trial in one.trials if not trial.measurement.failed] for one in results]
    built = compile_all(TEMPLATE, problem, arch, list(dict.fromkeys(chain.from_iterable(tried))), store)
    loaded = load_all(worker, bench, TEMPLATE, built)
    launches = {configuration: launch for (configuration, _), launch in zip(built, loaded, strict=True)}
    for launch in launches.values():
        bench.verify(launch, edge=False)  # at which the driver loads it
    return [fixed_seconds(bench, [launches[configuration] for configuration in trials]) for trials in tried]


def study_tunings(worker: Worker, problem: Problem, store: Path, count: int, asked: TuneOptions) -> dict[str, Any]:
    """Run whole searches from different seeds; their cost, and how far their answers are from the best of them."""
    on_gpu = partial(LocalEngine, TEMPLATE, store, [str(worker.machine.device)], options=LIVE_CHAINS)
    results: list[StudyResult] = []
    races: list[Race] = []
    with TemporaryDirectory() as studies:
        for seed in range(count):
            with (
                on_gpu() as engine,
                Evaluator(engine, problem) as evaluator,
            ):
                result = run_study(evaluator, replace(asked, seed=seed, studies=Path(studies)))
            assert result.race is not None
            results.append(result)
            races.append(result.race)
        answers = [race.answer for race in races]
        with (
            on_gpu() as engine,
            Evaluator(engine, problem) as evaluator,
        ):
            default = evaluator.space.index(TEMPLATE.default(problem, evaluator.device))
            runners = list(dict.fromkeys([*answers, default]))
            logs = np.log(evaluator.race(runners, *FINAL, count))
            means = dict(zip(runners, np.exp(logs.mean(axis=0)).tolist(), strict=True))
    best = min(means[answer] for answer in answers)
    behind = [means[answer] / best - 1 for answer in answers]
    searches: list[dict[str, Any]] = [
        {
            "gpu_seconds": result.gpu_seconds,
            "account": {name: spent for name, spent in result.account.items() if name != "compile"},
            "fixed": fixed,
            "trials": len(result.trials),
            "verdict": race.verdict(),
        }
        for result, race, fixed in zip(results, races, fixed_seconds_of(worker, problem, store, results), strict=True)
    ]
    return {
        "sampler": asked.sampler,
        "model": results[0].info.guide,
        "searches": searches,
        "behind_the_best_winner": behind,
        "within_1_percent": sum(value <= 0.01 for value in behind),
        "time_over_default": [means[answer] / means[default] for answer in answers],
        "gpu_seconds_each": float(np.mean([search["gpu_seconds"] for search in searches])),
        "account_each": {
            name: float(np.mean([search["account"][name] for search in searches])) for name in searches[0]["account"]
        },
        "fixed_each": float(np.mean([search["fixed"] for search in searches])),
    }


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    problems: tuple[str, ...]
    sample: int
    table: Path | None
    good: int
    rounds: int
    usual: bool
    tunings: int
    sampler: str
    model: Path | None
    trials: int
    seed: int
    store: Path
    device: str


def study_problem(problem: Problem, asked: Asked) -> dict[str, Any]:
    """Measure pruning and spread on a problem, and whole searches if asked; the figures, which are printed too."""
    worker = Worker(asked.device)  # which has verified nothing yet
    device, kernels = find_device(worker.machine.name), artifacts(asked.store)
    space = TEMPLATE.space(problem, device)
    drawn = space.sample(asked.sample, np.random.default_rng(asked.seed)).tolist()
    sample = [TEMPLATE.default(problem, device), *(space[index] for index in drawn)]
    best = finalists(Table.read(asked.table), problem, asked.good)[: asked.good] if asked.table else []
    built = compile_all(TEMPLATE, problem, device.arch, list(dict.fromkeys([*sample, *best])), kernels)
    library_us = worker.bench(TEMPLATE.workload, str(problem), CHAINS, None).library_us
    jobs = {
        configuration: make_job(TEMPLATE, configuration, artifact, problem, library_us, CHAINS)
        for configuration, artifact in built
    }
    drawn_jobs = [jobs[configuration] for configuration in dict.fromkeys(sample) if configuration in jobs]
    pruning = study_pruning(worker, drawn_jobs)
    if asked.table:
        good = [jobs[configuration] for configuration in best if configuration in jobs]
    else:
        ratios = [trial["ratio"] or math.inf for trial in pruning["trials"]]
        good = [drawn_jobs[at] for at in np.argsort(ratios)[: asked.good]]
    for job in good:
        worker.measure(job)  # loads those that did not run yet
    spread = study_spread(worker, good, asked.rounds, asked.seed, asked.usual)
    figures: dict[str, Any] = {"library_us": library_us, "pruning": pruning, "spread": spread}
    _print(str(problem), pruning, spread)
    if asked.tunings:
        settings = {} if asked.model is None else {"model": asked.model}
        options = TuneOptions(asked.sampler, asked.seed, Budget(asked.trials), asked.store, settings=settings)
        figures["tunings"] = study_tunings(worker, problem, kernels, asked.tunings, options)
        _print_tunings(figures["tunings"], pruning)
    return figures


@study(GPU, out_required=True, draw=draw_spread)
@click.option("--problem", "problems", multiple=True, default=PROBLEMS, show_default=True, help="Repeatable.")
@click.option("--sample", default=500, show_default=True, help="Random configurations.")
@click.option(
    "--table", type=click.Path(path_type=Path), help="Measure the best of this table again, not those of the sample."
)
@click.option("--good", default=20, show_default=True, help="Configurations that are measured again.")
@click.option("--rounds", default=10, show_default=True, help="How often they are measured again.")
@click.option("--usual/--no-usual", default=True, show_default=True, help="Measure by the usual protocols too.")
@click.option("--tunings", default=0, show_default=True, help="Whole searches a problem.")
@click.option("--sampler", default="tpe", show_default=True, help="Strategy of each of them.")
@click.option("--model", type=click.Path(path_type=Path), help="Cost model of guided. [default: the shipped one]")
@click.option("--trials", default=64, show_default=True, help="Most trials of each of them.")
@seed_option
@store_option
@device_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Study the protocol on every problem."""
    result: dict[str, Any] = {"device": Worker(asked.device).machine.name, "protocol": VERSION, "problems": {}}
    for problem in map(TEMPLATE.parse, asked.problems):
        result["problems"][str(problem)] = study_problem(problem, asked)
        run.keep(result)


def _print(problem: str, pruning: dict[str, Any], spread: dict[str, Any]) -> None:
    seconds = pruning["gpu_seconds"]
    print(
        f"{problem}: {pruning['configurations']} configurations, {pruning['pruned']} pruned, best pruned: "
        f"{pruning['best_was_pruned']}; pilot/ratio of the best tenth <= "
        f"{pruning['largest_pilot_over_ratio_of_the_best_tenth']:.2f}; GPU s: as searched {seconds['as searched']:.2f} "
        f"({', '.join(f'{name} {spent:.2f}' for name, spent in pruning['as_searched'].items())}), "
        f"all timed {seconds['all timed']:.2f}, fixed {seconds['fixed']:.2f}: "
        f"{seconds['fixed'] / seconds['as searched']:.1f} times as much; loading all, in none of these: "
        f"{seconds['loading, in none of these']:.2f}"
    )
    if (over := pruning["few_pairs_over_race"]) is not None:
        print(f"  what was given up after few pairs read {over:.4f} of what it does in a race")
    for name, figures in spread.items():
        print(
            f"  {name:36s} spread {figures['spread']:.2%}, winner within 1 %: {figures['winner_within']:.0%}, "
            f"{figures['milliseconds_each']:.1f} ms, throttled {figures['throttled']:.0%}"
            + (f", the library counts {figures['within']:.2f}/{figures['between']:.2f}" if "within" in figures else "")
        )


def _print_tunings(tunings: dict[str, Any], pruning: dict[str, Any]) -> None:
    searches, each, random = tunings["searches"], tunings["gpu_seconds_each"], pruning["gpu_seconds"]["fixed"]
    print(
        f"  {len(searches)} tunings of {np.mean([search['trials'] for search in searches]):.0f} trials: "
        f"{tunings['within_1_percent']} within 1 % of the best winner, "
        f"slowest {max(tunings['time_over_default']):.4f} of the default's time, {each:.2f} GPU s each "
        f"({', '.join(f'{name} {spent:.2f}' for name, spent in tunings['account_each'].items())}); the same trials by "
        f"{FIXED_LAUNCHES} launches each, without a race: {tunings['fixed_each']:.2f}; the "
        f"{pruning['configurations']} random configurations so: {random:.2f}, {random / each:.1f} times as much"
    )
