"""How much faster the library's best algorithm is than its first guess.

    python -m tilescout.experiments.research library-best --out library-best.json

The first candidates of cuBLASLt's heuristic are timed on every problem of the suites, then raced against each other and
`torch.mm` in interleaved rounds. On the problems of --all every algorithm that the library says is legal is tried, at
most --most of them in random order after the heuristic's, with pruning as in a search, and the fastest race the
heuristic's best and its first guess.

"first guess", "best of list" and "best of all" are speeds over `torch.mm`, by the race. The best is the winner of a
race, so that its speed is a little lucky. Geometric means come with an interval over such problems: a bootstrap over
the problems. A problem or an algorithm that fails is a line of its own, and ends nothing.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.compare.inference import geometric_mean_interval
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.kernels import LIVE_CHAINS
from tilescout.experiments.research.runner import Run, study
from tilescout.search.build.artifacts import Artifact
from tilescout.search.engines.engine import Engine, Task
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.races import Racetrack
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.protocol import VERSION
from tilescout.search.measure.race import RaceOptions, run_race
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import find_template

SPACE = "cublaslt"
SUITES = ("ground-truth", "out-of-sample")  # 24 and 40 problems
ALL = ("4096x4096x4096:bf16", "257x2056x7176:bf16", "256x4096x14336:bf16", "16x4096x4096:bf16", "512x512x512:bf16")
SPEEDS = ("first guess", "best of list", "best of all")


def measured(
    engine: Engine, problem: GemmProblem, tried: Iterable[Configuration], library_us: float, prune: bool
) -> list[Measurement]:
    """The outcomes of configurations on a problem, in order."""
    best = np.inf
    outcomes = []
    for configuration in tried:
        built = engine.compile(configuration, problem.signature).result()
        assert isinstance(built, Artifact)
        task = Task(configuration, built, problem, library_us, best if prune else None)
        [outcome] = engine.measure(0, [task]).result()
        if outcome.timing is not None:
            best = min(best, outcome.timing.ratio)
        outcomes.append(outcome)
    return outcomes


def raced(
    engine: Engine,
    problem: GemmProblem,
    tried: Sequence[Configuration],
    outcomes: Sequence[Measurement],
    library_us: float,
    most: int,
    seed: int,
) -> dict[str, dict[str, float]]:
    """Speeds over the library, by a race, of the fastest of what was tried and of the first; by their numbers."""
    ratios = {at: each.timing.ratio for at, each in enumerate(outcomes) if each.timing is not None}
    runners = sorted(ratios, key=lambda at: ratios[at])[:most]
    track = Racetrack(engine, 0, problem, library_us, tried)
    first = 0 if 0 in ratios else runners[0]
    race = run_race(runners, first, track.measure, RaceOptions(candidates=most), seed)
    return {str(at): asdict(ratio.inverse()) for at, ratio in race.ratios.items()}


def described(
    tried: Sequence[Configuration], outcomes: Sequence[Measurement], speeds: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """The configurations that were tried, each with its outcome and its speed in the race, ready for JSON."""
    rows: list[dict[str, Any]] = []
    for at, (configuration, outcome) in enumerate(zip(tried, outcomes, strict=True)):
        row: dict[str, Any] = {"configuration": list(configuration.values()), "status": str(outcome.status)}
        if outcome.timing is not None:
            row["ratio"] = outcome.timing.ratio
        if outcome.failed:
            row["error"] = outcome.error
        if str(at) in speeds:
            row["speed"] = speeds[str(at)]
        rows.append(row)
    return rows


def guesses_of(engine: Engine, problem: GemmProblem, guesses: int, seed: int) -> dict[str, Any]:
    """The heuristic's candidates on a problem: timed, then raced."""
    template = engine.template
    listed = engine.listing(0, template, problem, guesses).result()
    names = [knob.name for knob in template.knobs]
    tried = [Configuration(tuple(zip(names, row, strict=True))) for row in listed.rows]
    library_us = engine.prepare(0, problem).result()
    started = time.monotonic()
    outcomes = measured(engine, problem, tried, library_us, prune=False)
    timing = time.monotonic() - started
    speeds = raced(engine, problem, tried, outcomes, library_us, len(tried), seed)
    found = {
        "library": listed.version,
        "listing_seconds": listed.seconds,
        "timing_seconds": timing,
        "library_us": library_us,
        "guesses": described(tried, outcomes, speeds),
        "best of list": max(speed["value"] for speed in speeds.values()),
    }
    return found | ({"first guess": speeds["0"]["value"]} if "0" in speeds else {})


def all_of(engine: Engine, problem: GemmProblem, most: int, candidates: int, seed: int) -> dict[str, Any]:
    """Every legal algorithm on a problem, or as many as `most`: pruned and timed as in a search, the fastest raced."""
    listed = engine.listing(0, engine.template, problem, None).result()
    space = engine.space(problem)
    ranks = space.columns["guess"]
    first = np.flatnonzero(ranks > 0)[np.argsort(ranks[ranks > 0])]
    others = np.random.default_rng(seed).permutation(np.flatnonzero(ranks == 0))
    chosen = [*first.tolist(), *others.tolist()][:most]
    tried = [space[index] for index in chosen]
    library_us = engine.prepare(0, problem).result()
    started = time.monotonic()
    outcomes = measured(engine, problem, tried, library_us, prune=True)
    speeds = raced(engine, problem, tried, outcomes, library_us, candidates, seed)
    identifiers, counts = np.unique(space.columns["algorithm"], return_counts=True)
    return {
        "legal": len(space),
        "guesses": len(first),
        "asked": listed.asked,
        "asked about all": listed.complete,
        "asking_seconds": listed.seconds,
        "legal of each algorithm": dict(zip(map(str, identifiers.tolist()), counts.tolist(), strict=True)),
        "tried": len(tried),
        "seconds": time.monotonic() - started,
        "best of all": max(speed["value"] for speed in speeds.values()),
        "rows": described(tried, outcomes, speeds),
    }


def print_speeds(console: Console, found: Mapping[str, Mapping[str, Any]], suites: Mapping[str, str], seed: int) -> Any:
    """Print the speeds of every problem, and print and return the geometric means of each suite."""
    grid = Grid(title="speed over torch.mm, by the race")
    for heading in ("problem", *SPEEDS, "best of list over first guess"):
        grid.add_column(heading)
    for text, one in found.items():
        cells = [f"{one[name]:.3f}" if name in one else "" for name in SPEEDS]
        gain = f"{one['best of list'] / one['first guess']:.3f}" if "first guess" in one else ""
        grid.add_row(text, *cells, one.get("error", gain))
    console.print(grid)
    means: dict[str, dict[str, list[float]]] = {}
    for suite in [*dict.fromkeys(suites.values()), "all"]:
        usable = [one for text, one in found.items() if suite in (suites[text], "all") and "first guess" in one]
        if not usable:
            continue
        values = {name: [float(one[name]) for one in usable] for name in SPEEDS[:2]}
        values["best of list over first guess"] = [one["best of list"] / one["first guess"] for one in usable]
        means[suite] = {}
        for name, each in values.items():
            mean, low, high = geometric_mean_interval(each, seed)
            means[suite][name] = [mean, low, high, min(each), max(each)]
            spoken = f"{mean:.4f} [{low:.4f}, {high:.4f}], {min(each):.3f} to {max(each):.3f}"
            console.print(f"{suite} ({len(usable)}): {name} {spoken}", highlight=False, soft_wrap=True)
    return means


@study("a Hopper or Blackwell GPU", out_required=True)
@click.option("--suite", "suites", multiple=True, default=SUITES, show_default=True, help="Repeatable.")
@click.option(
    "--signature",
    default="bf16",
    show_default=True,
    help="Types, layout and epilogue of all problems; if it is empty, each has its own.",
)
@click.option("--guesses", type=click.IntRange(1, 64), default=8, show_default=True, help="Candidates of the list.")
@click.option(
    "--all", "whole", multiple=True, default=ALL, show_default=True, help="Problems to try all on; repeatable."
)
@click.option(
    "--most", type=click.IntRange(min=0), default=1500, show_default=True, help="Algorithms to try on each; 0: none."
)
@seconds_option(200.0)
@click.option("--device", default="cuda", show_default=True, metavar="cuda[:N]", help="The GPU.")
@seed_option
@store_option
def main(
    run: Run,
    suites: tuple[str, ...],
    signature: str,
    guesses: int,
    whole: tuple[str, ...],
    most: int,
    seconds: float,
    device: str,
    seed: int,
    store: Path,
) -> None:
    """Time the library's own candidates on every problem, and all of its algorithms on some."""

    def signed(problem: GemmProblem) -> str:
        return str(problem.with_signature(signature) if signature else problem)

    named = {signed(problem): name for name in suites for problem in find_suite(name).parsed(GemmProblem.parse)}
    exhaustive = [signed(GemmProblem.parse(text)) for text in whole if most]
    console, clock = Console(width=160), Clock(seconds)
    found: dict[str, dict[str, Any]] = {}
    report: dict[str, Any] = {"protocol": VERSION, "signature": signature, "problems": found}
    with LocalEngine(find_template(SPACE), artifacts(store), [device], options=LIVE_CHAINS) as engine:
        report |= {"device": engine.product, "versions": dict(engine.versions)}
        report["knobs"] = [knob.name for knob in engine.template.knobs]
        for text, exhaust in [*((text, False) for text in named), *((text, True) for text in exhaustive)]:
            if clock.left < 0:
                console.print(f"{seconds:g} s are over: not begun with {text}", highlight=False)
                continue
            problem = GemmProblem.parse(text)
            try:
                one = all_of(engine, problem, most, 6, seed) if exhaust else guesses_of(engine, problem, guesses, seed)
            except TilescoutError as error:
                one = {"error": one_line(error)}
            found.setdefault(text, {}).update({"all": one} if exhaust else one)
            if "best of all" in one:
                found[text]["best of all"] = one["best of all"]
            run.keep(report)
            speeds = ", ".join(f"{name} {one[name]:.4f}" for name in SPEEDS if name in one)
            counts = ", ".join(f"{one[name]} {name}" for name in ("legal", "asked", "tried") if name in one)
            told = one.get("error") or "; ".join(filter(None, (speeds, counts)))
            console.print(f"{clock.spent:4.0f} s {text}: {told}", highlight=False, soft_wrap=True)
    report["means"] = print_speeds(console, found, {text: named.get(text, "") for text in found}, seed)
    report["seconds"] = clock.spent
    run.keep(report)
