"""The answers of searches: how far from the best, against the default, from another process, at what cost."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tilescout.experiments.compare.answers import answers_of
from tilescout.experiments.compare.play import Case, Run, Trace
from tilescout.experiments.compare.result import compare_traces
from tilescout.experiments.compare.truth import Truth
from tilescout.spaces.named import NamedProblem

CASES = [Case("t.parquet", "0", name) for name in "ab"]
TIMES = np.array([10.0, 10.05, 12.0, 20.0])


def truth(default_us: float) -> Truth:
    costs = np.array([1.0, 2.0, 3.0, 4.0])
    return Truth(TIMES, np.ones(4, dtype=bool), costs, 10 * costs, default_us=default_us)


def trace(case: Case, seed: int, indices: Sequence[int], error: str = "") -> Trace:
    return Trace(Run("x", case, 3, seed), tuple(indices), 0.5, error)


def test_every_figure_is_what_its_name_says() -> None:
    truths = {CASES[0]: truth(12.0), CASES[1]: truth(float("nan"))}
    traces = [
        *(trace(CASES[0], 0, [3, 2]), trace(CASES[0], 1, [1]), trace(CASES[0], 2, [3, 1, 2, 0])),  # the 4th is too late
        trace(CASES[1], 0, [3]),
    ]
    found = answers_of(traces, truths, 3)
    assert found["regret"] == pytest.approx(np.mean([0.2, 0.005, 0.005, 1.0]))
    assert found["slower_than_default"] == 0  # of the first problem alone: the second has no default
    assert found["flips"] == pytest.approx(2 / 3)
    assert found["kernels"] == pytest.approx((2 + 1 + 3 + 1) / 4)
    assert found["gpu_seconds"] == pytest.approx((7 + 2 + 9 + 4) / 4)
    assert found["compile_seconds"] == pytest.approx(10 * found["gpu_seconds"])
    assert found["own_seconds"] == 0.5


def test_costs_that_were_not_recorded_are_not_told_as_none() -> None:
    without = replace(truth(12.0), gpu_seconds=np.zeros(4), compile_seconds=np.zeros(4))
    traces = [trace(CASES[0], 0, [3, 2]), trace(CASES[1], 0, [0])]
    found = compare_traces({CASES[0]: truth(12.0), CASES[1]: without}, traces, 3, 1)
    (standing,) = found.standings
    assert (standing.answers["gpu_seconds"], standing.answers["compile_seconds"]) == (7, 70)
    assert standing.within["5%"]["gpu_seconds_median"] == np.inf  # of the first problem, where it was not found
    (nothing,) = compare_traces({CASES[1]: without}, traces[1:], 3, 1).standings
    told = (
        *(nothing.answers[f"{what}_seconds"] for what in ("gpu", "compile")),
        nothing.within["1%"]["gpu_seconds_p90"],
    )
    assert np.isnan(told).all()
    free_to_compile = replace(truth(12.0), compile_seconds=np.zeros(4))
    (library,) = compare_traces({CASES[1]: free_to_compile}, traces[1:], 3, 1).standings
    assert (library.answers["gpu_seconds"], library.answers["compile_seconds"]) == (1, 0)


def test_an_answer_slower_than_the_default_is_counted_and_nothing_is_said_of_nothing() -> None:
    truths = {CASES[0]: truth(10.0)}
    found = answers_of([trace(CASES[0], 0, [1]), trace(CASES[0], 1, [0])], truths, 3)
    assert (found["slower_than_default"], found["flips"]) == (0.5, 0.0)
    assert np.isnan(answers_of([trace(CASES[0], 0, [1])], truths, 3)["flips"])
    assert answers_of([trace(CASES[0], 0, [])], truths, 3) == {}


def test_speeds_of_answers_are_over_the_library_and_over_its_best_where_these_are_known() -> None:
    known = replace(truth(12.0), library_us=15.0, library_best_us=12.0)
    truths = {CASES[0]: known, CASES[1]: replace(truth(12.0), library_us=20.0)}
    found = answers_of([trace(CASES[0], 0, [0]), trace(CASES[1], 0, [3])], truths, 3)
    assert found["over_library"] == pytest.approx((15 / 10 * 20 / 20) ** 0.5)
    assert found["over_library_best"] == pytest.approx(12 / 10)  # of the first problem alone
    nothing = answers_of([trace(CASES[0], 0, [0])], {CASES[0]: truth(12.0)}, 3)
    assert np.isnan(nothing["over_library"])
    assert np.isnan(nothing["over_library_best"])


def test_recordings_that_name_one_size_are_of_one_shape_where_their_kernel_is_the_same() -> None:
    problem = NamedProblem("4096x4096")
    spaces = {Case(f"{name}.parquet", name, str(problem)): name[:-1] for name in ("gemm1", "gemm2", "hotspot1")}
    truths = {case: replace(truth(10.0), problem=problem, space=space) for case, space in spaces.items()}
    traces = [trace(case, seed, [seed, 2]) for case in spaces for seed in range(2)]
    assert compare_traces(truths, traces, 3, 2).shapes == 2


def test_a_score_without_a_problem_on_which_a_strategy_failed_is_warned_of() -> None:
    truths = {case: truth(12.0) for case in CASES}
    whole = [Trace(Run("y", case, 3, 0), (1, 0), 0.5) for case in CASES]
    part = [trace(CASES[0], 0, [0]), trace(CASES[1], 0, [], "it broke")]
    warnings = compare_traces(truths, [*whole, *part], 3, 1).warnings
    assert [each for each in warnings if each.startswith("every search of x failed on t b: its score is without")]
    assert not any("every search" in each for each in compare_traces(truths, whole, 3, 1).warnings)


def test_a_warning_of_tests_counts_the_strategies_and_problems_that_have_scores() -> None:
    cases = [Case(f"{name}.parquet", name, "p") for name in "abcdef"]
    truths = {case: truth(12.0) for case in cases}
    found = [Trace(Run(name, case, 3, 0), tried, 0.5) for name, tried in (("x", (0,)), ("y", (1, 0))) for case in cases]
    broken = [Trace(Run("z", case, 3, 0), (), 0.5, "it broke") for case in cases]
    compared = compare_traces(truths, [*found, *broken], 3, 1)
    assert {test.unit for test in compared.tests} == {"problem"}
    assert not any("can prove nothing" in each for each in compared.warnings)
    half = [each for each in found if each.run.contender == "x" or each.run.case in cases[:2]]
    (told,) = (each for each in compare_traces(truths, half, 3, 1).warnings if "can prove nothing" in each)
    assert told.startswith("some strategies have searches of fewer than 6 problems of different shape in common")
    alike = {case: replace(truth(12.0), times_us=np.full(4, 10.0)) for case in cases[1:]}
    some = compare_traces(truths | alike, found, 3, 1)
    assert some.shapes == 1
    (told,) = (each for each in some.warnings if "can prove nothing" in each)
    assert told.startswith("1 problem of different shape can prove nothing between 2 strategies")
    assert any(each.startswith("intervals over 1 problem ") for each in some.warnings)
