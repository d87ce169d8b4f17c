"""Tuners that share a study: whose trial is whose, who is still there, and one at a time where it matters."""

import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

import optuna
from optuna.trial import FrozenTrial, TrialState

from tilescout.search.studies.optuna_hooks import all_trials
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.trials import recover, trial_record
from tilescout.spaces.space import SearchSpace

_TUNER = "tuner"  # the user attribute of a trial that says whose it is
_BEAT = "beat:"  # with a tuner's name behind it, the user attribute of a study that it counts up while it lives
_HEIR = "heir:"  # with a tuner's name behind it, that of who has taken over what it left
_LEFT = "left"  # the last beat of a tuner that ended by itself
_PAUSE = 0.25  # seconds between two looks at what others have in flight


@dataclass(frozen=True)
class SharingOptions:
    """How tuners of one study keep track of each other.

    Attributes
    ----------
    beat
        Seconds between two signs of life.
    patience
        A tuner that gives none for so many beats of another one is taken for dead. Beats are counted, not seconds: a
        tuner that was asleep, or cut off from the database, makes no judgement of that time.
    """

    beat: float = 2.0
    patience: int = 15


class Tuner(AbstractContextManager["Tuner"]):
    """One tuner's part in a study. Leaving the context leaves the study."""

    @abstractmethod
    def exclusive(self) -> AbstractContextManager[None]:
        """A context that one tuner of the study at a time is in; the death of its holder ends it."""

    @abstractmethod
    def take_over(self) -> None:
        """Settle what tuners that are gone left unfinished, so that it is tried again; call it in `exclusive`."""

    @abstractmethod
    def begin(self, trial: optuna.Trial) -> None:
        """Take a trial that was just asked for as one's own; call it in the same `exclusive` as the ask."""

    @abstractmethod
    def look(self) -> tuple[list[TrialRecord], int]:
        """What others have finished since the last look, and how many trials they have in flight."""

    @abstractmethod
    def owns(self, number: int) -> bool:
        """Whether this process asked for a trial."""

    @abstractmethod
    def inherits(self, number: int) -> bool:
        """Whether a trial, as of the last look, is of a tuner that is gone and whose heir this one is."""

    def pause(self) -> None:
        """Wait for others to get on."""
        Event().wait(_PAUSE)


class SoleTuner(Tuner):
    """The only tuner of a study: all is its own."""

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

    A trial is asked for and marked with its tuner's name in one `exclusive` context. So a running trial without a name
    is one whose tuner died in between, and any other is its tuner's as long as that lives: a thread counts up a number
    in the study. When a tuner has left or is silent, another one becomes its heir: what it had in flight is queued
    again, and what it finished is the heir's to show.

    A tuner that was taken for dead and is not goes on under another name; outcomes of what it had in flight are dropped
    where they are another's by then.

    Parameters
    ----------
    study, space
        What is shared.
    exclusive
        Makes a context that one process at a time is in.
    options
        See `SharingOptions`.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: SearchSpace,
        exclusive: Callable[[], AbstractContextManager[None]],
        options: SharingOptions,
    ) -> None:
        self._study = study
        self._space = space
        self._exclusive = exclusive
        self._options = options
        self._name = _new_name()
        self._inherited: set[str] = set()
        self._own: set[int] = set()  # numbers of trials
        self._tuners: dict[int, str | None] = {}  # whose the others are, by their numbers
        self._looked: set[int] = set()  # others that are finished and that `look` has returned
        self._others: dict[str, tuple[Any, int]] = {}  # the last beat of each other tuner, and how long it has been so
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
        with suppress(Exception):  # without a last word one is missed a little later
            self._study.set_user_attr(_BEAT + self._name, _LEFT)

    def exclusive(self) -> AbstractContextManager[None]:
        return self._exclusive()

    def take_over(self) -> None:
        attributes = self._study.user_attrs
        if _HEIR + self._name in attributes:  # taken for dead
            self._name = _new_name()
            self._beat(1)
        heirs = {key.removeprefix(_HEIR): heir for key, heir in attributes.items() if key.startswith(_HEIR)}
        gone = {name for name in _beats(attributes) if name not in heirs and self._is_gone(name, attributes)}
        gone.discard(self._name)
        if not gone and not self._has_orphans(heirs):
            return
        # Who dies in here is buried too, and whoever does that finds these trials by the names of their dead tuners.
        for name in gone:
            self._study.set_user_attr(_HEIR + name, self._name)
            heirs[name] = self._name
        self._inherited = {name for name in heirs if self._name in _line(name, heirs)}
        recover(self._study, self._space, lambda trial: _tuner_of(trial) in (None, *heirs))

    def begin(self, trial: optuna.Trial) -> None:
        trial.set_user_attr(_TUNER, self._name)
        self._own.add(trial.number)

    def look(self) -> tuple[list[TrialRecord], int]:
        found, running = [], 0
        for trial in all_trials(self._study):
            if trial.number in self._own or trial.number in self._looked:
                continue
            self._tuners[trial.number] = _tuner_of(trial)
            if trial.state is TrialState.RUNNING:
                running += 1
            elif trial.state.is_finished():
                self._looked.add(trial.number)
                if (record := trial_record(trial, self._space)) is not None:
                    found.append(record)
        return found, running

    def owns(self, number: int) -> bool:
        return number in self._own

    def inherits(self, number: int) -> bool:
        return self._tuners.get(number) in self._inherited and number not in self._own

    def _has_orphans(self, heirs: Iterable[str]) -> bool:
        running = (trial for trial in all_trials(self._study) if trial.state is TrialState.RUNNING)
        return any(_tuner_of(trial) in (None, *heirs) for trial in running)

    def _is_gone(self, name: str, attributes: Mapping[str, Any]) -> bool:
        beat = attributes[_BEAT + name]
        return beat == _LEFT or self._others.get(name) == (beat, self._options.patience)

    def _keep_beating(self) -> None:
        count = 1
        while not self._stopping.wait(self._options.beat):
            count += 1
            with suppress(Exception):  # a database that is away says nothing of the other tuners
                self._beat(count)
                self._watch()

    def _beat(self, count: int) -> None:
        self._study.set_user_attr(_BEAT + self._name, count)

    def _watch(self) -> None:
        for name, beat in _beats(self._study.user_attrs).items():
            last, silent = self._others.get(name, (None, 0))
            silent = min(silent + 1, self._options.patience) if beat == last else 0
            self._others[name] = (beat, silent)


def _new_name() -> str:
    return uuid.uuid4().hex[:12]


def _tuner_of(trial: FrozenTrial) -> str | None:
    return trial.user_attrs.get(_TUNER)


def _beats(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix(_BEAT): beat for key, beat in attributes.items() if key.startswith(_BEAT)}


def _line(name: str, heirs: Mapping[str, str]) -> list[str]:
    """The heir of a tuner, the heir's heir, and so on."""
    line: list[str] = []
    while name in heirs:
        name = heirs[name]
        line.append(name)
    return line
