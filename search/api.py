"""Tune a kernel in one call: all that ``tilescout tune`` can, for scripts and notebooks."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tilescout.costmodel.persistence import check_exists, named_model
from tilescout.search.engines.engine import Engine, LiveOptions
from tilescout.search.engines.peers import patient_with
from tilescout.search.engines.selection import check_device, get_ready, make_engine
from tilescout.search.measure.library_best import CANDIDATES
from tilescout.search.measure.protocol import Objective
from tilescout.search.measure.race import RaceOptions
from tilescout.search.samplers import AnySampler, check_sampler, choose_sampler, make_sampler
from tilescout.search.samplers.registry import check_setting_names
from tilescout.search.studies.folders import STORE, artifacts, check_store, studies
from tilescout.search.tables.shipped import named_template, table_file
from tilescout.search.tuning.budget import Budget
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.checking import check_number
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import SamplerError, StoreError, one_line
from tilescout.spaces.problems import P, Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate, given_template
from tilescout.spaces.texts import is_address
from tilescout.spaces.trust import named_folder

if TYPE_CHECKING:
    from tilescout.search.engines.evaluator import Evaluator, evaluate
    from tilescout.search.samplers import SAMPLERS
    from tilescout.search.samplers.base import SpaceSampler
    from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
    from tilescout.search.tables.shipped import default_table
    from tilescout.search.tables.table import Table
    from tilescout.search.tracking import Opening
    from tilescout.search.tracking.result import TuneResult, load_study
    from tilescout.search.tracking.standing.logger import StandingLogger
    from tilescout.search.tuning.progress import StudyProgress
    from tilescout.search.tuning.study import SearchInterrupted, TuneOptions, run_study
    from tilescout.search.tuning.trackers import Tracker

__all__ = [
    "SAMPLERS",
    "Budget",
    "Evaluator",
    "RaceOptions",
    "SearchInterrupted",
    "StudyResult",
    "Table",
    "TrialRecord",
    "TuneOptions",
    "TuneResult",
    "default_table",
    "evaluate",
    "load_study",
    "make_engine",
    "run_study",
    "tune",
]
"""With what is public of the rooms below: all of it is public in `tilescout.search`, which says what is where."""

_LOG = logging.getLogger(__name__)

DEFAULT_TRIALS = 64
"""Trials of a study that no other limit ends."""


def tune(
    space: str | type[KernelTemplate[P]] | KernelTemplate[P],
    problem: str | P,
    *,
    sampler: "AnySampler | None" = None,
    seed: int = 0,
    budget: Budget | int | None = None,
    settings: Mapping[str, Any] | None = None,
    first: Callable[[KernelTemplate, SearchSpace], Sequence[int]] | None = None,
    race: RaceOptions | None = None,
    device: str = "auto",
    cluster: str | None = None,
    gpus: int | None = None,
    table: Path | str | None = None,
    objective: Objective | str | None = None,
    live: LiveOptions | None = None,
    library_kernels: int = CANDIDATES,
    peers: Sequence[str] = (),
    complement: bool = True,
    store: Path | str = STORE,
    storage: Path | str | None = None,
    resume: bool | str = False,
    mlflow: str | bool = True,
    progress: bool = False,
    on_trial: "Callable[[TrialRecord], None]" = lambda trial: None,
    on_result: "Callable[[TuneResult], None]" = lambda result: None,
) -> "TuneResult":
    """Search for the fastest configuration of a kernel on a problem.

    Measures on this machine's GPU where there is one that the kernel is for, else replays a recorded table; the logger
    ``tilescout`` says which (level INFO), and so does the result's ``info.provenance``. Every finished trial is on disk
    before the next is proposed. Compiler processes of a live search import the calling script if the template is of it:
    keep the call under ``if __name__ == "__main__":`` there.

    Parameters
    ----------
    space
        Name of a search space, or the template of a kernel of your own, as its class or an object.
    problem
        What to compute, for example ``"4096x4096x4096:bf16"``.
    sampler, seed
        The strategy and the seed of all that is random in it. The sampler is text such as ``"tpe"``,
        ``"lfbo:copies=5"`` or ``"my_module:MySampler"``, or a class, or an object, of optuna's too; see
        `tilescout.search.samplers.make_sampler`. An object that has a seed keeps it. None takes ``guided`` where there
        is a cost model of the space and device, else ``guided-cold``; the logger says which and why.
    budget
        When to stop; a number is one of trials, None means 64.
    settings
        What else the strategy takes: ``{"options": {"copies": 5}}`` for ``lfbo``, ``{"model": path}`` for ``guided``.
        That path is of a file, or of a folder that has a model of each space that is searched.
    first
        Says what to try right after the default, as indices of the space: what somebody else would try.
    race
        How the best are told apart at the end of a live search.
    device
        ``auto``; ``cuda`` or ``cuda:N`` to measure on that GPU; ``replay``.
    cluster
        Address of a Ray cluster to compile and measure on, or ``auto``; None measures here.
    gpus
        GPUs to use at most; None takes one of this machine, or all of a cluster. A replay of one problem needs none,
        and is the same with any number.
    table
        The table to replay; None takes the shipped one that holds the problem.
    objective
        What runs around a kernel while it is timed: ``chain``, nothing but launches of the same kernel, or
        ``sandwich``, a kernel that writes its input and one that reads its output. None takes `DEFAULT_OBJECTIVE` of
        `tilescout.search.measure.protocol` where something is measured, and the table's where one is replayed.
    live
        How kernels are compiled and measured, where something is measured.
    library_kernels
        Kernels of the library that are timed before the search, in milliseconds each. The fastest of them races beside
        the best, and may be what is exported. Beyond those that its heuristic lists, a cost model says which.
    peers
        What others would run that is tuned behind the search, and races beside its best: ``triton`` is what
        TorchInductor's max-autotune chooses of its Triton kernels. It takes up to a minute and is never the answer.
    complement
        Search a second space too where its kernels may be faster on the problem, as those of ``gemm_streamk_sm90`` than
        those of ``gemm_sm90``: in a study of its own, at the same time, within the same budget. It is not done where
        nothing is measured, or by a sampler that is an object.
    store
        Folder of compiled kernels, studies and the MLflow store; created where it is missing.
    storage
        Where studies are instead: a folder, or the URL of a database, whose studies several tuners may search together.
    resume
        Go on with the newest study of the same space, problem, device, objective, sampler and seed, or with the one of
        them that is named here; in a database, beside the tuners that are at it.
    mlflow
        Where trials are logged: an MLflow URI; True for a SQLite file in the store; False for nowhere.
    progress
        Show a live bar on standard error, or in a notebook's cell.
    on_trial
        Called with every trial as it finishes, those of earlier runs first.
    on_result
        Called with the result of each study as soon as all are known and stored; MLflow gets pictures after that.

    Returns
    -------
    TuneResult
        All trials, the best of them, what it cost, and how the best was proven. Times in µs. A notebook shows it. Of
        two studies it is the one whose answer is faster; the other one is in the store.

    Raises
    ------
    DeviceError
        If a GPU is demanded and there is none, or it or the objective is unknown.
    ProblemError, SpaceError, SamplerError, ModelError
        If a name is unknown, or the kernel can't compute the problem.
    TableError
        If there is no table to replay, or it holds times by another objective.
    StoreError
        If the store, the study or MLflow can't be opened or written. What MLflow only stops taking later ends no
        search: the result's ``not_tracked`` says so.
    SearchInterrupted
        On Ctrl-C; it holds the best so far.
    """
    check_device(device)
    check_kinds(
        SamplerError,
        settings=(settings, Mapping | None), race=(race, RaceOptions | None),
        live=(live, LiveOptions | None), peers=(peers, Collection), complement=(complement, bool),
        progress=(progress, bool), on_trial=(on_trial, Callable), on_result=(on_result, Callable),
    )  # fmt: skip
    check_kinds(StoreError, resume=(resume, bool | str), storage=(storage, str | PathLike | None))
    if sampler is not None:
        check_sampler(sampler, settings or {})
    check_settings(settings or {})
    check_number("`library_kernels`", library_kernels, whole=True)
    if not (first is None or callable(first)):
        told = one_line(repr(first), 60)
        raise SamplerError(f"`first` can't be {told}: give a function of template and space that returns indices of it")
    if resume == "":
        raise StoreError("`resume` is an empty text: name a study, or give True for the newest one")
    live = patient_with(peers, live or LiveOptions())
    store, table = check_store(named_folder(store)), table_file(table)
    template = named_template(space, table) if isinstance(space, str) else given_template(space)
    parsed = template.parse(str(problem))  # an object too: it may be a problem of another template
    budget = budget if isinstance(budget, Budget) else Budget(trials=DEFAULT_TRIALS if budget is None else budget)

    with ExitStack() as stack:
        get_ready(device, template if live.compile.standby and cluster is None else None)
        if gpus is None and cluster is None:
            gpus = 1
        engine = stack.enter_context(
            make_engine(
                template, parsed, artifacts(store), device=device, cluster=cluster, gpus=gpus, table=table,
                options=live, objective=objective,
            )
        )  # fmt: skip
        warn_of_replay(engine, library_kernels, peers)
        engine.set_up(parsed)
        # The GPU is set up while what searches is imported: optuna, SciPy and MLflow's side take half a second.
        from tilescout.search.engines.complements import Complement
        from tilescout.search.tracking.result import TuneResult
        from tilescout.search.tuning.progress import StudyProgress
        from tilescout.search.tuning.study import SearchInterrupted, TuneOptions

        place, standing = studies(store, storage), template if live.compile.standby else None
        if mlflow:
            _heed_unlogged(place, bool(resume))
        trackers = stack.enter_context(_Trackers(mlflow, store, place, standing))
        options = TuneOptions(
            sampler if sampler is not None else chosen_sampler(template, engine.device, settings or {}),
            seed,
            budget,
            place,
            resume,
            race if race is not None else RaceOptions(),
            settings or {},
            first=_first(first, template, engine.space(parsed)) if first is not None else (),
            library_kernels=library_kernels,
            peers=peers,
        )
        by_name = isinstance(sampler, str | type | None)  # an object is of one search
        both = complement and by_name and Complement(engine).is_searched(parsed)
        bar = stack.enter_context(StudyProgress(budget.trials)) if progress else None
        told = _Told(engine, budget, bar, on_trial, on_result)
        try:
            return TuneResult.of(_search(engine, parsed, options, trackers.make, told, both))
        except SearchInterrupted as interrupted:
            raise SearchInterrupted(TuneResult.of(interrupted.result), interrupted.complete) from interrupted


def _first(
    first: Callable[[KernelTemplate, SearchSpace], Sequence[int]], template: KernelTemplate, space: SearchSpace
) -> Sequence[int]:
    """The indices that are tried first. None is of another space, or counted from the end, which would be another."""
    returned = first(template, space)
    try:
        indices = iter(returned)
    except TypeError as error:
        told = one_line(repr(returned), 60)
        raise SamplerError(f"`first` returned {told}, expected a sequence of indices of the space") from error
    found = list(indices)
    for each in found:
        if not isinstance(each, Integral) or isinstance(each, bool) or not 0 <= int(each) < len(space):
            raise SamplerError(f"`first` names configuration {each!r}, allowed are 0 to {len(space) - 1}")
    return found


def _search(
    engine: Engine,
    problem: Problem,
    options: "TuneOptions",
    make_tracker: "Callable[[StudyInfo, str | None], Tracker]",
    told: "_Told",
    both: bool,
) -> "StudyResult":
    """The result of a search of one space, or the faster one of two that are searched at the same time.

    Raises
    ------
    SearchInterrupted, SuiteInterrupted
        On Ctrl-C; the latter if no search had begun.
    """
    from tilescout.search.engines.evaluator import Evaluator
    from tilescout.search.studies.answers import fastest
    from tilescout.search.tuning.study import SearchInterrupted, run_study
    from tilescout.search.tuning.suite import SLICE, SuiteInterrupted, tune_suite

    if both:
        try:
            found = tune_suite(
                engine, [problem], options, make_tracker, lambda _, trial: told.trial(trial),
                lambda _, text: told.phase(text), told.results, slice=options.budget.trials or SLICE,
            )  # fmt: skip
        except SuiteInterrupted as interrupted:
            if not interrupted.results:
                raise
            raise SearchInterrupted(fastest(interrupted.results), interrupted.complete) from interrupted
        return fastest(found)
    with Evaluator(engine, problem) as evaluator:
        if not evaluator.measures_anew:
            _warn_of_hindsight(make_sampler(options.sampler, evaluator.space, options.seed, **options.settings))
        return run_study(
            evaluator, options, make_tracker, told.trial,
            on_result=lambda result: told.results([result]), on_phase=told.phase,
        )  # fmt: skip


class _Told:
    """Whom `tune` tells of its search: its caller, and a live bar.

    Parameters
    ----------
    engine
        What measures; the log says so before the first trial is told.
    budget
        When the search stops.
    bar
        The bar; None for none.
    on_trial, on_result
        See `tune`.
    """

    def __init__(
        self,
        engine: Engine,
        budget: Budget,
        bar: "StudyProgress | None",
        on_trial: "Callable[[TrialRecord], None]",
        on_result: "Callable[[TuneResult], None]",
    ) -> None:
        self._engine, self._budget, self._bar = engine, budget, bar
        self._on_trial, self._on_result = on_trial, on_result
        self._source_said = False

    def trial(self, trial: "TrialRecord") -> None:
        """Tell of a trial."""
        if not self._source_said:
            self._source_said = True
            _LOG.info("%s", self._engine.provenance.description)
            if self._bar is not None:
                self._bar.unit = self._engine.provenance.unit
        if self._bar is not None:
            self._bar(trial)
        self._on_trial(trial)

    def phase(self, text: str) -> None:
        """Tell what is done from now on."""
        if self._bar is not None:
            self._bar.phase(text)

    def results(self, results: "Sequence[StudyResult]") -> None:
        """Tell of the results of all studies."""
        from tilescout.search.tracking.result import TuneResult
        from tilescout.search.tuning.progress import why_ended

        if self._bar is not None:
            self._bar.end(why_ended(results, self._budget))
        for result in results:
            self._on_result(TuneResult.of(result))


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse settings of a sampler that name a model's file which is not there, before anything is begun.

    Raises
    ------
    ModelError
        If it is not.
    SamplerError
        If a setting is called like an argument of its own.
    """
    check_setting_names(settings)
    model = settings.get("model")
    if isinstance(model, str):
        from tilescout.search.samplers.guided import SHIPPED

        model = None if model == SHIPPED else named_model(model)
    if isinstance(model, Path):
        check_exists(model)


def warn_of_replay(engine: Engine, library_kernels: int, peers: Sequence[str]) -> None:
    """Warn of what was asked for and a replay can't do: time kernels of the library, and tune peers; see `tune`."""
    if engine.measures_anew:
        return
    if library_kernels != CANDIDATES:
        _LOG.warning(
            "no kernel of the library is timed, and %d were asked for: nothing is measured in a replay, and the "
            "library's best is the one that was recorded",
            library_kernels,
        )
    if peers:
        _LOG.warning("%s: no peer is tuned, because nothing is measured in a replay", " and ".join(peers))


def _heed_unlogged(place: Path | str, resume: bool) -> None:
    """Wait for what earlier searches left to be logged, where one may be gone on with; warn of what did not arrive."""
    from tilescout.search.tracking.standing.logger import wait_for_what_is_under_way
    from tilescout.search.tracking.standing.unlogged import unlogged

    if resume:
        wait_for_what_is_under_way(place)
    for study, why in unlogged(place).items():
        _LOG.warning("study %s is not in MLflow: %s; resume it to deliver it", study, why)


def _warn_of_hindsight(sampler: "SpaceSampler") -> None:
    if sampler.hindsight:
        _LOG.warning(
            "the cost model was trained on measurements of this very problem: what it finds here says nothing of how "
            "well it searches; a model that was trained without the problem makes a fair test"
        )


def chosen_sampler(template: KernelTemplate, device: Device, settings: Mapping[str, Any]) -> str:
    """The sampler of a search for which none is named; the log says which and why."""
    choice = choose_sampler(template, device.name, with_model=settings.get("model") is not None)
    _LOG.info("searched by %s: %s", choice.sampler, choice.reason)
    return choice.sampler


class _Trackers:
    """Makes the tracker of a study, in a store that can be opened before the study is known.

    Parameters
    ----------
    mlflow
        See `tune`.
    store
        The folder of the default store.
    place
        Where the studies are.
    template
        What is searched, if a process that stands by may log it.
    """

    def __init__(self, mlflow: str | bool, store: Path, place: Path | str, template: KernelTemplate | None) -> None:
        self._opening: Opening | None = None
        self._place, self._template = place, template
        self._logger: StandingLogger | None = None
        self._root: Path | None = None
        # Of a path MLflow would make a store in the working directory, and an empty text would log nothing.
        if not (is_address(mlflow) if isinstance(mlflow, str) else isinstance(mlflow, bool)):
            raise StoreError(f"`mlflow` can't be {mlflow!r}: allowed are True, False and the URI of a store as text")
        if mlflow:
            from tilescout.search import tracking

            self._uri = mlflow if isinstance(mlflow, str) else ""
            if mlflow is True:
                self._uri, self._root = tracking.default_store(store)
            self._opening = tracking.Opening(self._uri)

    def make(self, info: "StudyInfo", run_id: str | None) -> "Tracker":
        """The tracker of a study."""
        from tilescout.search.tuning.trackers import NoTracker

        if self._opening is None:
            return NoTracker()
        if self._logger is not None:
            return self._logger.study(info.name, run_id)
        from tilescout.search.tracking import MlflowTracker
        from tilescout.search.tracking.standing.unlogged import clear

        if "://" not in str(self._place):
            clear(self._place, info.name)
        return MlflowTracker(self._uri, self._root, info, run_id, opening=self._opening)

    def __enter__(self) -> Self:
        if self._opening is not None:
            self._opening.__enter__()
            if self._template is not None:
                from tilescout.search.tracking import standing_logger

                self._logger = standing_logger(self._uri, self._root, self._place, self._template)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._logger is not None:
            self._logger.close()
        if self._opening is not None:
            self._opening.__exit__(*exception)
