"""Checks that a cost model keeps what `CostModel` promises: for models of one's own, and passed by those shipped here.

All at once, with an AssertionError that says what does not hold::

    from tilescout.costmodel.testing import check_cost_model

    check_cost_model(MyModel)

Or one test each, with pytest::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_model(check):
        check(MyModel, example_samples())

No check needs a GPU. Each makes models anew, by what it is given: a class, or a function without arguments.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tilescout.costmodel.analytic import Constants, time_us
from tilescout.costmodel.estimator import CostModel, Prediction, Sample
from tilescout.costmodel.features import Features, space_features
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.templates import find_template

Make = Callable[[], CostModel]
"""Makes a model that was not fitted; two of them are equal."""

Through = Callable[[CostModel], CostModel]
"""Writes a fitted model and reads it back."""

EXAMPLES = ("1024x1024x1024", "4096x4096x4096", "64x8192x8192")
"""Problems of `example_samples`."""


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
    rng, template, device = np.random.default_rng(seed), find_template("gemm_sm90"), find_device("h200")
    samples = []
    for text in EXAMPLES:
        problem = template.parse(text)
        space = template.space(problem, device)
        features = space_features(space.subset(space.sample(count, rng)), template)
        log_time = np.log(time_us(features, Constants())) + noise * rng.standard_normal(len(features))
        samples.append(Sample(str(problem), features, log_time, np.zeros(len(features), dtype=np.bool_)))
    return samples


def check_cost_model(make: Make, samples: Sequence[Sample] | None = None, through: Through | None = None) -> None:
    """Check everything.

    Parameters
    ----------
    make
        Makes a model.
    samples
        What it learns from, of two problems or more; `example_samples` unless the model needs other features.
    through
        Writes a model and reads it back, for models that can be saved.

    Raises
    ------
    AssertionError
        With what does not hold.
    """
    samples = example_samples() if samples is None else samples
    for check in CHECKS:
        check(make, samples)
    if through is not None:
        check_survives_a_file(make, samples, through)


def check_predicts_its_own_samples(make: Make, samples: Sequence[Sample]) -> None:
    """After `fit` a model predicts what it learned from: finite, of the right shapes, with an uncertainty."""
    model = make()
    _require(model.fit(samples) is model, "fit returns the model itself")
    for sample in samples:
        prediction = model.predict(sample.features)
        for name in ("mean", "spread"):
            column = getattr(prediction, name)
            _require(column.shape == (len(sample),), f"{name} is of shape [configurations]")
            _require(column.dtype == np.float64, f"{name} is of float64")
            _require(bool(np.isfinite(column).all()), f"{name} is finite")
        _require(bool((prediction.spread > 0).all()), "spread is positive: no model is sure of a time")
        _require(bool(np.isfinite(prediction.shift)) and prediction.shift >= 0, "shift is finite and not negative")


def check_predicts_log_microseconds(make: Make, samples: Sequence[Sample]) -> None:
    """The mean is the natural logarithm of the time in µs: on the whole within a factor of two of what was measured."""
    model = make().fit(samples)
    errors = np.concatenate([sample.log_time - model.predict(sample.features).mean for sample in samples])
    exact = ~np.concatenate([sample.censored for sample in samples])
    off = float(abs(np.median(errors[exact])))
    _require(off < np.log(2), f"mean is the natural logarithm of a time in µs: it is off by {off:.2f} in the median")


def check_learns(make: Make, samples: Sequence[Sample]) -> None:
    """A model tells configurations of a problem that it has seen apart: its score is above 0."""
    score = make().fit(samples).score(samples)
    _require(score > 0, f"the score on its own samples is above 0, which a constant has; it is {score:.3f}")


def check_refuses_to_predict_before_fit(make: Make, samples: Sequence[Sample]) -> None:
    """A model that was not fitted raises a ModelError."""
    _refused(lambda: make().predict(samples[0].features), "a prediction before fit")


def check_refuses_other_features(make: Make, samples: Sequence[Sample]) -> None:
    """Features that a model was not fitted to are refused, in `fit` and in `predict`."""
    model, features = make().fit(samples), samples[0].features
    one = features.only(features.names[:1])
    _refused(lambda: model.predict(one), "a prediction from one feature of many")
    mixed = [replace(samples[0], features=one), *samples[1:]]
    _refused(lambda: make().fit(mixed), "a fit to samples of different features")
    try:
        turned = model.predict(features.only(features.names[::-1]))
    except ModelError:
        return
    _same(turned, model.predict(features), "the order of features is refused or does not matter")


def check_refuses_nothing_to_learn_from(make: Make, samples: Sequence[Sample]) -> None:
    """No samples, empty ones, and samples that are all censored are refused."""
    none = np.empty(0, dtype=np.int64)
    _refused(lambda: make().fit([]), "a fit to no samples")
    _refused(lambda: make().fit([sample.take(none) for sample in samples]), "a fit to empty samples")
    censored = [replace(sample, censored=np.ones(len(sample), dtype=np.bool_)) for sample in samples]
    _refused(lambda: make().fit(censored), "a fit to times that are all censored")


def check_takes_censored_times(make: Make, samples: Sequence[Sample]) -> None:
    """Censored times are taken, also where all of one problem are; predictions stay finite."""
    slow = [_censored_above_median(sample) for sample in samples]
    whole = replace(samples[0], censored=np.ones(len(samples[0]), dtype=np.bool_))
    for given in (slow, [whole, *slow[1:]], [samples[0], *slow[1:], samples[0].take(np.empty(0, dtype=np.int64))]):
        prediction = make().fit(given).predict(samples[0].features)
        _require(bool(np.isfinite(prediction.mean).all()), "mean is finite after a fit to censored times")
        _require(bool((prediction.spread > 0).all()), "spread is positive after a fit to censored times")


def check_is_reproducible(make: Make, samples: Sequence[Sample]) -> None:
    """Equal models that learn from equal samples predict the same to the bit, and so does one that is fitted again."""
    model, features = make().fit(samples), samples[0].features
    first = model.predict(features)
    _same(make().fit(samples).predict(features), first, "equal models predict the same")
    _same(model.predict(features), first, "a second prediction is the same")
    model.fit(samples[1:])
    _same(model.fit(samples).predict(features), first, "fit forgets what was learned before")


def check_leaves_its_samples_alone(make: Make, samples: Sequence[Sample]) -> None:
    """Neither `fit` nor `predict` changes what it is given."""
    own = [
        Sample(s.problem, Features(s.features.names, s.features.values.copy()), s.log_time.copy(), s.censored.copy())
        for s in samples
    ]
    make().fit(own).predict(own[0].features)
    for kept, sample in zip(samples, own, strict=True):
        same = np.array_equal(kept.features.values, sample.features.values)
        same = (
            same and np.array_equal(kept.log_time, sample.log_time) and np.array_equal(kept.censored, sample.censored)
        )
        _require(same, "fit and predict leave samples and features unchanged")


def check_predicts_each_configuration_by_itself(make: Make, samples: Sequence[Sample]) -> None:
    """A prediction does not depend on the configurations beside it, but for rounding."""
    model, features = make().fit(samples), samples[0].features
    some = np.arange(len(features))[::-3]
    whole, part = model.predict(features), model.predict(features.take(some))
    for name in ("mean", "spread"):
        same = np.allclose(getattr(part, name), getattr(whole, name)[some], rtol=1e-9, atol=1e-9)
        _require(same, f"{name} of a configuration does not depend on those beside it")


def check_survives_a_file(make: Make, samples: Sequence[Sample], through: Through) -> None:
    """A model that was written and read predicts the same to the bit."""
    model = make().fit(samples)
    loaded = through(model)
    _require(type(loaded) is type(model), f"a {type(model).__name__} is read back as one")
    _same(loaded.predict(samples[0].features), model.predict(samples[0].features), "a model that was read predicts so")


CHECKS: Sequence[Callable[[Make, Sequence[Sample]], None]] = (
    check_predicts_its_own_samples,
    check_predicts_log_microseconds,
    check_learns,
    check_refuses_to_predict_before_fit,
    check_refuses_other_features,
    check_refuses_nothing_to_learn_from,
    check_takes_censored_times,
    check_is_reproducible,
    check_leaves_its_samples_alone,
    check_predicts_each_configuration_by_itself,
)
"""Checks that every cost model passes; `check_survives_a_file` is for those that can be saved."""


def _censored_above_median(sample: Sample) -> Sample:
    limit = float(np.median(sample.log_time))
    return replace(sample, log_time=np.minimum(sample.log_time, limit), censored=sample.log_time > limit)


def _require(holds: bool, promise: str) -> None:
    if not holds:  # not an assert statement: those are left out by python -O
        raise AssertionError(promise)


def _refused(attempt: Callable[[], object], attempted: str) -> None:
    try:
        attempt()
    except ModelError:
        return
    raise AssertionError(f"{attempted} raises a ModelError")


def _same(found: Prediction, wanted: Prediction, promise: str) -> None:
    same = np.array_equal(found.mean, wanted.mean) and np.array_equal(found.spread, wanted.spread)
    _require(same and found.shift == wanted.shift, f"{promise}, to the bit")
