r"""Tune problems that the model never saw, nor their family, and race each answer against an exhaustive best.

    python -m tilescout.experiments.research tunings-out-of-sample \
        experiments/results/out-of-sample-2026-11-22/gemm_sm90-h200-out-of-sample.parquet --out tunings.json

The problems are drawn from the table, evenly over the five kinds of the suite `out-of-sample`. Each is tuned once by
the command ``tilescout tune``, with an empty store and a model that is trained like the shipped one, of the shipped
tables, without all problems of its family (small, skinny or large) and shape; with ``--unseen problem`` by the shipped
model, which saw none of these problems, but others of their families; with ``--model`` by a model that is named, and
that saw none of the problems that are tuned. Then the answer, the default, and the fastest configurations of the table
run in rounds against each other and `torch.mm`. The table's are an exhaustive best of its sub-space that the tuning had
no part in. The tuning searches the whole space, so that its answer may be faster.

A problem that the file of ``--out`` has is not tuned again: a run that was interrupted goes on by the same command.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.blend import BlendOptions
from tilescout.experiments.commands.options import collected, seed_option, store_option
from tilescout.experiments.compare.held_out import HeldOutModels
from tilescout.experiments.compare.inference import geometric_mean_interval, over_problems, share_interval
from tilescout.experiments.research.kernels import LIVE_CHAINS
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, device_option, study
from tilescout.experiments.research.studies.out_of_sample import checked_model, kinds
from tilescout.search.build.artifacts import SHARED_OBJECT
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.heats import correlation, mean_of_heats
from tilescout.search.measure.protocol import VERSION, Objective
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.shipped import named_tables
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import DeviceError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template

BEST = 3
"""Configurations of the table that race: the first by its own race, and those that may be faster here."""

UNSEEN = ("family", "problem")

HEATS, RACE = 10, RaceOptions()
COMPILERS = 16
TUNING_SECONDS = 300


def drawn(table: Table, count: int, seed: int) -> list[str]:
    """So many problems of the table, by turns of the kinds, each drawn at random."""
    rng = np.random.default_rng(seed)
    of_kind: dict[str, list[str]] = {}
    for problem, kind in kinds(table).items():
        of_kind.setdefault(kind, []).append(problem)
    shuffled = [[names[at] for at in rng.permutation(len(names))] for names in of_kind.values()]
    longest = max(map(len, shuffled))
    return [names[at] for at in range(longest) for names in shuffled if at < len(names)][:count]


def fastest(table: Table, problem: Problem, count: int = BEST) -> list[Configuration]:
    """The fastest configurations of a problem by the table's race."""
    rows = table.rows(problem)
    raced = np.asarray(table.data["raced_ratio"].fill_null(np.inf))[rows]
    return [table.configuration(int(row)) for row in rows[np.argsort(raced, kind="stable")[:count]]]


def tuned(space: str, name: str, model: Path, device: str, store: Path) -> dict[str, Any]:
    """The result of ``tilescout tune`` with a model, in a process of its own, its wall time and what it compiled.

    Raises
    ------
    DeviceError
        If the command failed, or took longer than `TUNING_SECONDS`.
    """
    store.mkdir(exist_ok=True)
    answer = store / "result.json"
    command = [sys.executable, "-P", "-m", "tilescout.experiments", "tune", space, "--problem", name]
    command += ["--sampler", "guided", "--model", str(model)]
    command += ["--no-complement"]  # the answer races the kernels of a table, all of one space
    command += ["--objective", str(Objective.CHAIN), "--device", device]
    command += ["--store", str(store), "--json", str(answer)]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TUNING_SECONDS, check=False)
    except subprocess.TimeoutExpired as late:
        raise DeviceError(
            f"the tuning of {name} was not done after {TUNING_SECONDS} s; run this again to go on"
        ) from late
    seconds = time.monotonic() - started
    if done.returncode:
        raise DeviceError(f"the tuning of {name} failed: {done.stderr.strip()[-500:]}")
    result: dict[str, Any] = json.loads(answer.read_text())
    compiled = sum(1 for _ in artifacts(store).rglob(SHARED_OBJECT))
    return {"result": result, "wall_seconds": seconds, "compiled": compiled}


def raced(engine: LocalEngine, problem: Problem, runners: Mapping[str, Configuration]) -> dict[str, list[list[float]]]:
    """Log ratios to `torch.mm` of each runner, of shape [heats, rounds]; runners that are the same share them."""
    with Evaluator(engine, problem) as evaluator:
        at = {name: evaluator.space.index(configuration) for name, configuration in runners.items()}
        indices = list(dict.fromkeys(at.values()))
        logs = np.stack(
            [np.log(evaluator.race(indices, RACE.look, RACE.pairs, heat)) for heat in range(HEATS)]
        )  # [heats, rounds, runners]
    return {name: logs[:, :, indices.index(index)].tolist() for name, index in at.items()}


def estimate(logs: NDArray[np.float64]) -> list[float]:
    """A ratio and the ends of its 95 % interval, from its logarithms of shape [heats, rounds]."""
    found = mean_of_heats(logs, correlation(logs[:, :, None]), RACE.noise)
    return [float(np.exp(found.mean + at * found.half)) for at in (0, -1, 1)]


def figures(problem: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one problem, from what was kept of it.

    The regret is the answer's time over that of the fastest of the table's here, less 1. Which one that is was picked
    in the same race, so that the regret is rather too large.
    """
    logs = {name: np.asarray(of) for name, of in problem["race"].items()}
    best = min((name for name in logs if name.startswith("table")), key=lambda name: float(logs[name].mean()))
    speed = [1 / value for value in estimate(logs["answer"])]
    return {
        "speed": [speed[0], speed[2], speed[1]],
        "best": 1 / estimate(logs[best])[0],
        "default": 1 / estimate(logs["default"])[0],
        "regret": [value - 1 for value in estimate(logs["answer"] - logs[best])],
        "trials": problem["result"]["trials"],
        "compiled": problem["compiled"],
        "gpu_seconds": problem["result"]["gpu_seconds"],
        "wall_seconds": problem["wall_seconds"],
        "stopped": problem["result"]["stopped"],
        "over_library_best": over_library_best(problem["result"]),
    }


def over_library_best(result: Mapping[str, Any]) -> float | None:
    """The answer's speed over the library's best candidate, by the race of the tuning; None if it is not known."""
    known = (result.get("library_best") or {}).get("speedup_of_best")
    return float(known["value"]) if known else None


def print_figures(console: Console, result: Mapping[str, Any]) -> dict[str, Any]:
    """Print the figures of every problem, and return those of all of them."""
    of = {name: figures(problem) for name, problem in result["problems"].items()}
    grid = Grid(title="answers of tunings with models that never saw the problem", title_justify="left")
    for heading in ("problem", "over torch.mm [95 %]", "table's best", "default", "regret [95 %]", "trials", "kernels"):
        grid.add_column(heading)
    for heading in ("GPU s", "wall s", "stopped", "over the library's best"):
        grid.add_column(heading)
    for name, one in of.items():
        grid.add_row(
            name,
            "{:.3f} [{:.3f}, {:.3f}]".format(*one["speed"]),
            f"{one['best']:.3f}",
            f"{one['default']:.3f}",
            "{:.2%} [{:.2%}, {:.2%}]".format(*one["regret"]),
            str(one["trials"]),
            str(one["compiled"]),
            f"{one['gpu_seconds']:.2f}",
            f"{one['wall_seconds']:.0f}",
            "by itself" if one["stopped"] else "by its budget",
            f"{one['over_library_best']:.3f}" if one["over_library_best"] else "unknown",
        )
    console.print(grid)
    regrets = np.array([one["regret"][0] for one in of.values()])
    low, high = over_problems(regrets, np.random.default_rng(0))
    behind = int((regrets > 0.01).sum())
    over_best = [one["over_library_best"] for one in of.values() if one["over_library_best"]]
    summary: dict[str, Any] = {
        "models": dict(Counter(one["result"]["model"]["sha256"] for one in result["problems"].values())),
        "speed": geometric_mean_interval([one["speed"][0] for one in of.values()], 0),
        "over_library_best": geometric_mean_interval(over_best, 0) if over_best else None,
        "best": geometric_mean_interval([one["best"] for one in of.values()], 0),
        "default": geometric_mean_interval([one["default"] for one in of.values()], 0),
        "regret": [float(regrets.mean()), float(low), float(high)],
        "behind": [behind, len(of), *share_interval(behind, len(of))],
        **{name: float(np.median([one[name] for one in of.values()])) for name in COSTS},
        **{f"{name}_total": float(np.sum([one[name] for one in of.values()])) for name in COSTS},
    }
    console.print(json.dumps(summary, indent=1), highlight=False)
    return {"of_problems": of, "summary": summary}


COSTS = ("trials", "compiled", "gpu_seconds", "wall_seconds")


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    table: Path | None
    problems: int
    names: tuple[str, ...]
    unseen: str
    model: Path | None
    compilers: int
    device: str
    seed: int
    store: Path


@study(GPU_OR_RECORD, again=True)
@click.argument("table", type=click.Path(path_type=Path), required=False)
@click.option("--problems", default=10, show_default=True, help="How many problems to draw.")
@click.option("--problem", "names", multiple=True, metavar="NAME", help="This problem instead; repeatable.")
@click.option(
    "--unseen",
    type=click.Choice(UNSEEN),
    default=UNSEEN[0],
    show_default=True,
    help="What a model has not seen of the problem that it searches: its family, or only itself.",
)
@click.option("--model", type=click.Path(path_type=Path), help="By this model, which must not have seen the problems.")
@click.option("--compilers", default=COMPILERS, show_default=True, help="Most compilers at a time.")
@device_option
@seed_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Tune and race every problem, and print the figures."""
    if run.record is not None:
        print_figures(Console(width=160), run.record.result)
        return
    if asked.table is None or run.out is None:
        raise click.UsageError("name a table and --out, or a file with --again")
    table = Table.read(asked.table)
    names = asked.names or drawn(table, asked.problems, asked.seed)
    done: dict[str, Any] = Record.read(run.out).result["problems"] if run.out.exists() else {}
    result: dict[str, Any] = {"protocol": VERSION, "table": table.path.name, "problems": done}
    template = find_template(table.card.space)
    unseen: dict[str, tuple[str, ...]] = {name: (name,) for name in names if name not in done}
    files: dict[str, Path] = {}
    if asked.model is not None or asked.unseen == "problem":
        files = dict.fromkeys(unseen, checked_model(table, asked.model, names))
    else:
        models = HeldOutModels.of(named_tables(template, ()), asked.store, BlendOptions())
        unseen = {name: models.of_family(table.problem(name)) for name in unseen}
        models.train(list(dict.fromkeys(unseen.values())), len(unseen))
        files = {name: models.file_without(without) for name, without in unseen.items()}
    use_cores(asked.compilers)  # before the compilers of the races start
    with (
        TemporaryDirectory() as folder,
        LocalEngine(template, Path(folder, "races"), [asked.device], options=LIVE_CHAINS) as engine,
    ):
        for name in names:
            if name in done:
                continue
            problem = table.problem(name)
            found = tuned(table.card.space, name, files[name], asked.device, Path(folder, f"store-{len(done)}"))
            found["unseen"] = unseen[name]
            runners = {
                "answer": Configuration.of(found["result"]["best"]["configuration"]),
                "default": table.card.baselines[problem].default,
                **{f"table {at}": one for at, one in enumerate(fastest(table, problem), start=1)},
            }
            found["runners"] = {runner: dict(configuration) for runner, configuration in runners.items()}
            done[name] = {**found, "race": raced(engine, problem, runners)}
            run.keep(result)
    run.keep({**result, **print_figures(Console(width=160), result)})


def use_cores(count: int) -> None:
    """Let this process and those that it starts use so many cores: a tuning has a compiler for each."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:count])
