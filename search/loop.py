"""The search loop: ask the sampler, try what it proposes, tell it the outcome, until the budget ends."""

import math
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, replace

import optuna
from optuna.distributions import BaseDistribution

from tilescout.search.evaluate.evaluator import Evaluator
from tilescout.search.evaluate.measurement import Measurement
from tilescout.search.records import TrialRecord
from tilescout.search.samplers.base import SpaceExhaustedError, SpaceSampler, distributions
from tilescout.search.study import codes, finished_trials, record_outcome, trial_record


@dataclass(frozen=True)
class Budget:
    """When a search ends; what is in flight then is still finished. None sets no limit.

    Attributes
    ----------
    trials
        Finished trials of the study, those of earlier runs included.
    gpu_seconds
        Seconds of GPU time of the study.
    seconds
        Wall-clock seconds of this run.
    whole
        Use it up, also where the sampler finds that it is not worth going on.
    """

    trials: int | None = None
    gpu_seconds: float | None = None
    seconds: float | None = None
    whole: bool = False


def run(
    study: optuna.Study,
    evaluator: Evaluator,
    budget: Budget,
    library_us: float,
    on_trial: Callable[[TrialRecord], None],
    in_full: Container[int] = (),
) -> str | None:
    """Search until the budget or the space is exhausted, or the sampler finds that it is not worth going on.

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
        Called with every trial as it finishes.
    in_full
        Indices of configurations that are measured in full, however slow they are.

    Returns
    -------
    str or None
        Why the sampler ended the search; None if it did not.
    """
    space = evaluator.space
    knobs: dict[str, BaseDistribution] = {**distributions(space)}
    before = finished_trials(study, space)
    finished, gpu_seconds = len(before), sum(trial.measurement.gpu_seconds for trial in before)
    started = time.monotonic()
    in_flight: dict[int, optuna.Trial] = {}
    exhausted, done = False, None
    incumbent = min((t.measurement.timing.ratio for t in before if t.measurement.timing is not None), default=math.inf)

    def may_ask() -> bool:
        return (
            not exhausted
            and len(in_flight) < evaluator.capacity
            and finished + len(in_flight) < len(space)
            and (budget.trials is None or finished + len(in_flight) < budget.trials)
            and (budget.gpu_seconds is None or gpu_seconds < budget.gpu_seconds)
            and (budget.seconds is None or time.monotonic() - started < budget.seconds)
        )

    while True:
        while done is None and may_ask():
            if not budget.whole and isinstance(study.sampler, SpaceSampler):
                done = study.sampler.done(study)
            if done is not None:
                break
            try:
                trial = study.ask(knobs)
            except SpaceExhaustedError:  # other processes that share the study have the rest
                exhausted = True
                break
            index = int(space.find(codes(space, trial.params)))
            in_flight[index] = trial
            evaluator.submit(index, None if index in in_full else incumbent)
        if not in_flight:
            return done
        for index, measurement in evaluator.wait():
            trial = in_flight.pop(index)
            record_outcome(study, trial, _relative_to(measurement, library_us, evaluator.library_us()))
            record = trial_record(study.get_trials(deepcopy=False)[trial.number], space)
            assert record is not None
            finished += 1
            gpu_seconds += measurement.gpu_seconds
            if measurement.timing is not None:
                incumbent = min(incumbent, measurement.timing.ratio)
            on_trial(record)


def _relative_to(measurement: Measurement, library_us: float, measured_against: float) -> Measurement:
    """The measurement with its times relative to the study's steady time of the library."""
    timing, pilot_us = measurement.timing, measurement.pilot_us
    return replace(
        measurement,
        timing=replace(timing, library_us=library_us) if timing is not None else None,
        pilot_us=pilot_us * library_us / measured_against if pilot_us is not None else None,
    )
