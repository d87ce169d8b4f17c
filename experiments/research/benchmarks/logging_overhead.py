"""What logging a search to MLflow adds to it: the same replayed search with and without, in turns.

    python -m tilescout.experiments.research logging-overhead --trials 1000 --out logging.json

Every search is of the same seed and so tries the same configurations. What a process pays once is told apart: importing
MLflow, making a store, and what the first summary imports. What a study pays once, its summary with its plots, is in
what logging adds. The fastest of the rounds counts, for what else the machine does only adds to them; the median of the
rounds' differences is told beside it.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.studies.records import StudyInfo
from tilescout.search.tables.shipped import default_table
from tilescout.search.tracking import MlflowTracker, default_store
from tilescout.search.tuning.loop import Budget
from tilescout.search.tuning.study import NoTracker, Tracker, TuneOptions, run_study
from tilescout.spaces.templates import load_template

MakeTracker = Callable[[StudyInfo, str | None], Tracker]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--space", default="gemm_sm90")
    parser.add_argument("--problem", default="4096x4096x4096:bf16")
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    template = load_template(options.space)
    problem = template.parse(options.problem)
    table = default_table(template, problem)

    def search(folder: Path, make_tracker: MakeTracker) -> tuple[int, float, float]:
        """Trials, and the wall-clock and CPU seconds of a search that keeps all it writes in a folder."""
        tuned = TuneOptions(options.sampler, 0, Budget(trials=options.trials, whole=True), folder / "studies")
        started, spent = time.perf_counter(), time.process_time()
        with Evaluator(ReplayEngine(table, template), problem) as evaluator:
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
        with Evaluator(ReplayEngine(table, template), problem) as evaluator:
            run_study(evaluator, with_few, tracker)
        once = time.perf_counter() - first
        for number in range(options.rounds):
            for name, make in (("without", lambda info, run_id: NoTracker()), ("with", tracker)):
                trials, wall, cpu = search(Path(root, f"{name}-{number}"), make)
                seconds[name].append((wall, cpu))
    record: dict[str, Any] = {
        "space": options.space,
        "problem": options.problem,
        "sampler": options.sampler,
        "trials": trials,
        "rounds": options.rounds,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[1],
        "seconds_in_all": time.perf_counter() - started,
        "first_use_seconds": once,
        "every_round": seconds,
    }
    console = Console(width=110)
    for at, kind in enumerate(("wall", "cpu")):
        rounds = [(a[at], b[at]) for a, b in zip(seconds["without"], seconds["with"], strict=True)]
        without, logged = (min(each) for each in zip(*rounds, strict=True))
        added = (logged - without) / trials * 1e3
        middle = median(b - a for a, b in rounds) / trials * 1e3
        record[kind] = {"without": without, "with": logged, "added_ms_a_trial": added, "median_ms_a_trial": middle}
        console.print(
            f"{kind:4}: {without:.2f} s without, {logged:.2f} s with: {added:.2f} ms a trial more "
            f"(median of the rounds {middle:.2f})",
            highlight=False,
        )
    console.print(
        f"{trials} trials of {options.sampler}, the fastest of {options.rounds} rounds; {record['cores']} cores, "
        f"load {record['load']:.1f}; the first use (MLflow's import, a new store, a summary) took {once:.1f} s once",
        highlight=False,
    )
    if options.out is not None:
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
