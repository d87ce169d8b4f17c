"""Which limits a search can have."""

import math

import numpy as np
import pytest

from tilescout.search.tuning.budget import Budget
from tilescout.spaces.errors import SamplerError


@pytest.mark.parametrize("trials", [-1, 2.5, 3.0, True, math.inf, math.nan, "3"])
def test_trials_are_counted_in_whole_numbers(trials: object) -> None:
    with pytest.raises(
        SamplerError, match=f"trials can't be {trials!r}: allowed are whole numbers from 0 on, and None"
    ):
        Budget(trials=trials)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["gpu_seconds", "seconds"])
@pytest.mark.parametrize("limit", [-0.5, True, math.inf, math.nan, "3"])
def test_no_end_is_no_limit_of_seconds(name: str, limit: object) -> None:
    with pytest.raises(SamplerError, match=f"{name} can't be {limit!r}: allowed are finite numbers from 0 on, and"):
        Budget(**{name: limit})  # type: ignore[arg-type]


def test_a_limit_may_be_nothing_or_none_or_of_an_array() -> None:
    assert Budget() == Budget(None, None, None)
    assert Budget(0, 0, 0.0) == Budget(*np.zeros(1, dtype=np.int64), *np.zeros(2))
