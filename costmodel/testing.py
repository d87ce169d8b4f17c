"""The conformance suite of cost models: what `CostModel` promises and searches rely on.

Subclass `CostModelConformance` in a test module, make the model, and pytest runs every check::

    from tilescout.costmodel.testing import CostModelConformance

    class TestLinearModel(CostModelConformance):
        def make(self):
            return LinearModel()

No check needs a GPU. The checks are plain methods, so that they run without pytest too.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache, cached_property
from unittest import SkipTest

import numpy as np

from tilescout.costmodel.analytic import Constants, time_us
from tilescout.costmodel.estimator import CostModel, Prediction, Sample
from tilescout.costmodel.features import Features, space_features
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.templates import find_template

__all__ = ["EXAMPLES", "CostModelConformance", "example_samples"]

EXAMPLES = ("1024x1024x1024", "4096x4096x4096", "64x8192x8192")
"""Problems of `example_samples`."""

ROUNDING = 1e-6
"""Of log times, about ten times that of single precision. Networks predict in it, and how a product of matrices rounds
depends on the number of its rows: by 4e-9 on an AMD EPYC (2026-11-28), and not at all on other processors."""


def example_samples(count: int = 80, noise: float = 0.02, seed: int = 0) -> list[Sample]:
    """Samples of three problems of ``gemm_sm90`` on an H200, whose times follow the analytic model and some noise.

    Parameters
    ----------
    count
        Configurations of each problem, at random.
    noise
        Standard deviation of the log times.
    seed
        Of configurations and noise.
    """
    return deepcopy(_example_samples(count, noise, seed))


@cache
def _example_samples(count: int, noise: float, seed: int) -> list[Sample]:
    rng, template, device = np.random.default_rng(seed), find_template("gemm_sm90"), find_device("h200")
    samples = []
    for text in EXAMPLES:
        problem = template.parse(text)
        space = template.space(problem, device)
        features = space_features(space.subset(space.sample(count, rng)), template)
        log_time = np.log(time_us(features, Constants())) + noise * rng.standard_normal(len(features))
        none = np.zeros(len(features), dtype=np.bool_)
        samples.append(Sample(str(problem), features, log_time, none, problem.family))
    return samples


class CostModelConformance:
    """The checks; every method whose name begins with ``test_`` is one. A subclass says how to `make` its model."""

    def make(self) -> CostModel:
        """A model that was not fitted; two of them are equal."""
        raise NotImplementedError("say how to make the model")

    @cached_property
    def samples(self) -> Sequence[Sample]:
        """Samples of two problems or more to learn from; override this for a model that needs other features."""
        return example_samples()

    def read_back(self, model: CostModel) -> CostModel:
        """Write a fitted model and read it; override this for a model that can be saved."""
        raise SkipTest("this model is not saved")

    @property
    def _first(self) -> Features:
        return self.samples[0].features

    def test_it_predicts_what_it_learned_from(self) -> None:
        """Predictions are finite, of the right shapes, and have an uncertainty."""
        model = self.make()
        assert model.fit(self.samples) is model, "fit does not return the model itself"
        for sample in self.samples:
            prediction = model.predict(sample.features)
            for name in ("mean", "spread"):
                column = getattr(prediction, name)
                assert column.shape == (len(sample),), f"{name} is not of shape [configurations]"
                assert column.dtype == np.float64, f"{name} is not of float64"
                assert np.isfinite(column).all(), f"{name} is not finite"
            assert (prediction.spread > 0).all(), "spread is not positive: no model is sure of a time"
            assert np.isfinite(prediction.shift), "shift is not finite"
            assert prediction.shift >= 0, "shift is negative"

    def test_it_predicts_log_microseconds(self) -> None:
        """The mean is the natural logarithm of the time in µs: on the whole within a factor of two of the samples."""
        model = self.make().fit(self.samples)
        errors = np.concatenate([sample.log_time - model.predict(sample.features).mean for sample in self.samples])
        exact = ~np.concatenate([sample.censored for sample in self.samples])
        off = abs(np.median(errors[exact]))
        assert off < np.log(2), f"mean is not the natural logarithm of a time in µs: it is off by {off:.2f}"

    def test_it_tells_configurations_apart(self) -> None:
        """The score on samples that it has seen is above 0, which a constant has."""
        score = self.make().fit(self.samples).score(self.samples)
        assert score > 0, f"the score on its own samples is {score:.3f}, no better than a constant"

    def test_it_refuses_to_predict_before_fit(self) -> None:
        """A model that was not fitted raises a ModelError."""
        _refused(lambda: self.make().predict(self._first), "a prediction before fit")

    def test_it_refuses_other_features(self) -> None:
        """Features that a model was not fitted to are refused, in `fit` and in `predict`."""
        model, one = self.make().fit(self.samples), self._first.only(self._first.names[:1])
        _refused(lambda: model.predict(one), "a prediction from one feature of many")
        mixed = [replace(self.samples[0], features=one), *self.samples[1:]]
        _refused(lambda: self.make().fit(mixed), "a fit to samples of different features")
        try:
            turned = model.predict(self._first.only(self._first.names[::-1]))
        except ModelError:
            return
        _same(turned, model.predict(self._first), "features in another order are neither refused nor put in order")

    def test_it_refuses_samples_without_times(self) -> None:
        """No samples, empty ones, and samples that are all censored are refused."""
        empty = [sample.take(np.empty(0, dtype=np.int64)) for sample in self.samples]
        _refused(lambda: self.make().fit([]), "a fit to no samples")
        _refused(lambda: self.make().fit(empty), "a fit to empty samples")
        _refused(
            lambda: self.make().fit([_censored(s, -np.inf) for s in self.samples]), "a fit to censored times alone"
        )

    def test_it_takes_censored_times(self) -> None:
        """Censored times are taken, also where all of one problem are, and beside an empty sample."""
        first, *others = self.samples
        half = [_censored(sample, float(np.median(sample.log_time))) for sample in self.samples]
        empty = first.take(np.empty(0, dtype=np.int64))
        for given in (half, [_censored(first, -np.inf), *others], [first, *others, empty]):
            prediction = self.make().fit(given).predict(self._first)
            assert np.isfinite(prediction.mean).all(), "mean is not finite after a fit to censored times"
            assert (prediction.spread > 0).all(), "spread is not positive after a fit to censored times"

    def test_it_is_reproducible(self) -> None:
        """Equal models that learn from equal samples predict the same to the bit; so does one that is fitted again."""
        model = self.make().fit(self.samples)
        first = model.predict(self._first)
        _same(self.make().fit(self.samples).predict(self._first), first, "equal models predict differently")
        _same(model.predict(self._first), first, "a second prediction differs")
        model.fit(self.samples[1:])
        _same(model.fit(self.samples).predict(self._first), first, "fit does not forget what was learned before")

    def test_it_leaves_its_samples_alone(self) -> None:
        """Neither `fit` nor `predict` changes what it is given."""
        given = deepcopy(list(self.samples))
        self.make().fit(given).predict(given[0].features)
        for kept, sample in zip(self.samples, given, strict=True):
            for before, after in (
                (kept.features.values, sample.features.values),
                (kept.log_time, sample.log_time),
                (kept.censored, sample.censored),
            ):
                assert np.array_equal(before, after), "fit or predict changes its samples"

    def test_it_predicts_each_configuration_by_itself(self) -> None:
        """A prediction does not depend on the configurations beside it, but for the rounding of single precision."""
        model = self.make().fit(self.samples)
        some = np.arange(len(self._first))[::-3]
        whole, part = model.predict(self._first), model.predict(self._first.take(some))
        for name in ("mean", "spread"):
            same = np.allclose(getattr(part, name), getattr(whole, name)[some], rtol=ROUNDING, atol=ROUNDING)
            assert same, f"{name} of a configuration depends on those beside it"

    def test_it_survives_a_file(self) -> None:
        """A model that was written and read predicts the same to the bit."""
        model = self.make().fit(self.samples)
        loaded = self.read_back(model)
        assert type(loaded) is type(model), f"a {type(model).__name__} is read back as a {type(loaded).__name__}"
        _same(loaded.predict(self._first), model.predict(self._first), "a model that was read predicts differently")


def _censored(sample: Sample, limit: float) -> Sample:
    """The sample with the times above a limit given up there; below every time, all are given up at their times."""
    censored = sample.log_time > limit
    return replace(sample, log_time=np.minimum(sample.log_time, max(limit, sample.log_time.min())), censored=censored)


def _refused(attempt: Callable[[], object], attempted: str) -> None:
    try:
        attempt()
    except ModelError:
        return
    raise AssertionError(f"{attempted} raises no ModelError")


def _same(found: Prediction, wanted: Prediction, fault: str) -> None:
    same = np.array_equal(found.mean, wanted.mean) and np.array_equal(found.spread, wanted.spread)
    assert same, fault
    assert found.shift == wanted.shift, fault
