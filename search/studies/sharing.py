"""Tuners that share a study: which trial belongs to which tuner, which tuners are alive, and mutual exclusion."""

import logging
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from threading import Event, Thread
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from tilescout.search.studies.optuna_hooks import all_trials
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.trials import recover, trial_record
from tilescout.spaces.errors import MALFORMED
from tilescout.spaces.space import SearchSpace

_TUNER = "tuner"  # the user attribute of a trial that names its tuner
_BEAT = "beat:"  # followed by a tuner's name: the user attribute of a study with the tuner's heartbeat, a count
_HEIR = "heir:"  # followed by a tuner's name: the user attribute of a study that names the heir of a dead tuner
_LEFT = "left"  # the last heartbeat of a tuner that ended normally
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_PAUSE = 0.25  # seconds between two looks at what others have in flight


class Insist(Protocol):
    """Calls a function, perhaps several times, and returns its result."""

    def __call__(self, action: Callable[[], _T], /) -> _T:
        """Call it."""


def call(action: Callable[[], _T], /) -> _T:
    """Call it once."""
    return action()


@dataclass(frozen=True)
class SharingOptions:
    """How tuners of one study keep track of each other.

    Attributes
    ----------
    beat
        Seconds between two heartbeats of a tuner.
    patience
        A tuner is presumed dead when its heartbeat stood still for so many heartbeats of another tuner. Heartbeats are
        counted, not seconds: a tuner that was suspended, or cut off from the database, does not judge others by that
        time.
    reconnect
        Seconds for which a search waits for a database server that it has lost. What was measured is stored when the
        server is back.
    """

    beat: float = 2.0
    patience: int = 15
    reconnect: float = 600.0


class Tuner(AbstractContextManager["Tuner"]):
    """The part of this process in a study, as long as the context is open."""

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[None]:
        """A lock of the study, which one tuner holds at a time. It is released when its holder dies."""

    def alone(self, action: Callable[[], _T]) -> _T:
        """The result of `action`, which is run while holding `exclusive`; again from its start if the lock was lost."""
        with self.exclusive():
            return action()

    @abstractmethod
    def take_over(self) -> None:
        """Queue the unfinished trials of dead tuners again. Call it while holding `exclusive`."""

    @abstractmethod
    def begin(self, trial: optuna.Trial) -> None:
        """Mark a trial as this tuner's. Call it under the same `exclusive` as the ask."""

    @abstractmethod
    def look(self) -> tuple[list[TrialRecord], int]:
        """The trials that others have finished since the last call, and how many they have in flight."""

    @abstractmethod
    def owns(self, number: int) -> bool:
        """Whether this process asked for a trial."""

    @abstractmethod
    def inherits(self, number: int) -> bool:
        """Whether a trial, as of the last `look`, belongs to a dead tuner whose heir this one is."""

    def pause(self) -> None:
        """Wait a little for the trials of others."""
        Event().wait(_PAUSE)


class SoleTuner(Tuner):
    """The only tuner of a study: every trial is its own."""

    def __init__(self, study: optuna.Study, space: SearchSpace) -> None:
        self._study = study
        self._space = space
        self._recovered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def exclusive(self) -> AbstractContextManager[None]:
        return nullcontext()

    def take_over(self) -> None:
        if not self._recovered:  # later on, what is running is its own
            self._recovered = True
            recover(self._study, self._space)

    def begin(self, trial: optuna.Trial) -> None:
        """Nothing: every trial is its own."""

    def look(self) -> tuple[list[TrialRecord], int]:
        return [], 0

    def owns(self, number: int) -> bool:
        return True

    def inherits(self, number: int) -> bool:
        return False


class SharingTuner(Tuner):
    """One of several tuners of a study.

    A trial is asked for and marked with its tuner's name in one `exclusive` context. A running trial without a name is
    therefore one whose tuner died in between. Any other belongs to its tuner as long as that lives: a thread of each
    tuner counts up its heartbeat in the study. When a tuner has left, or its heartbeat stands still, another tuner
    becomes its heir. The heir queues the dead tuner's trials in flight again, and delivers its finished trials to
    MLflow.

    A tuner that was presumed dead by mistake goes on under another name. Outcomes of its former trials in flight are
    dropped where an heir has settled them.

    Parameters
    ----------
    study, space
        The study that is shared, and its space.
    exclusive
        Makes the lock of the study.
    options
        See `SharingOptions`.
    insist
        Calls a function again as long as the database is lost.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: SearchSpace,
        exclusive: Callable[[], AbstractContextManager[None]],
        options: SharingOptions,
        insist: Insist = call,
    ) -> None:
        self._study = study
        self._space = space
        self._exclusive = exclusive
        self._options = options
        self._insist = insist
        self._name = _new_name()
        self._inherited: set[str] = set()
        self._own: set[int] = set()  # numbers of trials
        self._tuners: dict[int, str | None] = {}  # the tuners of the other trials, by number
        self._looked: set[int] = set()  # finished trials of others that `look` has returned
        self._others: dict[str, tuple[Any, int]] = {}  # each other's heartbeat, and for how many of ours
        self._stopping = Event()
        self._thread = Thread(target=self._keep_beating, name="tuner-beat", daemon=True)

    def __enter__(self) -> Self:
        self._beat(1)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()
        with suppress(Exception):  # if this fails, the others notice a little later that it has left
            self._study.set_user_attr(_BEAT + self._name, _LEFT)

    def exclusive(self) -> AbstractContextManager[None]:
        return self._exclusive()

    def alone(self, action: Callable[[], _T]) -> _T:
        while True:
            try:
                return self._insist(lambda: super(SharingTuner, self).alone(action))
            except UpdateFinishedTrialError:  # the lock was lost, and another tuner has settled a trial of this action
                continue

    def take_over(self) -> None:
        attributes = self._study.user_attrs
        if _HEIR + self._name in attributes:  # presumed dead
            self._name = _new_name()
            self._beat(1)
        heirs = {key.removeprefix(_HEIR): heir for key, heir in attributes.items() if key.startswith(_HEIR)}
        gone = {name for name in _beats(attributes) if name not in heirs and self._is_gone(name, attributes)}
        gone.discard(self._name)
        if not gone and not self._has_orphans(heirs):
            return
        # If this tuner dies before it has queued the trials again, its own heir does: the names of all dead tuners
        # stay in the study, and their trials bear them.
        for name in gone:
            self._study.set_user_attr(_HEIR + name, self._name)
            heirs[name] = self._name
        self._inherited = {name for name in heirs if self._name in _line(name, heirs)}
        recover(self._study, self._space, lambda trial: self._is_orphan(trial, heirs))

    def begin(self, trial: optuna.Trial) -> None:
        trial.set_user_attr(_TUNER, self._name)
        self._own.add(trial.number)

    def look(self) -> tuple[list[TrialRecord], int]:
        found, looked, running = list[TrialRecord](), set[int](), 0
        for trial in all_trials(self._study):
            if trial.number in self._own or trial.number in self._looked:
                continue
            self._tuners[trial.number] = _tuner_of(trial)
            if trial.state is TrialState.RUNNING:
                running += 1
            elif trial.state.is_finished():
                looked.add(trial.number)
                if (record := trial_record(trial, self._space)) is not None:
                    found.append(record)
        self._looked |= looked  # of a damaged trial nothing is returned, and the next look finds the others again
        return found, running

    def owns(self, number: int) -> bool:
        return number in self._own

    def inherits(self, number: int) -> bool:
        return self._tuners.get(number) in self._inherited and number not in self._own

    def _has_orphans(self, heirs: Iterable[str]) -> bool:
        running = (trial for trial in all_trials(self._study) if trial.state is TrialState.RUNNING)
        return any(self._is_orphan(trial, heirs) for trial in running)

    def _is_orphan(self, trial: FrozenTrial, heirs: Iterable[str]) -> bool:
        tuner = _tuner_of(trial)
        # The last: the database was lost after it stored that a trial is this tuner's, and before it said so.
        return tuner is None or tuner in heirs or (tuner == self._name and trial.number not in self._own)

    def _is_gone(self, name: str, attributes: Mapping[str, Any]) -> bool:
        beat = attributes[_BEAT + name]
        return beat == _LEFT or self._others.get(name) == (beat, self._options.patience)

    def _keep_beating(self) -> None:
        count = 1
        while not self._stopping.wait(self._options.beat):
            count += 1
            with suppress(Exception):  # while the database can't be reached, nothing is known of the other tuners
                self._beat(count)
                self._watch()

    def _beat(self, count: int) -> None:
        self._study.set_user_attr(_BEAT + self._name, count)

    def _watch(self) -> None:
        for name, beat in _beats(self._study.user_attrs).items():
            last, silent = self._others.get(name, (None, 0))
            silent = min(silent + 1, self._options.patience) if beat == last else 0
            self._others[name] = (beat, silent)


def is_searched(study: optuna.Study, options: SharingOptions | None = None) -> bool:
    """Whether tuners search a study. Of one that has neither left nor an heir, a heartbeat is waited for.

    Parameters
    ----------
    study
        The study.
    options
        How often its tuners beat, and when they are presumed dead.
    """
    options, before = options or SharingOptions(), heartbeats(study)
    if not any(beat != _LEFT for beat in before.values()):
        return False
    seconds = options.patience * options.beat
    _LOG.info(
        "a tuner of the study %s has not left: it is given %.0f s to show that it lives", study.study_name, seconds
    )
    for _ in range(options.patience):
        Event().wait(options.beat)
        if is_heard(study, before):
            return True
    return False


def heartbeats(study: optuna.Study) -> dict[str, Any]:
    """The last heartbeats of a study's tuners that have no heir, by their names; a damaged one is nobody's."""
    try:
        attributes = study.user_attrs
    except MALFORMED:  # nobody can search it
        return {}
    heard = {name: beat for name, beat in _beats(attributes).items() if _HEIR + name not in attributes}
    return {name: beat for name, beat in heard.items() if isinstance(beat, int) or beat == _LEFT}


def is_heard(study: optuna.Study, before: Mapping[str, Any]) -> bool:
    """Whether a tuner has joined a study or beaten since it had some `heartbeats`. One that leaves is not heard."""
    return any(name not in before or beat not in (before[name], _LEFT) for name, beat in heartbeats(study).items())


def _new_name() -> str:
    return uuid.uuid4().hex[:12]


def _tuner_of(trial: FrozenTrial) -> str | None:
    return trial.user_attrs.get(_TUNER)


def _beats(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(_BEAT): beat for key, beat in attributes.items() if key.startswith(_BEAT)}


def _line(name: str, heirs: Mapping[str, str]) -> list[str]:
    """The heir of a tuner, the heir's heir, and so on."""
    line: list[str] = []
    while name in heirs and heirs[name] not in line:
        name = heirs[name]
        line.append(name)
    return line
