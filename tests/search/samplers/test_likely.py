"""Kernels that a search from a portfolio has compiled ahead: the model's best of those that are not stored."""

import numpy as np
import optuna
import pytest

from tests.search.samplers.test_guided import SPACE, Expectation, truth_of
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.guided import GuidedSampler

EXPECTED = truth_of(SPACE)
ORDER = np.argsort(EXPECTED)  # what is expected to be the fastest is first


def searched(stored: np.ndarray, stock: np.ndarray) -> tuple[optuna.Study, GuidedSampler]:
    """A study whose first trial, of what is expected to be the slowest of the stock, is told."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = GuidedSampler(SPACE, 0, Expectation(EXPECTED))
    sampler.find_stored(np.sort(stored), np.sort(stock))
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial(dict(zip(distributions(SPACE), map(int, SPACE.codes[ORDER[-1]]), strict=True)))
    study.tell(study.ask({**distributions(SPACE)}), float(np.exp(EXPECTED[ORDER[-1]])))
    return study, sampler


def test_what_promises_most_of_what_is_not_stored_is_likely() -> None:
    stock = ORDER[::3]
    study, sampler = searched(stock, stock)
    likely = list(sampler.likely(study, 6))
    assert len(set(likely)) == 6
    assert not set(likely) & set(stock.tolist())
    rest = ORDER[~np.isin(ORDER, stock)]
    assert set(likely) <= set(rest[:30].tolist())


def test_a_kernel_that_is_neither_stored_nor_proposed_before_any_outcome_waits_for_its_compiler() -> None:
    stock = ORDER[::3]
    _, sampler = searched(stock, stock)
    assert not sampler.waits_for_compiler(int(stock[0]))
    assert sampler.waits_for_compiler(int(ORDER[1]))
    early = next(iter(sampler.first([], 1)))
    assert not sampler.waits_for_compiler(early)


@pytest.mark.parametrize("stored", [ORDER[:0], ORDER[1:9:3]], ids=["nothing", "other kernels"])
def test_without_kernels_of_the_stock_nothing_is_compiled_ahead(stored: np.ndarray) -> None:
    study, sampler = searched(stored, ORDER[::3])
    assert list(sampler.likely(study, 6)) == []
    assert not sampler.waits_for_compiler(int(ORDER[1]))
