"""Replays of whole tunings: which problems a model may not see, and the figures."""

from collections import Counter

import pytest

from tilescout.experiments.research.studies.replayed_tunings import ALONE, PARTS, Replayed, summary, unseen_parts
from tilescout.spaces.gemm import GemmProblem


def test_parts_hold_whole_shapes_and_each_as_many_of_those_that_both_spaces_have() -> None:
    first = [GemmProblem(64 * number, 4096, 4096) for number in range(1, 17)]
    second = [GemmProblem(64, 4096 * number, 512) for number in range(1, 5)] + first[:8]
    fp8 = [GemmProblem.parse(f"{each.m}x4096x4096:e4m3") for each in first[:3]]
    part_of = unseen_parts([*first, *fp8], second, seed=1)

    assert set(part_of) == {str(problem) for problem in (*first, *fp8, *second)}
    assert set(Counter(part_of[str(problem)] for problem in first[:8]).values()) == {8 // PARTS}
    for problem, same in zip(first, fp8, strict=False):
        assert part_of[str(problem)] == part_of[str(same)]


def test_figures_are_of_all_searches() -> None:
    found = [
        Replayed("a", ALONE, (10,), 2, 0.0, [-0.2] * 6 + [-0.02] * 3 + [0.01]),
        Replayed("b", ALONE, (14,), 14, 0.03, [-0.2] * 12 + [-0.02] * 2),
        Replayed("c", ALONE, (30,), 3, 0.0),
    ]
    figures = summary(found)

    assert (figures["problems"], figures["missed"], figures["compiled_few"]) == (3, 1, 2)
    assert (figures["trials_median"], figures["compiled_median"]) == (14, 3)
    assert figures["regret_mean"] == pytest.approx(0.01)
    assert (figures["compared"], figures["lose"]) == (2, 1)
    assert [figures[f"lose_after_{count}"] for count in (7, 12)] == [2, 1]
    assert [figures[f"recover_after_{count}"] for count in (7, 12)] == [1, 0]
