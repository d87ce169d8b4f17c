"""The conformance suite for cost models: ours pass it, and it catches models that break a promise."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel import (
    AnalyticModel,
    BlendModel,
    BlendOptions,
    Calibration,
    CostModel,
    EnsembleModel,
    Features,
    ForestModel,
    ForestOptions,
    ModelCard,
    Prediction,
    RankingModel,
    RankingOptions,
    Sample,
    load_model,
    save_model,
)
from tilescout.costmodel.testing import CHECKS, check_cost_model, check_survives_a_file, example_samples
from tilescout.spaces.errors import ModelError

SMALL = ForestOptions(trees=4, validation_trees=2)
QUICK = RankingOptions(members=2, steps=20, width=8)
MODELS: dict[str, Callable[[], CostModel]] = {
    "analytic": AnalyticModel,
    "forest": lambda: ForestModel(SMALL),
    "ranking": lambda: RankingModel(QUICK),
    "blend": lambda: BlendModel(BlendOptions(SMALL, QUICK)),
}


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    return example_samples()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", MODELS)
def test_our_models_conform(kind: str, check: Callable[..., None], samples: list[Sample]) -> None:
    check(MODELS[kind], samples)


@pytest.mark.parametrize("kind", MODELS)
def test_our_models_survive_a_file(kind: str, samples: list[Sample], tmp_path: Path) -> None:
    def through(model: CostModel) -> CostModel:
        if isinstance(model, AnalyticModel):
            assert model.fitted is not None
            return AnalyticModel(Calibration.from_json(model.fitted.to_json()))
        assert isinstance(model, ForestModel | RankingModel | BlendModel)
        save_model(tmp_path / "model.npz", model, ModelCard("gemm_sm90", "h200", (), "invented", "00", 1))
        return load_model(tmp_path / "model.npz")[0]

    check_survives_a_file(MODELS[kind], samples, through)


@dataclass(frozen=True)
class Line:
    """A linear regression."""

    names: tuple[str, ...]
    weights: np.ndarray
    spread: float

    def predict(self, features: Features) -> Prediction:
        mean = np.column_stack([features.values, np.ones(len(features))]) @ self.weights
        return Prediction(mean, np.full(len(mean), self.spread), 0.1)


class LinearModel(CostModel):
    """A model of one's own."""

    def learn(self, samples: Sequence[Sample]) -> Line:
        exact = [sample.exact() for sample in samples]
        values = np.concatenate([sample.features.values for sample in exact])
        values = np.column_stack([values, np.ones(len(values))])
        times = np.concatenate([sample.log_time for sample in exact])
        weights = np.linalg.lstsq(values, times, rcond=None)[0]
        return Line(samples[0].features.names, weights, max(float(np.std(times - values @ weights)), 1e-3))


def test_a_model_of_ones_own_passes_in_one_call() -> None:
    check_cost_model(LinearModel)


def test_the_model_of_the_documentation_passes() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "cost-model.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    assert "check_cost_model(LinearModel)" in code
    exec(compile(code, str(page), "exec", dont_inherit=True), {"__name__": "page"})


class InSeconds(LinearModel):
    def predict(self, features: Features) -> Prediction:
        prediction = super().predict(features)
        return Prediction(prediction.mean - np.log(1e6), prediction.spread, prediction.shift)


class Sure(LinearModel):
    def predict(self, features: Features) -> Prediction:
        prediction = super().predict(features)
        return Prediction(prediction.mean, np.zeros(len(features)), prediction.shift)


class Random(LinearModel):
    def predict(self, features: Features) -> Prediction:
        prediction = super().predict(features)
        return Prediction(prediction.mean + np.random.default_rng().normal(size=len(features)), prediction.spread, 0.1)


class Relative(LinearModel):
    def predict(self, features: Features) -> Prediction:
        prediction = super().predict(features)
        return Prediction(prediction.mean - prediction.mean.mean() + 5, prediction.spread, 0.1)


class Careless(LinearModel):
    def check(self, features: Features) -> None:
        pass

    def predict(self, features: Features) -> Prediction:
        wide = np.zeros((len(features), 100))
        wide[:, : features.values.shape[1]] = features.values
        names = self.fitted.names if self.fitted is not None else ()
        return super().predict(Features(names, wide[:, : len(names)]))


class Remembering(LinearModel):
    def fit(self, samples: Sequence[Sample]) -> "Remembering":
        self.seen = [*getattr(self, "seen", ()), *samples]
        return super().fit(self.seen)


class Scribbling(LinearModel):
    def learn(self, samples: Sequence[Sample]) -> Line:
        line = super().learn(samples)
        samples[0].features.values[:] -= 1
        return line


class Constant(LinearModel):
    def predict(self, features: Features) -> Prediction:
        prediction = super().predict(features)
        return Prediction(np.full(len(features), 4.0), prediction.spread, 0.1)


class Confident(LinearModel):
    """Predicts before it was fitted."""

    def predict(self, features: Features) -> Prediction:
        if self.fitted is None:
            return Prediction(np.zeros(len(features)), np.ones(len(features)), 0.0)
        return super().predict(features)


class Believing(LinearModel):
    """Learns from nothing."""

    def fit(self, samples: Sequence[Sample]) -> "Believing":
        try:
            super().fit(samples)
        except ModelError:
            self.fitted = None
        return self


@pytest.mark.parametrize(
    ("broken", "promise"),
    [
        (InSeconds, "natural logarithm of a time in µs"),
        (Sure, "spread is positive"),
        (Random, "to the bit"),
        (Relative, "does not depend on those beside it"),
        (Careless, "raises a ModelError"),
        (Remembering, "fit forgets"),
        (Scribbling, "unchanged"),
        (Constant, "the score on its own samples"),
        (Confident, "a prediction before fit raises"),
        (Believing, "a fit to samples of different features raises"),
    ],
)
def test_a_broken_promise_is_named(broken: type[CostModel], promise: str, samples: list[Sample]) -> None:
    faults = []
    for check in CHECKS:
        own = [replace(s, features=Features(s.features.names, s.features.values.copy())) for s in samples]
        try:
            check(broken, own)
        except AssertionError as error:
            faults.append(str(error))
    assert any(promise in fault for fault in faults), faults


def test_a_model_that_a_file_can_not_hold_is_refused(samples: list[Sample], tmp_path: Path) -> None:
    class Own(EnsembleModel):
        seed = 0

        def grow(self, samples: Sequence[Sample], draft: bool = False) -> "Halves":
            return Halves(samples[0].features.names)

    @dataclass(frozen=True)
    class Halves:
        names: tuple[str, ...]

        def predict(self, features: Features) -> tuple[np.ndarray, np.ndarray]:
            return np.full(len(features), 4.0), np.full(len(features), 0.1)

    model = Own().fit(samples)
    assert (model.predict(samples[0].features).spread > 0).all()
    with pytest.raises(ModelError, match="can't hold a Halves"):
        save_model(tmp_path / "own.npz", model, ModelCard("x", "h200", (), "t", "00", 1))  # type: ignore[arg-type]
