"""Whether a search says that configurations differ by noise alone."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilescout.search import tune
from tilescout.search.samplers.guided import ColdSampler
from tilescout.search.samplers.guided.history import History
from tilescout.search.samplers.guided.sampler import _Known
from tilescout.search.studies.noise import EARLY, LEAST, unexplained
from tilescout.search.studies.records import StudyResult
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Knob
from tilescout.spaces.space import SearchSpace


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """A replayed search of which more than enough trials were timed."""
    table = Path(__file__).parents[3] / "search/tables/recorded/gemm_sm90-h200-e4m3.parquet"
    problem, store = "512x512x512:e4m3-bf16", tmp_path_factory.mktemp("store")
    found = tune(
        "gemm_sm90", problem, budget=80, sampler="random", device="replay", table=table, store=store, mlflow=False
    )
    assert sum(trial.measurement.ok for trial in found.trials) >= LEAST
    return found


def test_times_that_follow_from_one_another_are_no_noise(searched: StudyResult) -> None:
    assert unexplained(searched) is None


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_times_that_are_dealt_out_at_random_are_told(searched: StudyResult, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(searched.trials))
    dealt = [
        replace(trial, measurement=searched.trials[at].measurement)
        for trial, at in zip(searched.trials, order, strict=True)
    ]
    noise = replace(searched, trials=dealt)
    assert "they may differ by noise alone" in (unexplained(noise) or "")
    assert unexplained(replace(noise, trials=dealt[: LEAST - 1])) is None  # too few to tell


def test_a_search_without_a_model_says_it_as_soon_as_it_can_be_told(caplog: pytest.LogCaptureFixture) -> None:
    knobs = [Knob(name, tuple(range(1, 9)), "for tests") for name in ("a", "b", "c")]
    space = SearchSpace("unknown", knobs, [], GemmProblem(64, 64, 64), DEVICES["h200"])
    settled = np.random.default_rng(0).permutation(len(space))[:EARLY]
    none = np.empty(0, dtype=np.int64)
    for values, told in (
        (np.random.default_rng(1).normal(size=EARLY), True),
        (space.codes[settled].sum(axis=1).astype(float), False),
    ):
        caplog.clear()
        pruned = np.zeros(EARLY, dtype=np.bool_)
        history = History(settled, values, pruned, none, none, float(values.min()), None, 0, 0, 0, 0, True)
        sampler = ColdSampler(space, 0)
        with caplog.at_level(logging.WARNING, logger="tilescout"):
            sampler._kernel(_Known(history, None), sampler.about.points)
        assert ("noise alone" in caplog.text) == told
