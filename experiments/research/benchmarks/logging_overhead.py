"""Measure what logging to MLflow adds to a search.

    python -m tilescout.experiments.research logging-overhead --trials 1000 --out logging.json

The same replayed search runs with and without MLflow in turns; all have one seed and so try the same configurations.
What a process pays once is kept apart: importing MLflow, making a store, and the imports of the first summary. A
study's summary with its plots is counted. The fastest round counts, since other work on the machine can only add time;
the median of the rounds' differences is given too.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
from rich.console import Console

from tilescout.experiments.research.runner import TABLES, Run, study
from tilescout.search.build.cores import available_cores
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.studies.records import StudyInfo
from tilescout.search.tables.shipped import default_table
from tilescout.search.tracking import MlflowTracker, default_store
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.search.tuning.trackers import NoTracker, Tracker
from tilescout.spaces.templates import load_template

MakeTracker = Callable[[StudyInfo, str | None], Tracker]


@study(TABLES)
@click.option("--space", default="gemm_sm90", show_default=True, help="The space to search.")
@click.option("--problem", default="4096x4096x4096:bf16", show_default=True, help="The problem to search.")
@click.option("--sampler", default="tpe", show_default=True, help="The strategy of the searches.")
@click.option("--trials", default=1000, show_default=True, help="Trials of a search.")
@click.option("--rounds", default=3, show_default=True, help="Searches with and without MLflow.")
def main(run: Run, space: str, problem: str, sampler: str, trials: int, rounds: int) -> None:
    """Search with and without MLflow in turns, and print what logging adds."""
    template = load_template(space)
    parsed = template.parse(problem)
    table = default_table(template, parsed)

    def search(folder: Path, make_tracker: MakeTracker) -> tuple[int, float, float]:
        """Trials, and the wall-clock and CPU seconds of a search that keeps all it writes in a folder."""
        tuned = TuneOptions(sampler, 0, Budget(trials=trials, whole=True), folder / "studies")
        started, spent = time.perf_counter(), time.process_time()
        with Evaluator(ReplayEngine(table, template), parsed) as evaluator:
            result = run_study(evaluator, tuned, make_tracker)
        assert not result.not_tracked, result.not_tracked
        return len(result.trials), time.perf_counter() - started, time.process_time() - spent

    seconds: dict[str, list[tuple[float, float]]] = {"without": [], "with": []}
    started = time.perf_counter()
    with TemporaryDirectory() as root:
        uri, artifacts = default_store(Path(root))

        def tracker(info: StudyInfo, run_id: str | None) -> Tracker:
            return MlflowTracker(uri, artifacts, info, run_id)

        first = time.perf_counter()
        with_few = TuneOptions("random", 0, Budget(trials=1), Path(root, "first"))
        with Evaluator(ReplayEngine(table, template), parsed) as evaluator:
            run_study(evaluator, with_few, tracker)
        once = time.perf_counter() - first
        for number in range(rounds):
            for name, make in (("without", lambda info, run_id: NoTracker()), ("with", tracker)):
                done, wall, cpu = search(Path(root, f"{name}-{number}"), make)
                seconds[name].append((wall, cpu))
    record: dict[str, Any] = {
        "space": space,
        "problem": problem,
        "sampler": sampler,
        "trials": done,
        "rounds": rounds,
        "cores": available_cores(),
        "load": os.getloadavg()[1],
        "seconds_in_all": time.perf_counter() - started,
        "first_use_seconds": once,
        "every_round": seconds,
    }
    console = Console(width=110)
    for at, kind in enumerate(("wall", "cpu")):
        pairs = [(a[at], b[at]) for a, b in zip(seconds["without"], seconds["with"], strict=True)]
        without, logged = (min(each) for each in zip(*pairs, strict=True))
        added = (logged - without) / done * 1e3
        middle = median(b - a for a, b in pairs) / done * 1e3
        record[kind] = {"without": without, "with": logged, "added_ms_a_trial": added, "median_ms_a_trial": middle}
        console.print(
            f"{kind:4}: {without:.2f} s without, {logged:.2f} s with: {added:.2f} ms a trial more "
            f"(median of the rounds {middle:.2f})",
            highlight=False,
        )
    console.print(
        f"{done} trials of {sampler}, the fastest of {rounds} rounds; {record['cores']} cores, "
        f"load {record['load']:.1f}; the first use (MLflow's import, a new store, a summary) took {once:.1f} s once",
        highlight=False,
    )
    run.keep(record)
