"""The ledger of configurations that a study has, against a plain reading of its trials."""

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.trial import TrialState

from tilescout.search.studies.ledger import Ledger, distributions, seen
from tilescout.search.studies.optuna_hooks import all_trials
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Knob
from tilescout.spaces.space import SearchSpace

SPACE = SearchSpace(
    "small", [Knob("a", (1, 2, 4), ""), Knob("b", ("x", "y", "z"), "")], [], GemmProblem(512, 512, 512), DEVICES["h200"]
)
KNOBS: dict[str, BaseDistribution] = {**distributions(SPACE)}
# The same names, another meaning.
OTHER: dict[str, BaseDistribution] = {"a": IntDistribution(0, 2), "b": IntDistribution(0, 9)}


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)


@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["enqueue", "enqueue half", "ask", "ask half", "ask others", "complete", "fail", "look"]),
            st.integers(0, 8),
        ),
        max_size=30,
    )
)
@settings(max_examples=60, deadline=None)
def test_reading_a_study_as_it_grows_gives_what_reading_it_at_once_gives(steps: list[tuple[str, int]]) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    ledger, running = Ledger.empty(SPACE), []
    for step, index in steps:
        codes = dict(zip(KNOBS, SPACE.codes[index].tolist(), strict=True))
        match step:
            case "enqueue":
                study.enqueue_trial(codes)
            case "enqueue half":
                study.enqueue_trial({"a": codes["a"]})
            case "ask":
                running.append(study.ask(KNOBS))
            case "ask half":
                running.append(study.ask({"a": KNOBS["a"]}))
            case "ask others":
                running.append(study.ask(OTHER))
            case "look":
                ledger = ledger.read(all_trials(study))
            case _ if running:
                trial = running.pop(index % len(running))
                failed = step == "fail"
                study.tell(trial, None if failed else 1.0, TrialState.FAIL if failed else TrialState.COMPLETE)
    ledger = ledger.read(all_trials(study))
    expected = set()
    for told in study.trials:
        queued = told.system_attrs.get("fixed_params", {})
        if told.distributions == KNOBS:
            expected.add((told.params["a"], told.params["b"]))
        elif len(queued) == 2:
            expected.add((queued["a"], queued["b"]))
    found = np.flatnonzero(ledger.taken | ledger.pending())
    assert {tuple(SPACE.codes[index].tolist()) for index in found} == expected
    assert list(found) == list(seen(study, SPACE))


def test_settled_trials_are_not_read_again() -> None:
    study = optuna.create_study()
    for index in range(5):
        study.enqueue_trial(dict(zip(KNOBS, SPACE.codes[index].tolist(), strict=True)))
        study.ask(KNOBS)
    ledger = Ledger.empty(SPACE).read(all_trials(study))
    assert (ledger.length, ledger.unsettled) == (5, ())
    unread = [None] * 5  # reading any of these would fail
    assert list(np.flatnonzero(ledger.read(unread).taken)) == [0, 1, 2, 3, 4]  # type: ignore[arg-type]


def test_enqueued_codes_that_are_no_configuration_count_for_nothing() -> None:
    study = optuna.create_study()
    for codes in ({"a": 7, "b": 0}, {"a": "four", "b": 0}, {"a": None, "b": 0}):
        study.enqueue_trial(codes)
    assert len(seen(study, SPACE)) == 0


def test_numpy_integers_in_the_queue_count() -> None:
    study = optuna.create_study()
    study.enqueue_trial({"a": np.int64(1), "b": np.int16(2)})
    assert list(seen(study, SPACE)) == [5]
