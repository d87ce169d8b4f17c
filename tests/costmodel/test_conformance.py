"""The conformance suite for cost models: ours pass it, and it catches models that break a promise."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import SkipTest

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
from tilescout.costmodel.testing import CostModelConformance, example_samples
from tilescout.spaces.errors import ModelError

SMALL = ForestOptions(trees=4, validation_trees=2)
QUICK = RankingOptions(members=2, steps=20, width=8)


class Saved(CostModelConformance):
    """Ours but the analytic one are saved as an archive."""

    def read_back(self, model: CostModel) -> CostModel:
        assert isinstance(model, ForestModel | RankingModel | BlendModel)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "model.npz"
            save_model(path, model, ModelCard("gemm_sm90", "h200", (), (), 1))
            return load_model(path)[0]


class TestAnalyticModel(CostModelConformance):
    def make(self) -> CostModel:
        return AnalyticModel()

    def read_back(self, model: CostModel) -> CostModel:
        assert isinstance(model.fitted, Calibration)
        return AnalyticModel(Calibration.from_json(model.fitted.to_json()))


class TestForestModel(Saved):
    def make(self) -> CostModel:
        return ForestModel(SMALL)


class TestRankingModel(Saved):
    def make(self) -> CostModel:
        return RankingModel(QUICK)


@pytest.mark.slow
class TestBlendModel(Saved):
    def make(self) -> CostModel:
        return BlendModel(BlendOptions(SMALL, QUICK))


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


class TestModelOfOnesOwn(CostModelConformance):
    def make(self) -> CostModel:
        return LinearModel()


def faults_of(suite: CostModelConformance) -> list[str]:
    """The faults that the checks of a suite find, each on an object of its own."""
    faults = []
    for name in dir(suite):
        if name.startswith("test_"):
            try:
                getattr(type(suite)(), name)()
            except AssertionError as error:
                faults.append(str(error))
            except SkipTest:
                pass
    return faults


def test_the_model_of_the_documentation_passes() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "cost-model.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(page), "exec", dont_inherit=True), names)
    assert faults_of(names["TestLinearModel"]()) == []


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
    ("broken", "fault"),
    [
        (InSeconds, "mean is not the natural logarithm of a time in µs"),
        (Sure, "spread is not positive"),
        (Random, "predict differently"),
        (Relative, "depends on those beside it"),
        (Careless, "raises no ModelError"),
        (Remembering, "fit does not forget"),
        (Scribbling, "changes its samples"),
        (Constant, "no better than a constant"),
        (Confident, "a prediction before fit raises no"),
        (Believing, "a fit to samples of different features raises no"),
    ],
)
def test_a_broken_promise_is_named(broken: type[CostModel], fault: str) -> None:
    class Suite(CostModelConformance):
        def make(self) -> CostModel:
            return broken()

    assert any(fault in found for found in faults_of(Suite()))


def test_a_model_that_a_file_can_not_hold_is_refused(tmp_path: Path) -> None:
    class Own(EnsembleModel):
        seed = 0

        def grow(self, samples: Sequence[Sample], draft: bool = False) -> "Halves":
            return Halves(samples[0].features.names)

    @dataclass(frozen=True)
    class Halves:
        names: tuple[str, ...]

        def predict(self, features: Features) -> tuple[np.ndarray, np.ndarray]:
            return np.full(len(features), 4.0), np.full(len(features), 0.1)

    samples = example_samples()
    model = Own().fit(samples)
    assert (model.predict(samples[0].features).spread > 0).all()
    with pytest.raises(ModelError, match="can't hold a Halves"):
        save_model(tmp_path / "own.npz", model, ModelCard("x", "h200", (), (), 1))  # type: ignore[arg-type]
    of_its_own = LinearModel().fit(samples)
    with pytest.raises(ModelError, match=r"can't hold a Line, .*; a model of your own is passed to a search as it is"):
        save_model(tmp_path / "own.npz", of_its_own, ModelCard("x", "h200", (), (), 1))  # type: ignore[arg-type]
