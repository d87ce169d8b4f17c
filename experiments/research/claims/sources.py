"""Sources of figures: nested mappings that are made of recorded data.

A ledger names a source and its parameters, and no code: it can name these alone.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from tilescout.experiments.compare.inference import geometric_mean_interval
from tilescout.experiments.compare.processes import each
from tilescout.experiments.research.field.standings import standings
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies import objectives as chain_or_sandwich
from tilescout.experiments.research.studies.best_of_table import best_rows, summary
from tilescout.experiments.research.studies.dispatch_halves import HALVES, all_halves
from tilescout.experiments.research.studies.dispatch_left_out import all_figures, all_left_out
from tilescout.experiments.research.studies.field import agreements
from tilescout.experiments.research.studies.fixed_launches import repeats_of
from tilescout.experiments.research.studies.nvgemm_ranking import KEPT, ranking_losses
from tilescout.experiments.research.studies.out_of_sample import (
    TRIALS,
    checked_model,
    print_searches,
    print_speeds,
    search,
    speeds,
    training_of,
)
from tilescout.experiments.research.studies.race_coverage import RACES, coverages, read_heats
from tilescout.experiments.research.studies.race_designs import replay
from tilescout.experiments.research.studies.tunings_out_of_sample import print_figures as print_tunings
from tilescout.search.build.cores import available_cores
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.library_best import CANDIDATES
from tilescout.search.measure.measurement import Timing
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.race import RaceOptions
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.guided.options import GuidedOptions
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.devices import find_device
from tilescout.spaces.inputs import read_regular
from tilescout.spaces.subspace import read_subspace
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import find_template

Files = Mapping[str, Path]
Source = Callable[..., Any]
"""Takes the files that a claim names, by their names, and its parameters by theirs."""

SEED = 0
LARGEST_LOG = 10_000_000  # bytes


def record(files: Files) -> Any:
    """The content of a JSON file, or of several by their names."""
    found = {name: Record.read(path).result for name, path in files.items()}
    return next(iter(found.values())) if len(found) == 1 else found


def problems(files: Files) -> Any:
    """The figures of each problem in JSON files that hold some problems each."""
    return {name: one for path in files.values() for name, one in Record.read(path).result["problems"].items()}


def settings(files: Files) -> Any:
    """The numbers that the code goes by."""
    kinds = {"protocol": ProtocolOptions, "race": RaceOptions, "guided": GuidedOptions}
    lone = {"sampler": {"lookahead": SpaceSampler.lookahead}, "library": {"candidates": CANDIDATES}}
    return {**lone, **{name: asdict(kind()) for name, kind in kinds.items()}}


def table(files: Files) -> Any:
    """The rows of a recorded table, and the speeds over the library of each problem's best and today's default."""
    (path,) = files.values()
    recorded = Table.read(path)
    template, device = template_of(recorded), find_device(recorded.card.device)
    codes = recorded.codes(template.knobs)
    spills = np.asarray(recorded.data["spill_bytes"].fill_null(0))
    spilling = np.flatnonzero(spills > 0)
    by_problem = {}
    for one in recorded.summarise():
        default = recorded.row(template.default(one.problem, device), one.problem)
        assert default is not None
        assert one.best_timing is not None
        by_problem[str(one.problem)] = {
            "rows": one.rows,
            "pruned": one.pruned,
            "failed": one.failed,
            "legal": len(template.space(one.problem, device)),
            "library_us": one.library_us,
            "best": 1 / one.best_timing.ratio,
            "best_low": 1 / one.best_timing.ratio_high,
            "best_high": 1 / one.best_timing.ratio_low,
            "default": 1 / _timing(recorded, default).ratio,
        }
    return {
        "rows": len(recorded),
        "configurations": len(np.unique(codes, axis=0)),
        "spilling": {
            "rows": len(spilling),
            "configurations": len(np.unique(codes[spilling], axis=0)),
            "pruned": int(np.isinf(recorded.times_us[spilling]).sum()),
            "least_bytes": int(spills[spilling].min()),
            "most_bytes": int(spills[spilling].max()),
            "fastest": _over_best(recorded, spilling),
        },
        "problems": by_problem,
    }


def _over_best(recorded: Table, rows: NDArray[np.int64]) -> float:
    """The time of the fastest of some rows over the best of its problem."""
    fastest = [
        recorded.times_us[np.intersect1d(rows, own)].min(initial=np.inf) / recorded.times_us[own].min()
        for own in map(recorded.rows, recorded.problems)
    ]
    return float(min(fastest))


def best_of_table(files: Files) -> Any:
    """The best of each problem of a table and the default that was recorded, by the race, with means over problems."""
    (path,) = files.values()
    return summary(best_rows(Table.read(path)), SEED)


def _timing(recorded: Table, row: int) -> Timing:
    timing = recorded.measurement(row).timing
    assert timing is not None
    return timing


def spaces(files: Files, space: str, device: str, suites: list[str], subspace: bool = False) -> Any:
    """The sizes of the spaces of some suites' problems; of the sub-space in a file too, if asked."""
    template = find_template(space)
    part = read_subspace(next(iter(files.values())), template.knobs) if subspace else None
    legal: dict[str, int] = {}
    within = []
    for problem in dict.fromkeys(name for suite in suites for name in find_suite(suite).problems):
        found = template.space(template.parse(problem), find_device(device))
        legal[problem] = len(found)
        if part is not None:
            within.append(found.codes[part.holds(found)])
    distinct = len(np.unique(np.concatenate(within), axis=0)) if within else 0
    combinations = float(np.prod([len(knob.values) for knob in template.knobs]))
    return {"legal": legal, "combinations": combinations, "knobs": len(template.knobs), "subspace": distinct}


def suites(files: Files) -> Any:
    """The problems of every suite that figures are of."""
    return {name: find_suite(name).problems for name in ("ground-truth", "recorded", "out-of-sample")}


def replayed(files: Files, problem: str, sampler: str, trials: int) -> Any:
    """A search of a problem that is replayed on a table, with seed 0, guided by the model behind it if there is one."""
    path, *models = files.values()
    recorded = Table.read(path)
    with TemporaryDirectory() as folder:
        settings = {"model": models[0]} if models else {}
        options = TuneOptions(sampler, SEED, Budget(trials), Path(folder), settings=settings)
        with Evaluator(ReplayEngine(recorded, template_of(recorded)), recorded.problem(problem)) as evaluator:
            return run_study(evaluator, options).to_dict()


def unseen_speeds(files: Files) -> Any:
    """The speeds on problems that nothing was chosen on: means with intervals, and what the regimes tell apart."""
    (path,) = files.values()
    found = speeds(Table.read(path))
    means = print_speeds(Console(quiet=True), found, SEED)
    return {"problems": {one.problem: asdict(one) for one in found}, "speed": means}


def unseen_searches(files: Files, sampler: str) -> Any:
    """Searches of the problems that nothing was chosen on, replayed with a model that never saw them."""
    (path,) = files.values()
    recorded = Table.read(path)
    training = training_of(checked_model(recorded))
    jobs = [(path, str(problem), sampler, SEED, TRIALS) for problem in recorded.problems]
    done = list(each(search, jobs, available_cores(), "search"))
    figures = print_searches(Console(quiet=True), done, TRIALS, training)[sampler]
    searches = {one.problem: asdict(one) for _, one in done}
    return {"figures": figures, "searches": searches, "training": asdict(training)}


def fixed_launches(files: Files) -> Any:
    """The cost of fixed repeats over a search's, by replays and by single launches, on each problem."""
    return {name: asdict(repeats_of(one)) for name, one in problems(files).items()}


def dispatch_halves(files: Files) -> Any:
    """The regret of dispatchers at recorded m that they were not given, of each product."""
    (path,) = files.values()
    return {text.partition(":")[0]: one.figures() for text, one in all_halves(path, (), HALVES, SEED).items()}


def dispatch_left_out(files: Files) -> Any:
    """How far glances are off that were left out, with what the library names and without."""
    return all_figures(all_left_out(list(files.values()), SEED))


def nvgemm_losses(files: Files) -> Any:
    """The losses of the candidates that TorchInductor times, and of those that our ranker keeps, on each problem."""
    (path,) = files.values()
    return {
        problem: {"us": 1e3 * fastest, **dict(zip(("timed", *map(str, KEPT)), lost, strict=True))}
        for problem, (fastest, lost) in ranking_losses(path).items()
    }


def transfer(files: Files) -> Any:
    """Regrets of searches that other problems' searches went before, by number of trials; of `suites`."""
    (path,) = files.values()
    later = [one for one in Record.read(path).result if one["before"]]
    kinds = {kind: np.array([one[kind] for one in later]) for kind in ("alone", "together")}
    found = {kind: {str(1 + at): column.tolist() for at, column in enumerate(one.T)} for kind, one in kinds.items()}
    return {"searches": len(later), **found}


def softmax(files: Files, dtype: str) -> Any:
    """The tuned softmax over a copy's bandwidth, and over the fastest of its peers, of problems of an element type."""
    found = {}
    for name, one in problems(files).items():
        speeds_of = {kernel: speed["value"] for kernel, speed in one["bandwidth_fraction"].items()}
        fastest = max(speed for kernel, speed in speeds_of.items() if kernel.startswith("torch."))
        if name.endswith(dtype):
            found[name] = {"tuned": speeds_of["tuned"], "over_peers": speeds_of["tuned"] / fastest}
    return found


def log(files: Files, numbers: dict[str, str]) -> Any:
    """Numbers of a log, each the last that a pattern's group finds."""
    (path,) = files.values()
    text = read_regular(path, LARGEST_LOG).decode()
    return {name: float(re.findall(pattern, text)[-1].replace(",", "")) for name, pattern in numbers.items()}


def heats(files: Files, host: str) -> Any:
    """How far ratios to the library on two hosts are apart, as logarithms: the median of a problem's configurations."""
    here = [read_heats(path) for name, path in files.items() if name != host]
    there = read_heats(files[host])
    means = {name: np.mean([one[name].mean(axis=(0, 1)) for one in here], axis=0) for name in there}
    apart = {name: np.abs(mean - there[name].mean(axis=(0, 1))) for name, mean in means.items()}
    return {name: float(np.median(one)) for name, one in apart.items()}


def race_coverage(files: Files, hosts: Sequence[str]) -> Any:
    """How often the intervals of races hold: heats of several processes of one host, and of other hosts."""
    processes = [read_heats(path) for name, path in files.items() if name not in hosts]
    return coverages(processes, [read_heats(files[host]) for host in hosts], RACES, SEED)


def race_designs(files: Files) -> Any:
    """Pairs that races take of recorded heats, and how far their answers are behind: as they are, and to the end."""
    recorded = [heats for path in files.values() for heats in read_heats(path).values()]
    designs = {"now": RaceOptions(), "to_the_end": RaceOptions(loss=0.0)}
    found = {name: [replay(heats, design, RACES, SEED) for heats in recorded] for name, design in designs.items()}
    return {name: {key: float(np.mean([one[key] for one in rows])) for key in rows[0]} for name, rows in found.items()}


def objectives(files: Files) -> Any:
    """Speeds by chain and by sandwich, and how far off the times are that the two predict of blocks of a model."""
    (path,) = files.values()
    result = Record.read(path).result
    rows = chain_or_sandwich.predictions(result)
    for row in rows:
        row["nearer"] = abs(row["sandwich"]["error"]) < abs(row["chain"]["error"])
    speeds_of = chain_or_sandwich.speeds(result)
    means = {
        way: {
            str(each): geometric_mean_interval([found[way][str(each)][0] for found in speeds_of.values()], SEED)
            for each in Objective
        }
        for way in ("default", "best 1")
    }
    return {
        "products": result["products"],
        "speeds": speeds_of,
        "means": {way: {key: list(mean) for key, mean in of.items()} for way, of in means.items()},
        "predictions": {f"{row['block']} {row['way']}": row for row in rows},
        "blocks": len(result["blocks"]),
        "verdict": chain_or_sandwich.verdict(rows),
    }


def tunings(files: Files) -> Any:
    """Findings and costs of live tunings of unseen problems, beside an exhaustive best."""
    (path,) = files.values()
    found = print_tunings(Console(quiet=True), Record.read(path).result)["summary"]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def field(files: Files) -> Any:
    """The standings of tuners that competed live, and how GPUs agree; the files' problems taken together."""
    results = [Record.read(path).result for path in files.values()]
    played = {name: one for result in results for name, one in result["problems"].items()}
    found = standings(played)
    return {
        "problems": len(played),
        "tuners": len(found),
        "standings": {tuner: one.plain() for tuner, one in found.items()},
        "agreements": {name: one for result in results for name, one in agreements(result).items()},
    }


SOURCES: dict[str, Source] = {
    "record": record,
    "problems": problems,
    "settings": settings,
    "table": table,
    "best-of-table": best_of_table,
    "spaces": spaces,
    "suites": suites,
    "replayed": replayed,
    "unseen-speeds": unseen_speeds,
    "unseen-searches": unseen_searches,
    "fixed-launches": fixed_launches,
    "dispatch-halves": dispatch_halves,
    "dispatch-left-out": dispatch_left_out,
    "nvgemm-losses": nvgemm_losses,
    "transfer": transfer,
    "softmax": softmax,
    "log": log,
    "heats": heats,
    "race-coverage": race_coverage,
    "race-designs": race_designs,
    "objectives": objectives,
    "tunings": tunings,
    "field": field,
}
