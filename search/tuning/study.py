"""One study, from its first trial to its result."""

import logging
import operator
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import optuna

from tilescout.search.engines.engine import CannotMeasureError
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.library_candidates import known_or_why
from tilescout.search.measure.library_best import BESIDE, CANDIDATES, LibraryBest, as_raced
from tilescout.search.measure.protocol import UNNAMED
from tilescout.search.measure.race import RaceOptions, import_ahead, race_fastest
from tilescout.search.samplers import AnySampler, make_sampler
from tilescout.search.samplers.base import SpaceSampler
from tilescout.search.samplers.registry import check_setting_names
from tilescout.search.studies.ledger import seen
from tilescout.search.studies.optuna_hooks import all_trials
from tilescout.search.studies.places import study_store
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.studies.sharing import SharingOptions, SoleTuner, Tuner
from tilescout.search.studies.trials import INFO, TRACKING_RUN, enqueue, finished_trials, record_info, record_result
from tilescout.search.tuning.audience import Audience
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.earlier import recalled
from tilescout.search.tuning.lane import Lane
from tilescout.search.tuning.loop import Loop, search_alone
from tilescout.search.tuning.resuming import check_resumable
from tilescout.search.tuning.trackers import LateTracker, NoTracker, Tracker
from tilescout.search.tuning.wall import WallClock
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.checking import check_number
from tilescout.spaces.errors import MALFORMED, SamplerError, StoreError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template
from tilescout.spaces.texts import file_name

_LOG = logging.getLogger(__name__)

QUIET_SECONDS = 20.0
"""Seconds of a live search before its tracker is made: most have ended by then, and so have small suites. Beside a
thread that imports and calls MLflow, a search of stored kernels waited 0.1 s for each proposal on an H200 host, and
next to nothing alone (2026-11-22, `experiments/results/wall-time.md`)."""

Result = TypeVar("Result")

_ABOUT = "about"  # the user attribute of a study that says what it is about


@dataclass(frozen=True)
class TuneOptions:
    """The options of a search: its strategy, its budget, and where its study is kept.

    Attributes
    ----------
    sampler, seed
        The strategy and its seed; see `make_sampler`. An object that has a seed keeps it.
    budget
        When to stop.
    studies
        Where studies are kept: a folder, for their journals, or the URL of a database (``postgresql://...``), whose
        studies several tuners may search together.
    race
        How the best are told apart at the end, where they can be measured anew.
    settings
        What else the strategy takes; see `make_sampler`.
    resume
        Continue the newest study of the same space, problem, device, objective, sampler and seed, or the one of them
        that is named here, instead of starting another; in a database, beside the tuners that are at it.
    first
        Indices of configurations that a new study tries right after the default, in this order: what others would try.
    sharing
        How tuners of one study keep track of each other.
    library_kernels
        Kernels of the library that are timed before the search; the fastest of them races beside its best.
    peers
        What others would run that is tuned, and races, too: see `tilescout.spaces.peers`.
    """

    sampler: AnySampler
    seed: int
    budget: Budget
    studies: Path | str
    resume: bool | str = False
    race: RaceOptions = field(default_factory=RaceOptions)
    settings: Mapping[str, Any] = field(default_factory=dict)
    first: Sequence[int] = ()
    sharing: SharingOptions = field(default_factory=SharingOptions)
    library_kernels: int = CANDIDATES
    peers: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Make the seed a number of Python's own, which a study can write; an element of an array is none.

        Raises
        ------
        SamplerError, StoreError
            If it is no whole number from 0 on, or another option is of a kind that it can't be of.
        """
        check_kinds(
            SamplerError,
            budget=(self.budget, Budget), race=(self.race, RaceOptions), settings=(self.settings, Mapping),
            first=(self.first, Collection), sharing=(self.sharing, SharingOptions), peers=(self.peers, Collection),
        )  # fmt: skip
        check_kinds(StoreError, studies=(self.studies, str | PathLike), resume=(self.resume, bool | str))
        check_setting_names(self.settings)
        check_number("`library_kernels`", self.library_kernels, whole=True)
        try:
            seed = -1 if isinstance(self.seed, bool) else operator.index(self.seed)
        except TypeError:
            seed = -1
        if seed < 0:
            raise SamplerError(f"a seed can't be {self.seed!r}, allowed are 0, 1, 2, ...")
        object.__setattr__(self, "seed", seed)


class SearchInterrupted(KeyboardInterrupt):
    """A search was ended by Ctrl-C; all that is finished is stored, and the search can be resumed.

    Attributes
    ----------
    result
        The best so far, without a race.
    complete
        Whether the search had ended, so that the result is all there is: only what shows it was cut short.
    """

    def __init__(self, result: StudyResult, complete: bool = False) -> None:
        super().__init__("the search was interrupted")
        self.result = result
        self.complete = complete


def run_study(
    evaluator: Evaluator,
    options: TuneOptions,
    make_tracker: Callable[[StudyInfo, str | None], Tracker] = lambda info, run_id: NoTracker(),
    on_trial: Callable[[TrialRecord], None] = lambda trial: None,
    search: Loop = search_alone,
    on_result: Callable[[StudyResult], None] = lambda result: None,
    meanwhile: Callable[[], None] = lambda: None,
    prepared: Callable[[], None] = lambda: None,
    on_phase: Callable[[str], None] = lambda phase: None,
    meet: Callable[[StudyResult], StudyResult] = lambda result: result,
) -> StudyResult:
    """Search for the fastest configuration.

    Trial 0 measures the default configuration. Every outcome is on disk before the next is asked for: a search that is
    killed at any moment can be resumed with nothing finished lost.

    Parameters
    ----------
    evaluator
        Tries configurations of the kernel on the problem.
    options
        See `TuneOptions`.
    make_tracker
        Called once with what the study is about and, when a tracked study is resumed, its run.
    on_trial
        Called with every trial as it finishes, those of earlier runs first.
    search
        The loop that asks and tells the study; for a suite, one that does so in turns.
    on_result
        Called with the result as soon as it is known and stored; the tracker takes seconds more.
    on_phase
        Called with what is done from now on, in a few words: what comes behind the trials takes seconds too.
    meanwhile
        Called once, while the GPU is set up and the first kernels are compiled: for what takes seconds to begin.
    prepared
        Called once before anything is compiled, with all ready that depends on no outcome.
    meet
        Called with the result of the race of its best; it returns it with what a race against others' answers tells.

    Returns
    -------
    StudyResult
        All trials of the study, the best among them.

    Raises
    ------
    StoreError
        If the study can't be opened or written.
    SamplerError
        If the sampler is unknown.
    SearchInterrupted
        On Ctrl-C, with the best so far.
    """
    check_kinds(SamplerError, evaluator=(evaluator, Evaluator), options=(options, TuneOptions))
    clock = WallClock(evaluator)
    # The GPU is ready before the sampler is, and has nothing else to do.
    ask_library = partial(known_or_why, partial(evaluator.library_best, options.library_kernels))
    library_answer = in_thread(ask_library, "candidates").result if evaluator.has_gpu else ask_library
    space, sampler = evaluator.space, _ready_sampler(evaluator, options)
    options = replace(options, seed=options.seed if sampler.seed is None else sampler.seed)
    prepared()
    _compile_first(evaluator, sampler, options)
    meanwhile()
    evaluator.library_us()  # the GPU is ready
    clock.end("set up")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with ExitStack() as stack:
        store, name = study_store(options.studies), _base_name(evaluator, sampler, options)
        study, tuner = stack.enter_context(store.join(name, options.resume, sampler, space, options.sharing))
        with tuner.exclusive():
            with _refused_if_damaged(study):
                info = _about(study, sampler, evaluator, options)
                tuner.take_over()
                before = _finished_before(study, tuner, space)
            run_id = study.user_attrs.get(TRACKING_RUN)
            make = partial(make_tracker, info, run_id)
            # Tuners that share a study share its run: whoever is first makes it before another looks for it.
            quiet = QUIET_SECONDS if evaluator.measures_anew else 0.0
            tracker = LateTracker(make, quiet) if isinstance(tuner, SoleTuner) else make()
            audience = stack.enter_context(Audience(study, tuner, tracker, run_id, on_trial))
        audience.begin(before)
        clock.end("propose")
        library_best, unknown = library_answer()
        clock.end("candidates")
        if library_best is not None and evaluator.measures_anew:
            with tuner.exclusive():
                _try_like(study, evaluator, library_best)
        if evaluator.measures_anew:
            in_thread(import_ahead, "statistics")
        default = _index_of(info.default, space)
        in_full = () if default is None else (default,)
        try:
            lane = Lane(study, evaluator, info.library_us, audience.show, in_full, tuner)
            stopped = search(lane, options.budget)
        except KeyboardInterrupt as interrupt:
            told = StudyResult(info, audience.cut_short(space), clock.seconds)
            raise SearchInterrupted(_with_library(evaluator, told, library_best, unknown)) from interrupt
        found, earlier = finished_trials(study, space), {trial.number for trial in before}
        clock.end_search([trial for trial in found if trial.number not in earlier])
        result = StudyResult(info, found, clock.seconds, stopped=stopped or "")
        result = _with_library(evaluator, result, library_best, unknown)
        result = _with_finals(evaluator, options, result, clock, on_phase, meet)
        record_result(study, result)
        on_result(result)
        on_phase("log the trials and pictures; the result is stored")
        return _presented(audience, result)


@contextmanager
def _refused_if_damaged(study: optuna.Study) -> Iterator[None]:
    """Tell of records that are not of the form that a study has, whoever wrote them."""
    try:
        yield
        if len(study.directions) != 1:
            raise ValueError(f"it has {len(study.directions)} objectives")
    except MALFORMED as error:
        raise StoreError(
            f"the study {study.study_name} is damaged ({one_line(error, 200)}): start a new one instead of going on"
        ) from error


def _finished_before(study: optuna.Study, tuner: Tuner, space: SearchSpace) -> list[TrialRecord]:
    """The trials that are finished when a tuner joins a study; the tuner looks for later ones from here on."""
    before = {trial.number: trial for trial in finished_trials(study, space)}
    before |= {trial.number: trial for trial in tuner.look()[0]}  # one may have finished in between
    return [before[number] for number in sorted(before)]


def _ready_sampler(evaluator: Evaluator, options: TuneOptions) -> SpaceSampler:
    """The sampler of a search, which has learned all that is known before a trial."""
    space = evaluator.space
    settings = recalled(options.sampler, options.studies, evaluator, (space.problem,)) | dict(options.settings)
    sampler = make_sampler(options.sampler, space, options.seed, **settings)
    if type(sampler).find_stored is not SpaceSampler.find_stored:  # the store is looked through for it
        sampler.find_stored(evaluator.stored(), evaluator.stock(), evaluator.kernels)
    sampler.get_ready()
    return sampler


def _with_library(evaluator: Evaluator, result: StudyResult, best: LibraryBest | None, unknown: str) -> StudyResult:
    """The result with the library's best, or why it is not known; where all kernels are its own, trials tell it."""
    if best is None and not unknown:
        measured = {trial.index: trial.measurement for trial in result.trials}
        best, unknown = known_or_why(lambda: evaluator.best_of_own(measured))
    return replace(result, library_best=best, no_library_best=unknown)


def _with_finals(
    evaluator: Evaluator,
    options: TuneOptions,
    result: StudyResult,
    clock: WallClock,
    on_phase: Callable[[str], None],
    meet: Callable[[StudyResult], StudyResult],
) -> StudyResult:
    """The result of a search with its peers and its race, where they can be measured, and with its seconds.

    Raises
    ------
    SearchInterrupted
        On Ctrl-C, with all but what was interrupted.
    """
    try:
        if options.peers and evaluator.measures_anew:
            on_phase(f"tune {' and '.join(options.peers)}")
            result = replace(result, peers=tuple(evaluator.peers(options.peers)))
            clock.end("peers")
        on_phase("race the best" if evaluator.measures_anew else "store the result")
        result = _race(evaluator, result, _index_of(result.info.default, evaluator.space), options)
        result = meet(result)
    except KeyboardInterrupt as interrupt:
        raise SearchInterrupted(replace(result, seconds=clock.seconds, wall=clock.parts)) from interrupt
    clock.end("race")
    return replace(result, seconds=clock.seconds, wall=clock.parts)


def _presented(audience: Audience, result: StudyResult) -> StudyResult:
    """The result, once it was delivered, with the page that shows it, or with why it was not delivered.

    Raises
    ------
    SearchInterrupted
        On Ctrl-C, with the complete result.
    """
    try:
        audience.settle(result.trials)
        result = replace(result, page=audience.page())
        audience.finish(result)
    except StoreError as error:  # the study has every trial: what was found is not lost with the tracker
        return replace(result, not_tracked=str(error))
    except KeyboardInterrupt as interrupt:
        raise SearchInterrupted(result, complete=True) from interrupt
    return result


def _compile_first(evaluator: Evaluator, sampler: SpaceSampler, options: TuneOptions) -> None:
    """Have the compilers begin with what a new study is going to try first: a GPU takes seconds to be set up."""
    if options.resume or not evaluator.measures_anew or sampler.lookahead is None:
        return
    given = _given(evaluator, options)[: sampler.lookahead]
    for index in given:
        evaluator.expect(index)
    trials = options.budget.trials if options.budget.trials is not None else sampler.lookahead
    for index in sampler.first(given, min(trials, evaluator.capacity, sampler.lookahead) - len(given)):
        evaluator.expect(index)


def _given(evaluator: Evaluator, options: TuneOptions) -> list[int]:
    """Indices that a study tries first, whatever its sampler: the default, and those that come right after."""
    template, space = evaluator.template, evaluator.space
    default = _index_of(template.default_in(space), space)
    ahead = [] if default is None else [default]
    return list(dict.fromkeys([*ahead, *options.first, *template.first_in(space)]))


def _index_of(configuration: Configuration, space: SearchSpace) -> int | None:
    return space.index(configuration) if configuration in space else None


def _race(evaluator: Evaluator, result: StudyResult, default: int | None, options: TuneOptions) -> StudyResult:
    """The result with the final between the best trials, where they can be measured anew and the default is right."""
    timed = {trial.index: timing for trial in result.trials if (timing := trial.measurement.timing) is not None}
    if default not in timed or not evaluator.measures_anew:
        return result
    best, peers = result.library_best, {BESIDE - at: peer for at, peer in enumerate(result.peers, start=1)}
    at_best = BESIDE
    if best is not None and best.space == result.info.space:  # it is one of the trials
        at_best = evaluator.space.index(best.configuration)
    others = [*([] if best is None else [at_best]), *(number for number, peer in peers.items() if not peer.error)]
    for beside in [others, ()] if others else [()]:  # a kernel of others must not cost us the race
        try:
            race = race_fastest(timed, default, evaluator.race, options.race, options.seed, beside, evaluator.elsewhere)
        except CannotMeasureError as error:
            result = replace(result, not_raced=str(error))
            continue
        best = None if best is None else as_raced(best, race, at_best)
        raced = tuple(as_raced(peer, race, number) for number, peer in peers.items())
        return replace(result, race=race, library_best=best, peers=raced, not_raced="")
    return result


def in_thread(call: Callable[[], Result], name: str) -> "Future[Result]":
    """The future of a call that is made from now on, in a thread of this name, which keeps no process from ending."""
    future: Future[Result] = Future()

    def make() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # of whoever asks for the result
            future.set_exception(error)

    threading.Thread(target=make, name=name, daemon=True).start()
    return future


def _try_like(study: optuna.Study, evaluator: Evaluator, best: LibraryBest) -> None:
    """Have a study try early what divides the work as the library's best kernel does."""
    space, library = evaluator.space, find_template(best.space)
    columns = {name: np.array([value]) for name, value in best.configuration.items()}
    if (tiling := library.tiling(columns, space.problem)) is None:
        return
    known = set(seen(study, space).tolist())
    for index in evaluator.template.like(space, tiling):  # what promises most is first
        if index not in known:
            enqueue(study, space, index)
            evaluator.expect(index)


def _base_name(evaluator: Evaluator, sampler: SpaceSampler, options: TuneOptions) -> str:
    """The beginning that names of studies of the same space, problem, device, objective, sampler and seed share."""
    parts = (evaluator.template.name, evaluator.space.problem, _place(evaluator), sampler.label, f"s{options.seed}")
    return file_name("-".join(map(str, parts)).replace(":", "-"))


def _place(evaluator: Evaluator) -> str:
    place, objective = f"{evaluator.device.name}-{evaluator.provenance.kind}", evaluator.provenance.objective
    return place if objective is UNNAMED else f"{place}-{objective}"


def _about(study: optuna.Study, sampler: SpaceSampler, evaluator: Evaluator, options: TuneOptions) -> StudyInfo:
    """The description of a study; the first run begins it.

    Raises
    ------
    StoreError
        If another search than this one began it.
    """
    template, space = evaluator.template, evaluator.space
    stored = study.user_attrs.get(_ABOUT)
    if stored is None:
        stored = _begun(study, sampler, evaluator, options)
    else:
        check_resumable(study.study_name, stored, study.user_attrs.get(INFO), sampler, evaluator)
    info = StudyInfo(
        name=study.study_name,
        space=template.name,
        space_hash=stored["space_hash"],
        problem=space.problem,
        device=evaluator.device.name,
        sampler=sampler.label,
        seed=options.seed,
        provenance=evaluator.provenance,
        default=template.default_in(space),
        library=evaluator.library,
        library_us=stored["library_us"],
        knobs={knob.name: knob.values for knob in space.knobs},
        size=len(space),
        model=str(sampler.model_file or ""),
        hindsight=sampler.hindsight,
        model_sha256=sampler.model_sha256,
        model_object=sampler.model_object,
    )
    record_info(study, info)
    return info


def _begun(study: optuna.Study, sampler: SpaceSampler, evaluator: Evaluator, options: TuneOptions) -> Mapping[str, Any]:
    """Enqueue the default and what is to come right after, and store what the study is about, which is returned."""
    # These first: a search that is killed in between does this again, and none is queued twice.
    queued = len(all_trials(study))
    for index in _given(evaluator, options)[queued:]:
        enqueue(study, evaluator.space, index)
    about = {
        "space_hash": evaluator.template.source_hash,
        "library_us": evaluator.library_us(),
        "objective": str(evaluator.provenance.objective),
        "model_sha256": sampler.model_sha256,
    }
    study.set_user_attr(_ABOUT, about)
    return about
