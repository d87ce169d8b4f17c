"""The search loop: ask the sampler, try what it proposes, tell it the outcome, until the budget ends."""

import math
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Protocol

import optuna

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.measure.measurement import Measurement
from tilescout.search.samplers.base import SpaceExhaustedError, SpaceSampler, distributions
from tilescout.search.studies.records import TrialRecord
from tilescout.search.studies.sharing import SoleTuner, Tuner
from tilescout.search.studies.trials import (
    codes,
    finished_trials,
    give_up,
    keep_outcome,
    record_expected,
    record_outcome,
    trial_record,
)
from tilescout.spaces.errors import SamplerError


@dataclass(frozen=True)
class Budget:
    """When a search ends; trials that are in flight then are still finished, but given up where the sampler ends it.

    None sets no limit.

    Raises
    ------
    SamplerError
        If a limit is no number: nothing is below it, and a search would end at once.

    Attributes
    ----------
    trials
        Finished trials of the study, those of earlier runs included.
    gpu_seconds
        Seconds of GPU time of the study.
    seconds
        Wall-clock seconds of this run.
    whole
        Use the budget up, also where the sampler would stop earlier.
    """

    trials: int | None = None
    gpu_seconds: float | None = None
    seconds: float | None = None
    whole: bool = False

    def __post_init__(self) -> None:
        limits = {"trials": self.trials, "gpu_seconds": self.gpu_seconds, "seconds": self.seconds}
        for name, limit in limits.items():
            if limit is not None and not limit >= 0:
                raise SamplerError(f"the budget's {name} can't be {limit}: allowed are numbers from 0 on, and None")

    def times(self, factor: float) -> "Budget":
        """The same with so many times the trials, rounded up, and seconds of GPU; those of the clock stay."""
        trials = None if self.trials is None else math.ceil(self.trials * factor)
        return replace(self, trials=trials, gpu_seconds=None if self.gpu_seconds is None else self.gpu_seconds * factor)


class Loop(Protocol):
    """Asks and tells a study until its budget ends: `run`, or what gives it a part of the budget at a time."""

    def __call__(
        self,
        study: optuna.Study,
        evaluator: Evaluator,
        budget: Budget,
        library_us: float,
        on_trial: Callable[[TrialRecord], None],
        in_full: Container[int] = (),
        tuner: Tuner | None = None,
    ) -> str | None:
        """Search; see `run`."""


def run(
    study: optuna.Study,
    evaluator: Evaluator,
    budget: Budget,
    library_us: float,
    on_trial: Callable[[TrialRecord], None],
    in_full: Container[int] = (),
    tuner: Tuner | None = None,
) -> str | None:
    """Search until the budget or the space is exhausted, or the sampler stops.

    Parameters
    ----------
    study
        Asked and told; its sampler decides what is tried.
    evaluator
        Tries configurations.
    budget
        When to stop.
    library_us
        The study's steady time of the library, in µs: all times of a study are relative to the same one.
    on_trial
        Called with every trial as it finishes, here or at another tuner of the study.
    in_full
        Indices of configurations that are measured in full, however slow they are.
    tuner
        This process's part in the study; by default it has it to itself.

    Returns
    -------
    str or None
        Why the sampler ended the search; None if it did not.
    """
    space = evaluator.space
    knobs = distributions(space)
    tuner = tuner if tuner is not None else SoleTuner(study, space)
    tally = _Tally()
    for record in finished_trials(study, space):
        tally.add(record)
    started = time.monotonic()
    sampler = study.sampler if isinstance(study.sampler, SpaceSampler) else None
    lookahead = sampler.lookahead if sampler is not None else None
    in_flight: dict[int, optuna.Trial] = {}  # in the order of the proposals
    arrived: dict[int, Measurement] = {}  # outcomes of those that are not told yet
    exhausted = False
    done: str | None = None

    def may_ask(elsewhere: int = 0) -> bool:
        in_hand = tally.trials + len(in_flight) + elsewhere
        return (
            not exhausted
            and done is None
            and len(in_flight) < min(evaluator.capacity, lookahead or evaluator.capacity)
            and in_hand < len(space)
            and (budget.trials is None or in_hand < budget.trials)
            and (budget.gpu_seconds is None or tally.gpu_seconds < budget.gpu_seconds)
            and (budget.seconds is None or time.monotonic() - started < budget.seconds)
        )

    def ask() -> optuna.Trial | None:
        """A trial to try; None if what is left of the budget or the space is in flight elsewhere."""
        news: list[TrialRecord] = []

        def claim() -> optuna.Trial | None:
            tuner.take_over()
            found, elsewhere = tuner.look()
            news.extend(record for record in found if tally.add(record))
            if not may_ask(elsewhere):
                return None
            trial = study.ask()
            tuner.begin(trial)
            return trial

        trial = tuner.alone(claim)
        for record in news:
            on_trial(record)
        if trial is None:
            return None
        # The proposal may take long, and none is made twice without the lock.
        for name, knob in knobs.items():
            trial.suggest_int(name, knob.low, knob.high)
        return trial

    def tell(index: int, measurement: Measurement) -> None:
        trial = in_flight.pop(index)
        if not record_outcome(study, trial, measurement):
            return  # this process was taken for dead, and the trial is another tuner's
        outcome = trial_record(study.get_trials(deepcopy=False)[trial.number], space)
        assert outcome is not None
        tally.add(outcome)
        on_trial(outcome)

    while True:
        while may_ask():
            if not budget.whole and sampler is not None:
                done = sampler.done(study)
                if done is not None or (in_flight and sampler.sated(study)):
                    break
            try:
                trial = ask()
            except SpaceExhaustedError:  # other processes that share the study have the rest
                exhausted = True
                break
            if trial is None:
                break
            index = int(space.find(codes(space, trial.params)))
            in_flight[index] = trial
            if sampler is not None and (expected := sampler.expected(index)):
                record_expected(trial, expected)
            evaluator.submit(index, None if index in in_full else tally.incumbent)
        if done is not None and in_flight:
            evaluator.give_up()
            for trial in in_flight.values():
                give_up(study, trial)
            return done
        if in_flight:
            # With a look-ahead the first of the proposals is told first, and the next is made before any other is told.
            while not arrived or (lookahead is not None and next(iter(in_flight)) not in arrived):
                for index, measurement in evaluator.wait():
                    arrived[index] = _relative_to(measurement, library_us, evaluator.library_us())
                    if lookahead is not None and index != next(iter(in_flight)):
                        keep_outcome(in_flight[index], arrived[index])
            for index in [next(iter(in_flight))] if lookahead is not None else list(arrived):
                tell(index, arrived.pop(index))
        elif may_ask():
            tuner.pause()  # what is in flight elsewhere may have to be tried again
        else:
            return done


class _Tally:
    """Sums over the finished trials of a study.

    Attributes
    ----------
    trials, gpu_seconds
        How many there are, and the seconds of GPU time that they took.
    incumbent
        The best ratio to the library; infinite without one.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()
        self.gpu_seconds = 0.0
        self.incumbent = math.inf

    @property
    def trials(self) -> int:
        return len(self._numbers)

    def add(self, trial: TrialRecord) -> bool:
        """Count a trial; False if it was counted before."""
        if trial.number in self._numbers:
            return False
        self._numbers.add(trial.number)
        self.gpu_seconds += trial.measurement.gpu_seconds
        if trial.measurement.timing is not None:
            self.incumbent = min(self.incumbent, trial.measurement.timing.ratio)
        return True


def _relative_to(measurement: Measurement, library_us: float, measured_against: float) -> Measurement:
    """The measurement with its times relative to the study's steady time of the library."""
    timing, pilot_us = measurement.timing, measurement.pilot_us
    return replace(
        measurement,
        timing=replace(timing, library_us=library_us) if timing is not None else None,
        pilot_us=pilot_us * library_us / measured_against if pilot_us is not None else None,
    )
