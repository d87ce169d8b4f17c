"""``tilescout tune --suite``: all problems of a suite together."""

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING

import click

from tilescout.experiments.commands.options import suite_problems, write_result
from tilescout.experiments.commands.tune_request import TuneRequest
from tilescout.experiments.progress import progress_bar, waiting
from tilescout.search.api import chosen_sampler
from tilescout.search.engines.selection import check_device, get_ready, make_engine
from tilescout.search.samplers import check_sampler, make_sampler
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tables.shipped import named_template
from tilescout.search.tuning.progress import why_ended
from tilescout.search.tuning.study import TuneOptions
from tilescout.search.tuning.suite import SuiteInterrupted, tune_suite
from tilescout.search.tuning.trackers import Tracker
from tilescout.spaces.problems import Problem
from tilescout.spaces.terminal import Console, Grid

if TYPE_CHECKING:
    from tilescout.search.tracking.standing.logger import StandingSuite
    from tilescout.search.tracking.suite import SuiteRun

_LOG = logging.getLogger(__name__)


def tune_together(asked: TuneRequest) -> Sequence[StudyResult]:
    """Search for the fastest configuration of every problem of the suite, print what was found, and write it.

    Returns
    -------
    Sequence
        The results, in the order of the problems; see `tune_suite`.

    Raises
    ------
    StoreError
        If MLflow did not get all of it.
    UsageError
        If the problems have less than a trial each.
    """
    suite = asked.suite
    assert suite is not None
    from tilescout.search.tracking import (
        MlflowTracker,
        Opening,
        SuiteInfo,
        SuiteRun,
        default_store,
        standing_logger,
    )

    check_device(asked.device)
    if asked.sampler is not None:
        check_sampler(asked.sampler)
    template = named_template(asked.space, asked.table)
    problems = suite_problems(template, suite, asked.signature)
    if asked.trials is not None and asked.trials < len(problems):
        raise click.UsageError(
            f"--trials {asked.trials} is for all {len(problems)} problems of {suite}, and each has its default "
            f"tried: give at least {len(problems)}"
        )
    uri, root = (asked.mlflow_uri, None) if asked.mlflow_uri else default_store(asked.store)
    with ExitStack() as stack:
        bars = stack.enter_context(progress_bar())
        task = bars.add_task("prepare", total=None)
        get_ready(asked.device, template if asked.standby and asked.cluster is None else None)
        engine = stack.enter_context(
            make_engine(
                template,
                problems[0],
                artifacts(asked.store),
                device=asked.device,
                cluster=asked.cluster,
                gpus=asked.gpus,
                table=asked.table,
                objective=asked.objective,
                options=asked.live,
            )
        )
        sampler = asked.sampler or chosen_sampler(template, engine.device, asked.settings)
        options = TuneOptions(
            sampler,
            asked.seed,
            asked.budget(len(problems)),
            studies(asked.store),
            asked.resume,
            settings=asked.settings,
            library_kernels=asked.library_kernels,
            peers=asked.peers,
        )
        opening = stack.enter_context(Opening(uri))
        logger = standing_logger(uri, root, options.studies, template) if asked.standby else None
        if logger is not None:
            stack.enter_context(logger)
        bars.update(task, total=options.budget.trials)

        @cache  # what measures takes a second to be ready, in which the searches begin
        def say_source() -> None:
            _LOG.info("%s", engine.provenance.description)

        @cache  # `tune_suite` makes one tracker at a time
        def run() -> "SuiteRun | StandingSuite":
            about = SuiteInfo(
                suite, template.name, engine.device.name, make_sampler(sampler).label, options.seed,
                len(problems), engine.provenance.description, engine.objective,
            )  # fmt: skip
            if logger is not None:
                return stack.enter_context(logger.suite(about, asked.resume))
            return stack.enter_context(SuiteRun(uri, root, about, asked.resume, opening))

        def make_tracker(info: StudyInfo, run_id: str | None) -> Tracker:
            if logger is not None:
                run()
                return logger.study(info.name, run_id)
            return MlflowTracker(uri, root, info, run_id, suite=run().run_id, opening=opening)

        def show(problem: Problem, trial: TrialRecord) -> None:
            say_source()
            bars.update(task, advance=1, description=str(problem))

        def say(problem: Problem, phase: str) -> None:
            bars.update(task, description=f"{problem}: {phase.partition(';')[0]}")

        title = f"{template.name}, suite {suite}, on {engine.device.name}"

        def answer(results: list[StudyResult]) -> None:
            bars.update(task, description=why_ended(results, options.budget))
            bars.stop()
            _print(results, len(problems), title, asked.console)

        try:
            results = tune_suite(
                engine, problems, options, make_tracker, show, say, answer, complement=asked.complement
            )
        except SuiteInterrupted as interrupted:
            bars.stop()
            if interrupted.results:
                _print(interrupted.results, len(problems), title, asked.console)
            write_result(asked.json_path, [result.to_dict() for result in interrupted.results])
            run().log(interrupted.results)
            raise
        with waiting("log the figures of all to MLflow"):
            run().finish(results)
    missing = [result.not_tracked for result in results if result.not_tracked]
    asked.deliver([result.to_dict() for result in results], missing[0] if missing else "")
    _LOG.info("%s", asked.shown_at(run().page))
    return results


def _print(results: Sequence[StudyResult], problems: int, title: str, console: Console) -> None:
    from tilescout.search.tracking.suite import library_best_heading, shown_problem, suite_metrics

    peer = library_best_heading(results)
    grid = Grid(title=title, title_justify="left", show_edge=False, pad_edge=False)
    grid.add_column("problem")
    for heading in ("best\nµs", "vs\nlibrary", *([f"vs {peer}"] if peer else []), "default", "trials", "GPU s"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("ended")
    for result in results:
        best = result.best.measurement.timing if result.best is not None else None
        default = result.default.measurement.timing if result.default is not None else None
        grid.add_row(
            shown_problem(result, results),
            f"{best.time_us:.2f}" if best is not None else "failed" if result.trials else "not tried",
            f"{1 / best.ratio:.3f}" if best is not None else "",
            *([f"{beside.value:.3f}" if (beside := result.over_library_best) is not None else ""] if peer else []),
            f"{1 / default.ratio:.3f}" if default is not None else "failed" if result.default else "not tried",
            str(len(result.trials)),
            f"{result.gpu_seconds:.2f}",
            "by itself" if result.stopped else "",
        )
    console.print(grid)
    total = suite_metrics(results)
    mean = total.get("mean_speedup_over_library")
    solved = f" over {total['solved_problems']:.0f} of {problems} problems" if mean is not None else ""
    over = total.get("mean_speedup_over_library_best")
    of_best = f" and {over:.4f} of {peer}" if over is not None else ""
    speed = f"geometric mean {mean:.4f} of the library's speed{of_best}{solved}; " if mean is not None else ""
    spent = f"{total['trials']:,.0f} trials, {total['gpu_seconds']:.1f} s of GPU"
    console.say(f"{speed}{spent}, {total['compile_seconds']:.1f} s of compiling")
