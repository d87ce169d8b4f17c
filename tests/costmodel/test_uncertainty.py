"""Errors on new problems, of an ensemble that knows all of a problem that it saw, and nothing of others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features
from tilescout.costmodel.uncertainty import estimate_errors

NAMES = ("problem",)
OFF = 0.5


@dataclass(frozen=True)
class Remembers:
    seen: Sequence[float]
    names: tuple[str, ...] = NAMES

    def predict(self, features: Features) -> tuple[Floats, Floats]:
        problem = features.values[:, 0]
        return np.where(np.isin(problem, self.seen), OFF, 0.0), np.zeros(len(problem))


def sample(problem: int) -> Sample:
    rows = 10
    features = Features(NAMES, np.full((rows, 1), float(problem)))
    return Sample(str(problem), features, np.full(rows, OFF), np.zeros(rows, dtype=np.bool_))


def learn(samples: Sequence[Sample]) -> Remembers:
    return Remembers([each.features.values[0, 0] for each in samples])


@pytest.mark.parametrize("tables", [1, 2])
def test_a_problem_that_two_tables_hold_is_left_out_of_both(tables: int) -> None:
    samples = [sample(problem) for _ in range(tables) for problem in range(5)]
    assert estimate_errors(samples, learn, 0).shift == pytest.approx(OFF)


def test_of_one_problem_in_two_tables_parts_are_left_out() -> None:
    found = estimate_errors([sample(0), sample(0)], learn, 0)
    assert (found.shift, found.floor) == (0.0, 1e-6)
