"""The trials of a study as the guided search sees them: which count, and which were given."""

from datetime import datetime, timedelta, tzinfo

import numpy as np
import optuna
import pytest

from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.guided.history import history_of
from tilescout.search.studies.trials import PLACE, SEEN, Count, give_up, mark, record_outcome, recover
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

WHOLE = find_template("gemm_sm90").space(GemmProblem(4096, 4096, 4096), DEVICES["h200"])
SPACE = WHOLE.subset(np.arange(0, len(WHOLE), 40))
FAILED = Measurement(Status.COMPILE_ERROR, "no")


@pytest.fixture
def study() -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study()


def queue(study: optuna.Study, index: int) -> None:
    study.enqueue_trial(dict(zip(distributions(SPACE), map(int, SPACE.codes[index]), strict=True)))


def ask(study: optuna.Study, index: int) -> optuna.Trial:
    queue(study, index)
    return study.ask({**distributions(SPACE)})


def test_a_trial_that_was_in_flight_when_its_search_ended_is_no_failure(study: optuna.Study) -> None:
    study.tell(ask(study, 0), 10.0)
    give_up(study, ask(study, 1))
    found = history_of(study, SPACE)
    assert (found.finished, len(found.failed), found.since) == (1, 0, 0)
    record_outcome(study, ask(study, 2), FAILED)
    found = history_of(study, SPACE)
    assert (found.finished, found.failed.tolist(), found.since) == (2, [2], 1)


def test_what_counts_as_behind_the_best_is_what_finished_behind_it(study: optuna.Study) -> None:
    late, early, failed, last = (ask(study, index) for index in range(4))
    study.tell(early, 12.0)
    record_outcome(study, failed, FAILED)
    study.tell(late, 10.0)  # its kernel had to be compiled
    found = history_of(study, SPACE)
    assert (found.settled.tolist(), found.first, found.since) == ([1, 0], 1, 0)
    study.tell(last, 11.0)
    found = history_of(study, SPACE)
    assert (found.settled.tolist(), found.since, found.blind, found.after_best.tolist()) == ([1, 0, 3], 1, 1, [3])


def test_what_is_behind_the_best_does_not_depend_on_the_clocks_of_its_tuners(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    study.sampler = make_sampler("random", SPACE, 0)

    class Clock(datetime):
        hours = 0

        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Clock":
            return super().now(tz) + timedelta(hours=cls.hours)

    monkeypatch.setattr("optuna.storages._in_memory.datetime", Clock)

    def propose(seen: int) -> optuna.Trial:
        proposed = study.ask()
        mark(study, proposed, SEEN, Count(seen))
        for name, knob in distributions(SPACE).items():
            proposed.suggest_int(name, knob.low, knob.high)
        return proposed

    def tell(trial: optuna.Trial, place: int, time_us: float) -> None:
        mark(study, trial, PLACE, Count(place))
        study.tell(trial, time_us)

    first, blind = propose(0), propose(0)
    tell(first, 1, 10.0)
    for hours in (-3, 3):  # of two tuners elsewhere
        Clock.hours = hours
        tell(propose(1), 2, 12.0)
    tell(blind, 3, 11.0)
    propose(3)
    found = history_of(study, SPACE)

    assert found.values == pytest.approx(np.log([10.0, 12.0, 12.0, 11.0]))
    assert (found.first, found.since, found.blind, found.blind_running) == (0, 3, 1, 0)


def test_a_trial_that_is_tried_again_counts_once(study: optuna.Study) -> None:
    study.tell(ask(study, 0), 10.0)
    ask(study, 1)
    assert recover(study, SPACE) == 1
    again = study.ask({**distributions(SPACE)})
    found = history_of(study, SPACE)
    assert (found.finished, found.running.tolist(), found.given) == (1, [1], 2)
    record_outcome(study, again, FAILED)
    found = history_of(study, SPACE)
    assert (found.finished, found.failed.tolist(), found.since, found.given) == (2, [1], 1, 2)


def test_what_a_sampler_proposed_is_not_given_when_it_is_tried_again(study: optuna.Study) -> None:
    study.tell(ask(study, 0), 10.0)
    study.sampler = make_sampler("random", SPACE, 0)
    proposed = study.ask()
    for name, knob in distributions(SPACE).items():
        proposed.suggest_int(name, knob.low, knob.high)
    assert (history_of(study, SPACE).given, recover(study, SPACE)) == (1, 1)
    study.ask({**distributions(SPACE)})
    assert history_of(study, SPACE).given == 1
