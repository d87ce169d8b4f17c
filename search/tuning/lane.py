"""One study of a search, as the loop sees it."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real

import optuna
from optuna.trial import FrozenTrial

from tilescout.costmodel.estimator import Expected
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.samplers.base import SpaceSampler, checked_answer
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.sharing import Tuner
from tilescout.search.studies.trials import finished_trials, trial_record
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.space import SearchSpace


@dataclass(frozen=True, eq=False)
class Lane:
    """One study of a search, and whom it tells.

    Attributes
    ----------
    study
        Asked and told; its sampler decides what is tried.
    evaluator
        Tries configurations.
    library_us
        The study's steady time of the library, in µs: all times of a study are relative to the same one.
    on_trial
        Called with every trial as it finishes, here or at another tuner of the study.
    in_full
        Indices of configurations that are measured in full, however slow they are.
    tuner
        This process's part in the study.
    errors
        Gets the error that ended the search of this space while the others go on; None where it ends them all.
    """

    study: optuna.Study
    evaluator: Evaluator
    library_us: float
    on_trial: Callable[[TrialRecord], None]
    in_full: Container[int]
    tuner: Tuner
    errors: list[TilescoutError] | None = None

    @property
    def space(self) -> SearchSpace:
        """The configurations that can be tried."""
        return self.evaluator.space

    @property
    def sampler(self) -> SpaceSampler | None:
        """The sampler, if it is one of ours."""
        return self.study.sampler if isinstance(self.study.sampler, SpaceSampler) else None

    @cached_property
    def _records(self) -> dict[int, TrialRecord | None]:
        return {}

    def record(self, finished: FrozenTrial) -> TrialRecord | None:
        """The record of a finished trial, which is read once; see `trial_record`."""
        if finished.number not in self._records:
            self._records[finished.number] = trial_record(finished, self.space)
        return self._records[finished.number]

    def look(self) -> tuple[Sequence[TrialRecord], int]:
        """The trials that others have finished since the last call, and how many they have in flight; see `Tuner.look`.

        Once the search of this space ended alone there are none.
        """
        if self.errors:
            return [], 0
        found, running = self.tuner.look()
        self._records.update({record.number: record for record in found})
        return found, running

    def finished(self) -> Sequence[TrialRecord]:
        """The finished trials of the study, in the order of their numbers; once it ended alone, those read before."""
        if self.errors:
            known = (self._records[number] for number in sorted(self._records))
            return [record for record in known if record is not None]
        return finished_trials(self.study, self.space, self.record)

    def end(self, error: TilescoutError) -> None:
        """Have an error end the search of this space alone, or raise it where it ends them all."""
        if self.errors is None:
            raise error
        self.errors.append(error)

    def done(self) -> str | None:
        """Why the sampler would stop; see `SpaceSampler.done`, and so for the others."""
        sampler = self.sampler
        return checked_answer(sampler, "done", sampler.done(self.study), str, "a text") if sampler else None

    def gain(self) -> float | None:
        """The share that the sampler expects of the next trial."""
        sampler = self.sampler
        return checked_answer(sampler, "gain", sampler.gain(self.study), Real, "a number") if sampler else None

    def expected(self, index: int) -> Expected | None:
        """The time that the sampler expects of a configuration."""
        sampler, what = self.sampler, "an Expected of tilescout.costmodel"
        return checked_answer(sampler, "expected", sampler.expected(index), Expected, what) if sampler else None
