"""``tilescout tune --suite``: all problems of a suite together."""

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.progress import Progress, TaskID

from tilescout.experiments.commands.options import suite_problems
from tilescout.experiments.commands.outputs import write_result
from tilescout.experiments.commands.tune_request import TuneRequest
from tilescout.experiments.progress import progress_bar, waiting
from tilescout.search.api import check_settings, chosen_sampler, warn_of_replay
from tilescout.search.build.early import hold_for_next
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.selection import check_device, get_ready, make_engine, replays
from tilescout.search.samplers import check_sampler, make_sampler
from tilescout.search.studies.answers import peers_of
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tables.shipped import held_elsewhere, held_problems, named_template
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.progress import why_ended
from tilescout.search.tuning.study import TuneOptions
from tilescout.search.tuning.suite import SuiteInterrupted, tune_suite
from tilescout.search.tuning.trackers import Tracker
from tilescout.spaces.errors import TableError, TilescoutError
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.terminal import Console, Grid
from tilescout.spaces.texts import number_of, plain, some_of

if TYPE_CHECKING:
    from tilescout.search.tracking.standing.logger import StandingSuite
    from tilescout.search.tracking.suite import SuiteInfo, SuiteRun

_LOG = logging.getLogger(__name__)
_NAMED = 4  # problems in a message, at most


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
    TableError
        If it is replayed, and no table holds all problems.
    UsageError
        If the problems have less than a trial each, or those of no table are to be left out where a GPU measures.
    """
    suite = asked.suite
    assert suite is not None
    from tilescout.search.tracking import default_store

    check_device(asked.device)
    if asked.sampler is not None:
        check_sampler(asked.sampler, asked.settings)
    check_settings(asked.settings)
    template = named_template(asked.space, asked.table)
    get_ready(asked.device, template if asked.standby and asked.cluster is None else None)
    problems, table = _measurable(asked, template, suite_problems(template, suite, asked.signature))
    if asked.trials is not None and asked.trials < len(problems):
        raise click.UsageError(
            f"--trials {asked.trials} is for all {len(problems)} problems of {suite}, and each has its default "
            f"tried: give at least {len(problems)}"
        )
    uri, root = (asked.mlflow_uri, None) if asked.mlflow_uri else default_store(asked.store)
    with ExitStack() as stack:
        bars = stack.enter_context(progress_bar())
        task = bars.add_task("prepare", total=None)
        engine = stack.enter_context(
            make_engine(
                template,
                problems[0],
                artifacts(asked.store),
                device=asked.device,
                cluster=asked.cluster,
                gpus=asked.gpus,
                table=table,
                objective=asked.objective,
                options=asked.live,
            )
        )
        warn_of_replay(engine, asked.library_kernels, asked.peers)
        options = TuneOptions(
            asked.sampler or chosen_sampler(template, engine.device, asked.settings),
            asked.seed,
            asked.budget(len(problems)),
            studies(asked.store),
            asked.resume,
            settings=asked.settings,
            library_kernels=asked.library_kernels,
            peers=asked.peers,
        )
        about = partial(_about, suite, engine, options, len(problems))
        tracking = _Tracking(stack, uri, root, asked, template, about)
        bars.update(task, total=options.budget.trials)
        title = f"{template.name}, suite {suite}, on {engine.device.name} ({engine.provenance.kind})"
        show = partial(_print, problems=len(problems), title=title, console=asked.console)
        display = _Display(bars, task, engine, options.budget, show)
        try:
            with display.behind:
                results = tune_suite(
                    engine, problems, options, tracking.of, display.trial, display.phase, display.results,
                    complement=asked.complement,
                )  # fmt: skip
        except SuiteInterrupted as interrupted:
            bars.stop()
            if interrupted.results and not interrupted.complete:  # else they have been shown
                show(interrupted.results)
            write_result(asked.json_path, [result.to_dict() for result in interrupted.results])
            tracking.run.log(interrupted.results)
            raise
        except TilescoutError:
            if found := display.found:
                write_result(asked.json_path, [result.to_dict() for result in found])
                ended = {result.info.problem for result in found}
                if failed := [each for each in problems if each not in ended]:
                    _LOG.warning("without a result: %s", some_of(failed, _NAMED))
            raise
        try:
            with waiting("log the figures of all to MLflow"):
                tracking.run.finish(results)
        finally:  # MLflow may be lost by then
            write_result(asked.json_path, [result.to_dict() for result in results])
    asked.check_tracked(next((result.not_tracked for result in results if result.not_tracked), ""))
    _LOG.info("%s", asked.shown_at(tracking.run.page))
    return results


def _measurable(
    asked: TuneRequest, template: KernelTemplate, problems: list[Problem]
) -> tuple[list[Problem], Path | None]:
    """The problems that are searched, and the table that is replayed; None where something is measured."""
    if asked.cluster is not None or not replays(template, asked.device, asked.table):
        if asked.skip_unrecorded:
            raise click.UsageError(
                "--skip-unrecorded is for a replay, and here every problem is measured: leave it out"
            )
        return problems, asked.table
    table, held = held_problems(template, problems, asked.table)
    lacking = [problem for problem in problems if problem not in held]
    if lacking:
        told = (
            f"{table.name} holds {len(held)} of the {number_of(len(problems), 'problem')} of {asked.suite}; it lacks "
            f"{some_of(lacking, _NAMED)}"
        )
        for other, those in held_elsewhere(template, lacking, table).items() if asked.table is None else ():
            told += f"; of these {other} holds {some_of(those, _NAMED)} (replay it with --table)"
        if not asked.skip_unrecorded:
            raise TableError(f"{told}: leave these out with --skip-unrecorded, or measure on a GPU")
        _LOG.warning("left out: %s", told)
    return held, table


def _about(suite: str, engine: Engine, options: TuneOptions, problems: int) -> "SuiteInfo":
    """The description of a suite's run; it waits for what measures."""
    from tilescout.search.tracking import SuiteInfo

    return SuiteInfo(
        suite, engine.template.name, engine.device.name, make_sampler(options.sampler).label, options.seed,
        problems, engine.provenance.description, engine.objective,
    )  # fmt: skip


class _Display:
    """A bar of the trials of a suite, the results behind it, and that MLflow is waited for then.

    Parameters
    ----------
    bars, task
        The bar.
    engine
        What measures; the log says so with the first trial, for it takes a second to be ready, in which the searches
        begin.
    budget
        When the searches stop.
    show
        Prints results.

    Attributes
    ----------
    found
        The results, once they are known: where a search failed, those of the others.
    behind
        What is shown behind the results, until this is closed.
    """

    def __init__(
        self,
        bars: Progress,
        task: TaskID,
        engine: Engine,
        budget: Budget,
        show: Callable[[Sequence[StudyResult]], None],
    ) -> None:
        self._bars, self._task, self._engine, self._budget, self._show = bars, task, engine, budget, show
        self._source_said = False
        self.found: Sequence[StudyResult] = ()
        self.behind = ExitStack()

    def trial(self, problem: Problem, trial: TrialRecord) -> None:
        """Count a trial; see `tune_suite`."""
        if not self._source_said:
            self._source_said = True
            _LOG.info("%s", self._engine.provenance.description)
        self._bars.update(self._task, advance=1, description=str(problem))

    def phase(self, problem: Problem, phase: str) -> None:
        """Say what is done for a problem."""
        self._bars.update(self._task, description=f"{problem}: {phase.partition(';')[0]}")

    def results(self, results: Sequence[StudyResult]) -> None:
        """End the bar, print the results, and say what is waited for."""
        self.found = results
        self._bars.update(self._task, description=why_ended(results, self._budget))
        self._bars.stop()
        self._show(results)
        hold_for_next()  # MLflow takes seconds, and the GPU is not needed any more
        self.behind.enter_context(waiting("log the trials and pictures of all to MLflow; the results are stored"))


class _Tracking:
    """The run of a suite in MLflow, begun when it is first needed, and trackers of the suite's studies.

    Parameters
    ----------
    stack
        What is opened is closed with it.
    uri, root
        MLflow's store, and where files go; see `MlflowTracker`.
    asked, template
        What is searched, and whether processes may stand by for it.
    about
        Describes the suite, once what measures is ready.
    """

    def __init__(
        self,
        stack: ExitStack,
        uri: str,
        root: Path | None,
        asked: TuneRequest,
        template: KernelTemplate,
        about: "Callable[[], SuiteInfo]",
    ) -> None:
        from tilescout.search.tracking import Opening, standing_logger
        from tilescout.search.tracking.standing.logger import wait_for_what_is_under_way

        self._stack, self._uri, self._root, self._resume, self._about = stack, uri, root, asked.resume, about
        self._place = studies(asked.store)
        if asked.resume:
            wait_for_what_is_under_way(self._place)
        self._opening = stack.enter_context(Opening(uri))
        self._logger = standing_logger(uri, root, self._place, template) if asked.standby else None
        if self._logger is not None:
            stack.enter_context(self._logger)

    @cached_property  # `tune_suite` makes one tracker at a time
    def run(self) -> "SuiteRun | StandingSuite":
        """The run."""
        from tilescout.search.tracking import SuiteRun

        if self._logger is not None:
            return self._stack.enter_context(self._logger.suite(self._about(), self._resume))
        made = SuiteRun(self._uri, self._root, self._about(), self._resume, self._opening)
        return self._stack.enter_context(made)

    def of(self, info: StudyInfo, run_id: str | None) -> Tracker:
        """The tracker of one of its studies, which `run_id` continues."""
        from tilescout.search.tracking import MlflowTracker
        from tilescout.search.tracking.standing.unlogged import clear

        run = self.run
        if self._logger is not None:
            return self._logger.study(info.name, run_id)
        clear(self._place, info.name)
        return MlflowTracker(self._uri, self._root, info, run_id, suite=run.run_id, opening=self._opening)


def _print(results: Sequence[StudyResult], problems: int, title: str, console: Console) -> None:
    from tilescout.search.tracking.suite import (
        libraries_of,
        library_best_heading,
        shown_problem,
        speeds_over_others,
        suite_metrics,
    )

    others = speeds_over_others(results)
    grid = Grid(title=title, title_justify="left", show_edge=False, pad_edge=False)
    grid.add_column("problem")
    unit = results[0].info.provenance.unit
    versus = [f"vs {plain(name)}" for name in others]
    for heading in (f"best\n{unit}", "vs\nlibrary", *versus, "default", "trials", "GPU s"):
        grid.add_column(heading, justify="right", no_wrap=True)
    grid.add_column("ended")
    for result, *beside in zip(results, *others.values(), strict=True):
        best = result.best.measurement.timing if result.best is not None else None
        default = result.default.measurement.timing if result.default is not None else None
        grid.add_row(
            shown_problem(result, results),
            f"{best.time_us:.2f}" if best is not None else "failed" if result.trials else "not tried",
            f"{1 / best.ratio:.3f}" if best is not None else "",
            *beside,
            f"{1 / default.ratio:.3f}" if default is not None else "failed" if result.default else "not tried",
            str(len(result.trials)),
            f"{result.gpu_seconds:.2f}",
            "by itself" if result.stopped else "",
        )
    console.print(grid)
    total = suite_metrics(results)
    mean = total.get("mean_speedup_over_library")
    solved = f" over {total['solved_problems']:.0f} of {number_of(problems, 'problem')}" if mean is not None else ""
    of_others, keys = "", {library_best_heading(results): "library_best"}
    for name, key in (keys | {name: name for name in peers_of(results)}).items():
        if (over := total.get(f"mean_speedup_over_{key}")) is not None:
            told = total[f"known_{key}"]
            known = f" ({told:.0f} known)" if told < total["solved_problems"] else ""
            of_others += f" and {over:.4f} of {plain(name)}{known}"
    library = plain(libraries_of(results))
    speed = f"geometric mean {mean:.4f} of the speed of {library}{of_others}{solved}; " if mean is not None else ""
    spent = f"{number_of(int(total['trials']), 'trial')}, {total['gpu_seconds']:.1f} s of GPU"
    console.say(f"{speed}{spent}, {total['compile_seconds']:.1f} s of compiling")
    if seen := len({result.info.problem for result in results if result.info.hindsight}):
        console.say(
            f"the cost model was trained on measurements of {seen} of the {number_of(problems, 'problem')}: what it "
            "finds there says nothing of how well it searches"
        )
