"""The live judge of defaults, as far as it needs no GPU."""

import pytest

from tilescout.experiments.research.studies.default_live import FP8, KEPT_OUT, asked, figures
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.suite import find_suite


def test_problems_are_drawn_anew_of_all_kinds_and_some_in_8_bits() -> None:
    found = [str(each) for each in asked(71, 10, 4)]
    assert len(set(found)) == 10
    assert [text.endswith(FP8) for text in found] == [False] * 6 + [True] * 4
    assert not set(found) & set(find_suite(KEPT_OUT).problems)
    assert any(int(text.split("x")[2].partition(":")[0]) >= 16 * int(text.split("x")[1]) for text in found)  # deep k


def test_the_problems_of_the_suite_that_nothing_is_chosen_on_are_not_looked_at() -> None:
    with pytest.raises(ProblemError, match="draw by another seed"):
        asked(0, 5, 0)


def test_the_mean_is_geometric_and_slow_ones_are_counted() -> None:
    told = figures([{"speed": 2.0}, {"speed": 0.5}, {"speed": 0.96}])
    assert told["mean"] == pytest.approx(0.96 ** (1 / 3))
    assert (told["least"], told["below"]) == (0.5, 1)
