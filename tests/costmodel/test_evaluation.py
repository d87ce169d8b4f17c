"""Regret, rank correlation and intervals, on cases whose answer is known."""

import numpy as np
import pytest

from tilescout.costmodel.estimator import CostModel, Prediction, Sample
from tilescout.costmodel.evaluation import (
    impossible_share,
    leave_out,
    median_interval,
    quality,
    rank_correlation,
    regret_of_groups,
    regret_of_order,
    summarise,
)
from tilescout.costmodel.features import Features
from tilescout.costmodel.roofline import Roofline
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

TRUTH = np.log(np.array([3.0, 1.0, 2.0, 1.5, 4.0, 5.0, 1.2]))


def sample_of(problem: str, log_time: np.ndarray = TRUTH) -> Sample:
    features = Features(("knob:a",), np.arange(len(log_time), dtype=np.float64)[:, None])
    family = GemmProblem.parse(problem).family
    return Sample(problem, features, log_time, np.zeros(len(log_time), dtype=np.bool_), family)


def test_regret_is_of_the_best_among_the_first() -> None:
    regret = regret_of_order(TRUTH, np.array([2, 0, 4, 5, 6, 1, 3]))
    assert regret[1] == pytest.approx(1.0)
    assert regret[5] == pytest.approx(0.2)
    assert regret[10] == 0


def test_regret_of_groups_takes_each_at_its_best() -> None:
    regret = regret_of_groups(TRUTH, [np.array([0, 2]), np.array([3, 4])])
    assert regret[1] == pytest.approx(1.0)
    assert regret[5] == pytest.approx(0.5)
    assert regret_of_groups(TRUTH, []) == {}


def test_ranks_are_correlated_within_the_fastest_tenth_only() -> None:
    truth = np.arange(100.0)
    mean = np.concatenate([np.arange(10.0), np.arange(90.0)[::-1]])
    assert rank_correlation(truth, mean) == pytest.approx(1.0)
    assert rank_correlation(truth, -mean) == pytest.approx(-1.0)
    assert np.isnan(rank_correlation(truth[:5], mean[:5]))
    assert np.isnan(rank_correlation(np.ones_like(truth), mean))


def test_quality_separates_a_shift_from_the_rest() -> None:
    prediction = Prediction(TRUTH - 0.3, np.full(7, 0.01), 0.2)
    found = quality(sample_of("16x4096x4096:bf16"), prediction)
    assert found.shift == pytest.approx(0.3)
    assert found.error == pytest.approx(0)
    assert found.regret[1] == 0
    assert found.covered == 1
    assert found.family == "skinny"


def test_censored_times_are_not_judged() -> None:
    sample = sample_of("8192x8192x8192:bf16")
    sample.censored[1] = True  # the fastest
    found = quality(sample, Prediction(TRUTH, np.full(7, 0.01), 0.2))
    assert found.regret[1] == 0
    sample.censored[:] = True
    with pytest.raises(ModelError, match="every measurement of 8192x8192x8192:bf16 was given up early"):
        quality(sample, Prediction(TRUTH, np.full(7, 0.01), 0.2))


class Recorder(CostModel):
    seen: list[list[str]] = []  # noqa: RUF012  (what every instance was fitted to)

    def learn(self, samples):
        Recorder.seen.append([sample.problem for sample in samples])
        return self

    def predict(self, features):
        return Prediction(np.zeros(len(features)), np.ones(len(features)), 0.0)


def test_what_is_left_out_was_not_seen() -> None:
    samples = [sample_of(name) for name in ("8x8x8:bf16", "16x8x8:bf16", "24x8x8:bf16")]
    Recorder.seen = []
    predicted = leave_out(samples, ["a", "b", "a"], lambda rest: Recorder().fit(rest))
    assert Recorder.seen == [["16x8x8:bf16"], ["8x8x8:bf16", "24x8x8:bf16"]]
    assert [sample.problem for sample, _ in predicted] == [sample.problem for sample in samples]


def test_a_problem_of_which_all_was_given_up_is_learned_from_and_not_judged() -> None:
    samples = [sample_of(name) for name in ("8x8x8:bf16", "16x8x8:bf16", "24x8x8:bf16")]
    samples[2].censored[:] = True
    Recorder.seen = []
    predicted = leave_out(samples, ["a", "b", "c"], lambda rest: Recorder().fit(rest))
    assert [sample.problem for sample, _ in predicted] == ["8x8x8:bf16", "16x8x8:bf16"]
    assert Recorder.seen == [["16x8x8:bf16", "24x8x8:bf16"], ["8x8x8:bf16", "24x8x8:bf16"]]


def test_an_interval_holds_its_median_and_narrows_with_more_values() -> None:
    rng = np.random.default_rng(0)
    few, many = median_interval(rng.normal(size=10).tolist()), median_interval(rng.normal(size=1000).tolist())
    assert few.low <= few.value <= few.high
    assert many.high - many.low < few.high - few.low
    assert np.isnan(median_interval([float("nan")]).value)


def test_values_of_one_label_are_drawn_together_so_that_copies_narrow_no_interval() -> None:
    values = np.random.default_rng(0).normal(size=12)
    alone = median_interval(values.tolist(), labels=[str(at) for at in range(12)])
    copied = median_interval([*values, *values, *values], labels=[str(at) for at in range(12)] * 3)

    assert copied == alone
    plain = median_interval(values.tolist())
    assert alone.value == plain.value
    assert alone.low == pytest.approx(plain.low, abs=0.05)
    assert alone.high == pytest.approx(plain.high, abs=0.05)


def test_groups_of_different_sizes_have_the_median_of_what_is_drawn() -> None:
    known = median_interval([1.0, float("nan"), 2.0, 5.0, 7.0], labels=["a", "a", "b", "b", "b"])

    assert known.value == 3.5
    assert (known.low, known.high) == (1.0, 5.0)  # of a alone, and of b alone


def test_a_summary_has_every_figure() -> None:
    one = quality(sample_of("16x4096x4096:bf16"), Prediction(TRUTH, np.full(7, 0.01), 0.2))
    assert summarise([one, one])["regret_top5"].value == 0


def test_families_are_by_what_bounds_them() -> None:
    names = {"small": "1024x1024x1024", "skinny": "16x4096x4096", "large": "2048x2048x2048"}
    for family, text in names.items():
        assert GemmProblem.parse(text).family == family


class Constant(CostModel):
    """Predicts one log time for all configurations."""

    def __init__(self, log_time):
        self.log_time = log_time

    def learn(self, samples):
        return self

    def predict(self, features):
        return Prediction(np.full(len(features), self.log_time), np.ones(len(features)), 0.0)


def test_predictions_that_no_kernel_can_keep_are_counted_over_all_problems() -> None:
    template, device = find_template("gemm_sm90"), find_device("h200")
    problems = [GemmProblem.parse(text) for text in ("64x8192x8192:bf16", "4096x4096x4096:bf16")]
    least = np.log([Roofline.of(problem, device).least_us for problem in problems])
    assert least[0] < least[1]
    between = Constant(least.mean())  # as fast can the first be, and the second not
    assert impossible_share(between, template, problems, device, seed=0, count=100) == 0.5
    assert impossible_share(between, template, problems[:1], device, seed=0, count=100) == 0


class OfItsSpace(Constant):
    """Remembers how many configurations it was asked for."""

    asked: list[int] = []  # noqa: RUF012

    def predict(self, features):
        OfItsSpace.asked.append(len(np.unique(features.values, axis=0)))
        return super().predict(features)


def test_of_a_large_space_some_configurations_are_looked_at_and_of_a_small_one_all() -> None:
    template, device = find_template("softmax_sm90"), find_device("h200")
    problem = template.parse("4096x4096:bf16")
    size = len(template.space(problem, device))
    for count, expected in ((5, 5), (size, size), (size + 1, size)):
        OfItsSpace.asked = []
        impossible_share(OfItsSpace(0.0), template, [problem], device, seed=1, count=count)
        assert OfItsSpace.asked == [expected]
