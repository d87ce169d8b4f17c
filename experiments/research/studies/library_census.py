"""The algorithms of cuBLASLt by its own account: which it has, what each can be told, which settings are legal.

    python -m tilescout.experiments.research library-census --problem 1000x1000x1000:bf16 --out census.json

Of every problem is asked:

- which algorithms there are for its types, whether each can be made, and what each says that it can be told;
- how many candidates the heuristic returns when it is asked for more, of all algorithms and of each alone;
- whether a candidate that is made anew, from its number and its settings alone, is legal too, and has the same bytes;
- which values of one setting are legal for the first candidates when all else stays as it is;
- how many settings are legal: of all combinations of tile, cluster and option of the algorithms that the heuristic
  names, of a random part of all others', and of splits of some that are legal.

A part of what is legal is then measured as in a search, and the fastest race the heuristic's candidates.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from tilescout.experiments.commands.options import Finite, seed_option, store_option
from tilescout.experiments.research.clock import Clock
from tilescout.experiments.research.kernels import LIVE_CHAINS
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.library_best import described, measured, raced
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.protocol import VERSION
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.cublaslt.abi import Algorithm, Cap, Config, LibraryError
from tilescout.spaces.cublaslt.algorithms import CLUSTERS, INNER_SHAPES, KNOBS, REDUCTIONS, VALUES, Row, guessed
from tilescout.spaces.cublaslt.loader import CublasLt
from tilescout.spaces.cublaslt.operation import CONFIGURED, WORKSPACE, Operation
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.loaders import load_loader
from tilescout.spaces.templates import find_template

SPACE = "cublaslt"
PROBLEMS = (
    *("257x2056x7176:bf16", "1000x1000x1000:bf16", "16x4096x4096:bf16", "4096x4096x4096:bf16"),  # recorded ones
    *("350x7360x832:bf16", "171x1856x17024:bf16"),  # of the suite `spread`
    "1024x2048x4096:e4m3-bf16",
)
ASKED_FOR = (8, 32, 64, 200, 1000)
ALIGNMENTS = (Cap.ALIGNMENT_A, Cap.ALIGNMENT_B, Cap.ALIGNMENT_C, Cap.ALIGNMENT_D)
Settings = Mapping[str, int]


def capabilities(operation: Operation, identifier: int) -> dict[str, Any]:
    """The capabilities of an algorithm, or why it can't be made."""
    library = operation.library
    try:
        algorithm = library.algorithm(operation.product.types, identifier)
        told: dict[str, Any] = {
            "splits": library.capability(algorithm, Cap.SPLIT_K),
            "reductions": library.capability(algorithm, Cap.REDUCTIONS),
            "swizzles": library.capability(algorithm, Cap.SWIZZLE),
            "options": library.capability(algorithm, Cap.CUSTOM_OPTION),
            "tiles": library.capabilities(algorithm, Cap.TILES),
            "stages": library.capabilities(algorithm, Cap.STAGES),
            "alignments": [library.capability(algorithm, each) for each in ALIGNMENTS],
        }
    except LibraryError as error:
        return {"error": str(error)}
    return told | {"status as made": operation.judged(algorithm)[0]}


def returned(operation: Operation, most: int, identifier: int | None = None) -> dict[str, Any]:
    """How many candidates the heuristic returns, of which algorithms, and how long it takes."""
    started = time.perf_counter()
    try:
        found = operation.guesses(most, identifier)
    except LibraryError as error:
        return {"error": str(error)}
    numbers = Counter(operation.library.configured(each, Config.ID) for each in found)
    return {"candidates": len(found), "of": dict(numbers), "seconds": time.perf_counter() - started}


def settings_of(operation: Operation, algorithm: Algorithm) -> dict[str, int]:
    """The settings of an algorithm, by the names of knobs."""
    told = {"algorithm": operation.library.configured(algorithm, Config.ID)}
    return told | {name: operation.library.configured(algorithm, each) for name, each in CONFIGURED.items()}


def rebuilt(operation: Operation, original: Algorithm) -> dict[str, Any]:
    """A candidate made anew from its number and its settings, beside the candidate."""
    settings = settings_of(operation, original)
    found: dict[str, Any] = {"settings": settings, "status and workspace of original": operation.judged(original)}
    try:
        again = operation.configured(settings["algorithm"], settings)
    except LibraryError as error:
        return found | {"error": str(error)}
    words = enumerate(zip(original.data, again.data, strict=True))
    differing = {at: [hex(was), hex(now)] for at, (was, now) in words if was != now}
    return found | {"status and workspace": operation.judged(again), "differing": differing}


class Judge:
    """Says of settings what the library says of them, and counts it.

    Parameters
    ----------
    operation
        What the algorithms are to compute.

    Attributes
    ----------
    statuses
        How often the library gave each answer; "unset" where it did not take a setting, "memory" where a legal one
        needs more than may be had.
    """

    def __init__(self, operation: Operation) -> None:
        self.operation, self.statuses = operation, Counter[str]()

    def legal(self, settings: Settings) -> bool:
        """Whether settings are legal."""
        try:
            algorithm = self.operation.configured(settings["algorithm"], settings)
        except LibraryError:
            self.statuses["unset"] += 1
            return False
        status, workspace = self.operation.judged(algorithm)
        memory = status == 0 and workspace > WORKSPACE
        self.statuses["memory" if memory else str(status)] += 1
        return status == 0 and not memory


def alone(operation: Operation, settings: Settings, values: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
    """The values of each setting that are legal while all others stay as they are."""
    judge = Judge(operation)
    return {name: [value for value in some if judge.legal({**settings, name: value})] for name, some in values.items()}


def values_of(told: Mapping[str, Any]) -> dict[str, list[int]]:
    """The values of each setting that an algorithm may have by its capabilities."""
    return {
        "tile": told["tiles"],
        "stages": sorted({0, *told["stages"]}),
        "split_k": [*range(1, 65)] if told["splits"] else [1],
        "reduction": [0, *REDUCTIONS],
        "swizzle": [*range(told["swizzles"] + 1)],
        "inner_shape": [0, *INNER_SHAPES],
        "cluster": [*CLUSTERS],
        "custom_option": [*range(min(told["options"], VALUES["custom_option"][-1]) + 1)],
    }


def some_of(
    values: Mapping[str, Sequence[int]], identifier: int, most: int, generator: np.random.Generator
) -> list[dict[str, int]]:
    """Random combinations of an algorithm's settings without a split, all different; all there are if those are few."""
    crossed = {**values, "split_k": [1], "reduction": [0], "inner_shape": [0]}
    sizes = [len(some) for some in crossed.values()]
    total = int(np.prod(sizes, dtype=object))
    chosen = generator.choice(total, most, replace=False) if total > most else np.arange(total)
    places = zip(*np.unravel_index(chosen, sizes), strict=True)
    named = [dict(zip(crossed, map(int, place), strict=True)) for place in places]
    return [{"algorithm": identifier} | {name: crossed[name][at] for name, at in one.items()} for one in named]


def asked(operation: Operation, most: int, generator: np.random.Generator) -> tuple[dict[str, Any], list[Row]]:
    """All that is asked of a problem, and the rows that are legal: the heuristic's first."""
    library = operation.library
    identifiers = library.identifiers(operation.product.types, len(VALUES["algorithm"]))
    told = {each: capabilities(operation, each) for each in identifiers}
    report: dict[str, Any] = {"algorithms": told, "returned": {n: returned(operation, n) for n in ASKED_FOR}}
    report["returned alone"] = {each: returned(operation, 200, each) for each in told if "error" not in told[each]}
    guesses = operation.guesses(ASKED_FOR[-1])
    report["rebuilt"] = [rebuilt(operation, each) for each in guesses[:64]]
    first = [settings_of(operation, each) for each in guesses]
    stages = {each: sorted({one["stages"] for one in first if one["algorithm"] == each}) for each in told}
    report["alone"] = [{"of": one} | alone(operation, one, values_of(told[one["algorithm"]])) for one in first[:6]]

    rows = guessed(operation, min(len(guesses), VALUES["guess"][-1]))
    report["censuses"] = {}
    for identifier, capable in told.items():
        if "error" in capable:
            continue
        started, judge, values = time.perf_counter(), Judge(operation), values_of(capable)
        named = bool(stages[identifier])
        if named:
            values |= {"stages": stages[identifier], "swizzle": [0]}
        tried = some_of(values, identifier, 40 * most if named else most, generator)
        legal = [one for one in tried if judge.legal(one)]
        counts = {
            name: dict(Counter(one[name] for one in legal)) for name in ("tile", "stages", "cluster", "custom_option")
        }
        report["censuses"][identifier] = {
            "asked": len(tried),
            "of": int(np.prod([len(values[name]) for name in values if name != "split_k"], dtype=object)),
            "statuses": dict(judge.statuses),
            "legal": len(legal),
            "legal by": counts,
            "seconds": time.perf_counter() - started,
        }
        if not legal:
            continue
        picked = [legal[at] for at in generator.permutation(len(legal))[: 200 if named else 20]]
        splits = Judge(operation)
        pairs = [(parts, scheme) for parts in (2, 3, 4, 6, 7, 9, 12, 16, 32, 64) for scheme in REDUCTIONS]
        changed = [{**one, "split_k": parts, "reduction": scheme} for one in picked for parts, scheme in pairs]
        split = [one for one in changed if capable["splits"] and splits.legal(one)]
        report["censuses"][identifier]["splits"] = {
            "asked": len(changed),
            "statuses": dict(splits.statuses),
            "legal by": {name: dict(Counter(one[name] for one in split)) for name in ("split_k", "reduction")},
        }
        chosen = [*picked, *(split[at] for at in generator.permutation(len(split))[: len(picked)])]
        rows += [(0, *(one[name] for name in KNOBS[1:])) for one in chosen]
    return report, rows


def timed(engine: LocalEngine, problem: GemmProblem, rows: Sequence[Row], most: int, seed: int) -> dict[str, Any]:
    """Measure rows as a search does, as many as `most`, the heuristic's first, and race the fastest."""
    ranked = [row for row in rows if row[0]]
    known = {row[1:] for row in ranked}
    others = [row for row in dict.fromkeys(rows) if row[1:] not in known]
    order = np.random.default_rng(seed).permutation(len(others))
    chosen = [*ranked, *(others[at] for at in order)][:most]
    tried = [Configuration(tuple(zip(KNOBS, row, strict=True))) for row in chosen]
    library_us = engine.prepare(0, problem).result()
    started = time.monotonic()
    outcomes = measured(engine, problem, tried, library_us, prune=True)
    seconds = time.monotonic() - started
    speeds = raced(engine, problem, tried, outcomes, library_us, 6, seed)
    return {
        "tried": len(tried),
        "statuses": dict(Counter(str(each.status) for each in outcomes)),
        "errors": dict(Counter(each.error for each in outcomes if each.failed).most_common(8)),
        "seconds": seconds,
        "best": max(speed["value"] for speed in speeds.values()),
        "rows": described(tried, outcomes, speeds),
    }


@study("a Hopper or Blackwell GPU", out_required=True)
@click.option("--problem", "problems", multiple=True, default=PROBLEMS, show_default=True, help="Repeatable.")
@click.option("--most", type=click.IntRange(min=1), default=1500, show_default=True, help="Questions of an algorithm.")
@click.option("--trials", type=click.IntRange(min=1), default=300, show_default=True, help="Measured on each problem.")
@click.option(
    "--seconds", type=Finite(min=0), default=45.0, show_default=True, help="Measure on no further problem after that."
)
@click.option("--device", default="cuda", show_default=True, metavar="cuda[:N]", help="The GPU.")
@seed_option
@store_option
def main(
    run: Run, problems: tuple[str, ...], most: int, trials: int, seconds: float, device: str, seed: int, store: Path
) -> None:
    """Ask cuBLASLt what its algorithms can be told and what is legal, and measure a part of it."""
    console, clock = Console(width=160), Clock(seconds)
    template = find_template(SPACE)
    loader = load_loader(template.loader)
    assert isinstance(loader, CublasLt)
    found: dict[str, dict[str, Any]] = {}
    report: dict[str, Any] = {"protocol": VERSION, "version": loader.library.version, "problems": found}
    report |= {"knobs": KNOBS, "workspace": WORKSPACE}
    rows: dict[str, list[Row]] = {}
    for text in problems:
        operation = loader.operation(GemmProblem.parse(text))
        try:
            found[text], rows[text] = asked(operation, most, np.random.default_rng(seed))
        except TilescoutError as error:
            found[text] = {"error": one_line(error)}
        run.keep(report)
        print_asked(console, text, found[text], clock.spent)
    with LocalEngine(template, artifacts(store), [device], options=LIVE_CHAINS) as engine:
        for text, legal in rows.items():
            if clock.left < 0:
                console.print(f"{seconds:g} s are over: not measured on {text}", highlight=False)
                continue
            try:
                one = timed(engine, GemmProblem.parse(text), legal, trials, seed)
            except TilescoutError as error:
                one = {"error": one_line(error)}
            found[text]["timed"] = one
            run.keep(report)
            told = {key: value for key, value in one.items() if key != "rows"}
            console.print(f"{clock.spent:4.0f} s {text}: {told}", highlight=False, soft_wrap=True)


def print_asked(console: Console, text: str, one: Mapping[str, Any], seconds: float) -> None:
    """Print what was asked of a problem in some lines."""

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    say(f"{seconds:4.0f} s {text}" + (f": {one['error']}" if "error" in one else ""))
    if "error" in one:
        return
    say(f"  returned: {one['returned']}")
    say(f"  returned alone: { {each: got for each, got in one['returned alone'].items() if 'error' not in got} }")
    again = one["rebuilt"]
    before = sum(each["status and workspace of original"][0] == 0 for each in again)
    say(
        f"  rebuilt: {len(again)}, legal as they were {before}, made anew "
        f"{sum(each.get('status and workspace', (1,))[0] == 0 for each in again)}, of the same bytes "
        f"{sum(each.get('differing') == {} for each in again)}; first: {again[0]}"
    )
    for each in one["alone"][:3]:
        say(f"  alone: {each}")
    for identifier, capable in one["algorithms"].items():
        counts = {key: len(value) if isinstance(value, list) else value for key, value in capable.items()}
        census = one["censuses"].get(identifier, {})
        brief = {key: value for key, value in census.items() if key != "legal by" or len(str(value)) < 400}
        say(f"  algorithm {identifier}: {counts} {brief}")
