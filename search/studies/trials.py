"""The trials of a study, as optuna stores them: outcomes, places, predictions, and those to be tried again."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from typing import Any, NamedTuple

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from tilescout.costmodel.estimator import Expected
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.studies.ledger import GIVEN_UP, distributions, proposed
from tilescout.search.studies.optuna_hooks import all_trials, live_trial, queued_parameters, set_system_attribute
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.spaces.errors import MALFORMED, StoreError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace

MEASUREMENT = "measurement"  # the user attribute of a trial that holds its outcome
_EXPECTED = "expected"  # the user attribute of a trial that holds the prediction of a cost model
INFO = "info"  # the user attribute of a study that holds its description
_AGAIN = "again"  # the user attribute of a trial that names the interrupted one whose configuration it tries again
TRACKING_RUN = "tracking_run"  # the user attribute of a study that names its run
RESULT = "result"  # the user attribute of a study that holds the evidence of its last run

SEEN = "tilescout:seen"
"""The system attribute of a trial that holds the last place that its tuner knew of when it asked for it; 0 for none."""

PLACE = "tilescout:place"
"""The system attribute of a trial that holds its place among those told: from 1, and behind all that its tuner knew of.

Trials of several tuners may have the same place; the smaller number comes first then. Older trials have none.
"""


class Count(NamedTuple):
    """`SEEN` or `PLACE` of a trial.

    Attributes
    ----------
    number
        The count. It compares with any other of the same study.
    search
        The joint search that counted, over all of its studies: with others of that search it compares, too. None where
        the study was searched alone.
    """

    number: int
    search: str | None = None


def mark(study: optuna.Study, trial: optuna.Trial, key: str, count: Count) -> None:
    """Store `SEEN` or `PLACE` of a trial that is in flight."""
    value = count.number if count.search is None else [*count]
    with suppress(UpdateFinishedTrialError):  # another tuner has settled it
        set_system_attribute(study, study.get_trials(deepcopy=False)[trial.number], key, value)


def count_of(trial: FrozenTrial, key: str) -> Count | None:
    """`SEEN` or `PLACE` of a trial; None if it has none."""
    stored = trial.system_attrs.get(key)
    if isinstance(stored, int):
        return Count(stored)
    match stored:
        case [int(number), str(search)]:
            return Count(number, search)
    return None


def place_of(trial: FrozenTrial) -> int:
    """The place of a trial among those told; 0 if none is known."""
    stored = trial.system_attrs.get(PLACE)
    if isinstance(stored, int):  # asked of all trials at every proposal
        return stored
    place = count_of(trial, PLACE)
    return place.number if place is not None else 0


def joint_search(studies: Iterable[optuna.Study]) -> str:
    """The `Count.search` of studies that are searched together: the same for all of their tuners, and later on."""
    names = sorted(study.study_name for study in studies)
    return sha256(json.dumps(names).encode()).hexdigest()[:12]


def codes(space: SearchSpace, params: dict[str, Any]) -> list[int]:
    """A trial's parameters as a row of codes."""
    return [params[knob.name] for knob in space.knobs]


def enqueue(study: optuna.Study, space: SearchSpace, index: int) -> None:
    """Have a study try a configuration before all that its sampler proposes."""
    study.enqueue_trial(dict(zip(distributions(space), map(int, space.codes[index]), strict=True)))


def record_expected(trial: optuna.Trial, expected: Expected) -> None:
    """Store the prediction for a trial that is about to be measured."""
    with suppress(UpdateFinishedTrialError):  # another tuner has settled it
        trial.set_user_attr(_EXPECTED, asdict(expected))


def keep_outcome(trial: optuna.Trial, measurement: Measurement) -> None:
    """Store an outcome whose trial is finished later: it is not lost if this process is killed before."""
    with suppress(UpdateFinishedTrialError):  # another tuner has settled it
        trial.set_user_attr(MEASUREMENT, measurement.to_dict())


def give_up(study: optuna.Study, trial: optuna.Trial) -> None:
    """Finish a trial that was in flight when its search ended; a search that goes on may propose the same again."""
    with suppress(UpdateFinishedTrialError):  # another tuner has settled it
        set_system_attribute(study, study.get_trials(deepcopy=False)[trial.number], GIVEN_UP, True)
    record_outcome(study, trial, Measurement(Status.INTERRUPTED, "the search ended before this trial did"))


def record_outcome(study: optuna.Study, trial: optuna.Trial, measurement: Measurement) -> bool:
    """Store an outcome and finish its trial: complete with the time in µs, or failed.

    Returns
    -------
    bool
        False if the trial is finished already with another outcome: another tuner has settled it.
    """
    try:
        trial.set_user_attr(MEASUREMENT, measurement.to_dict())
        _tell(study, trial, measurement)
    except UpdateFinishedTrialError:
        # A database may be lost after it has stored the outcome and before it says so.
        return outcome(study.get_trials(deepcopy=False)[trial.number]) == measurement
    return True


def _tell(study: optuna.Study, trial: optuna.Trial, measurement: Measurement) -> None:
    if measurement.ok:
        study.tell(trial, measurement.time_us, skip_if_finished=True)
    elif measurement.pilot_us is not None and not measurement.failed:
        # The value of a pruned trial is its pilot's time: samplers learn about how slow it is.
        trial.report(measurement.pilot_us, step=0)
        study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
    else:
        study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)


def recover(study: optuna.Study, space: SearchSpace, lost: Callable[[FrozenTrial], bool] = lambda trial: True) -> int:
    """Settle the trials that a killed search left running; return how many are to be tried again.

    A trial whose outcome was stored is finished with it, in a place behind all others: only now is it told. Any other
    is marked as interrupted, and its configuration, if it had one, is queued again. If this process is killed
    meanwhile, the next call does the rest.

    Parameters
    ----------
    study, space
        The study.
    lost
        Says which running trials no process works on any more.
    """
    again = 0
    trials = _sound(all_trials(study))
    place = max(map(place_of, trials), default=0)
    queued = {trial.user_attrs.get(_AGAIN) for trial in trials}
    for frozen in trials:
        if frozen.state is not TrialState.RUNNING or not lost(frozen):
            continue
        trial = live_trial(study, frozen)
        if MEASUREMENT in frozen.user_attrs:
            place += 1
            mark(study, trial, PLACE, Count(place))  # it may have one of when its search was about to tell it
            _tell(study, trial, _outcome(frozen))
            continue
        params = proposed(frozen, space)
        if params is not None:
            if frozen.number not in queued:
                study.enqueue_trial(params, user_attrs={_AGAIN: frozen.number})
            again += 1
        record_outcome(study, trial, Measurement(Status.INTERRUPTED, "the search ended before this trial did"))
    return again


def _sound(trials: Sequence[FrozenTrial]) -> Sequence[FrozenTrial]:
    """The trials, once each has attributes; optuna takes those of a file as they are.

    Raises
    ------
    StoreError
        If one has something else in their place.
    """
    for frozen in trials:
        attributes: tuple[object, object] = frozen.user_attrs, frozen.system_attrs
        if not all(isinstance(each, dict) for each in attributes):
            raise damaged(frozen.number, TypeError("its attributes are no mapping"))
    return trials


def outcome(frozen: FrozenTrial) -> Measurement | None:
    """The outcome of a finished trial; None if it has none, or was interrupted."""
    if MEASUREMENT not in frozen.user_attrs or not frozen.state.is_finished():
        return None
    measurement = _outcome(frozen)
    return measurement if measurement.status is not Status.INTERRUPTED else None


def was_tried(frozen: FrozenTrial) -> bool:
    """Whether a trial was tried, or still is: not if its search ended before it did."""
    stored = frozen.user_attrs.get(MEASUREMENT)
    return not (isinstance(stored, dict) and stored.get("status") == Status.INTERRUPTED)


def was_given(frozen: FrozenTrial, trials: Sequence[FrozenTrial]) -> bool:
    """Whether no sampler proposed a trial of a study, or the one that it tries again: it was queued from the start."""
    seen = {frozen.number}
    while isinstance(number := frozen.user_attrs.get(_AGAIN), int) and 0 <= number < len(trials) and number not in seen:
        seen.add(number)
        frozen = trials[number]
    return bool(queued_parameters(frozen))


def trial_record(frozen: FrozenTrial, space: SearchSpace) -> TrialRecord | None:
    """The record of a finished trial; None if it has no outcome, or was interrupted."""
    measurement = outcome(frozen)
    if measurement is None:
        return None
    try:
        index = int(space.find(codes(space, frozen.params)))
    except MALFORMED as error:
        raise damaged(frozen.number, error) from error
    if index < 0:
        raise StoreError(f"trial {frozen.number} holds a configuration that the space no longer has; start a new study")
    return as_record(frozen, index, space[index], measurement)


def as_record(frozen: FrozenTrial, index: int, configuration: Configuration, measurement: Measurement) -> TrialRecord:
    """The record of a finished trial."""
    if frozen.datetime_start is None or frozen.datetime_complete is None:
        raise damaged(frozen.number, ValueError("it has no times"))
    return TrialRecord(
        number=frozen.number,
        index=index,
        configuration=configuration,
        measurement=measurement,
        started=frozen.datetime_start.timestamp(),
        finished=frozen.datetime_complete.timestamp(),
        expected=_expected(frozen),
    )


def _expected(frozen: FrozenTrial) -> Expected | None:
    stored = frozen.user_attrs.get(_EXPECTED)
    try:
        return Expected(**stored) if stored else None
    except TypeError as error:
        raise damaged(frozen.number, error) from error


def _outcome(frozen: FrozenTrial) -> Measurement:
    try:
        measurement = Measurement.from_dict(frozen.user_attrs[MEASUREMENT])
        if frozen.state is TrialState.COMPLETE and not _same(frozen.values, measurement.time_us):
            raise ValueError(f"its value of {frozen.values!r:.100} is not the time that was measured")
    except MALFORMED as error:
        raise damaged(frozen.number, error) from error
    return measurement


def _same(values: Sequence[float], time_us: float) -> bool:
    return len(values) == 1 and math.isfinite(time_us) and math.isclose(values[0], time_us, rel_tol=1e-6)


def finished_trials(
    study: optuna.Study, space: SearchSpace, read: Callable[[FrozenTrial], TrialRecord | None] | None = None
) -> Sequence[TrialRecord]:
    """The finished trials of a study, in the order of their numbers.

    Parameters
    ----------
    study, space
        The study.
    read
        Makes the record of one, None where it has none; see `trial_record`.
    """
    read = read or (lambda frozen: trial_record(frozen, space))
    finished = (frozen for frozen in _sound(study.get_trials(deepcopy=False)) if frozen.state.is_finished())
    return [record for record in map(read, finished) if record is not None]


def record_info(study: optuna.Study, info: StudyInfo) -> None:
    """Store the description of a study, so that it can be read without its template."""
    described = info.to_dict()
    if study.user_attrs.get(INFO) != described:
        study.set_user_attr(INFO, described)


def record_result(study: optuna.Study, result: StudyResult) -> None:
    """Store the evidence of a search: its race is not among the trials."""
    study.set_user_attr(RESULT, result.evidence())


def damaged(number: int, error: Exception) -> StoreError:
    """The error of a trial whose records are not of the form that they should have."""
    return StoreError(f"trial {number} of the study is damaged ({one_line(repr(error), 200)})")
