"""``tilescout tune --suite``: all problems of a suite together."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from tilescout.experiments.engines import make_engine
from tilescout.search.evaluate.engine import LiveOptions
from tilescout.search.evaluate.engine_replay import ReplayEngine
from tilescout.search.evaluate.evaluator import Evaluator
from tilescout.search.evaluate.live import EngineEvaluator
from tilescout.search.evaluate.replay import ReplayEvaluator
from tilescout.search.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tune import TuneOptions
from tilescout.search.tune_suite import tune_suite
from tilescout.spaces.errors import StoreError
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate


@dataclass(frozen=True)
class Together:
    """What is tuned, and by whom it is measured; see `make_engine`."""

    template: KernelTemplate
    suite: str
    problems: Sequence[Problem]
    device: str
    gpus: int | None
    cluster: str | None
    table: Path | None
    artifacts: Path


def tune_together(
    asked: Together,
    options: TuneOptions,
    uri: str,
    root: Path | None,
    hint: str,
    json_path: Path | None,
    console: Console,
) -> None:
    """Search for the fastest configuration of every problem, print what was found, and write it.

    Parameters
    ----------
    asked, options
        What is searched how.
    uri, root
        The MLflow store, and its folder of artifacts.
    hint
        How to look at the trials.
    json_path
        Where the results are written, if anywhere.
    console
        For progress.

    Raises
    ------
    StoreError
        If MLflow did not get all of it.
    """
    from tilescout.search.tracking import MlflowTracker, SuiteInfo, SuiteRun

    template, problems = asked.template, asked.problems
    with ExitStack() as stack:
        engine = stack.enter_context(
            make_engine(
                template, problems[0], asked.device, asked.cluster, asked.gpus, asked.table, asked.artifacts,
                LiveOptions(),
            )
        )  # fmt: skip
        console.print(engine.provenance.description, highlight=False, soft_wrap=True)
        about = SuiteInfo(
            asked.suite, template.name, engine.device.name, options.sampler, options.seed, len(problems),
            engine.provenance.description,
        )  # fmt: skip
        run = stack.enter_context(SuiteRun(uri, root, about, options.resume))
        bars = stack.enter_context(
            Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
                     console=console)
        )  # fmt: skip
        task = bars.add_task("", total=options.budget.trials)

        def make_evaluator(problem: Problem, gpu: int) -> Evaluator:
            if isinstance(engine, ReplayEngine):
                return ReplayEvaluator(engine.table, template, problem)
            return EngineEvaluator(engine, problem, [gpu])

        def make_tracker(info: StudyInfo, run_id: str | None) -> MlflowTracker:
            return MlflowTracker(uri, root, info, run_id, suite=run.run_id)

        def show(problem: Problem, trial: TrialRecord) -> None:
            bars.update(task, advance=1, description=str(problem))

        results = tune_suite(template, problems, make_evaluator, engine.gpus, options, make_tracker, show)
        run.finish(results)
    _print(results, f"{template.name}, suite {asked.suite}, on {engine.device.name}", Console())
    console.print(hint, highlight=False, soft_wrap=True)
    if json_path is not None:
        json_path.write_text(json.dumps([result.to_dict() for result in results], indent=2) + "\n")
    if missing := [result.not_tracked for result in results if result.not_tracked]:
        raise StoreError(f"{missing[0]}; tune --resume delivers the rest")


def _print(results: Sequence[StudyResult], title: str, console: Console) -> None:
    from tilescout.search.tracking.suite import suite_metrics

    grid = Grid(title=title, title_justify="left")
    grid.add_column("problem", no_wrap=True)
    for heading in ("best µs", "vs library", "default", "trials", "GPU s"):
        grid.add_column(heading, justify="right")
    grid.add_column("ended")
    for result in results:
        best = result.best.measurement.timing if result.best is not None else None
        default = result.default.measurement.timing if result.default is not None else None
        grid.add_row(
            str(result.info.problem),
            f"{best.time_us:.2f}" if best is not None else "none",
            f"{1 / best.ratio:.3f}" if best is not None else "",
            f"{1 / default.ratio:.3f}" if default is not None else "failed",
            str(len(result.trials)),
            f"{result.gpu_seconds:.2f}",
            "by itself" if result.stopped else "",
        )
    console.print(grid)
    total = suite_metrics(results)
    mean = total.get("mean_speedup_over_library")
    speed = f"geometric mean {mean:.4f} of the library's speed; " if mean is not None else ""
    spent = f"{total['trials']:,.0f} trials, {total['gpu_seconds']:.1f} s of GPU"
    console.print(f"{speed}{spent}, {total['compile_seconds']:.1f} s of compiling", highlight=False, soft_wrap=True)
