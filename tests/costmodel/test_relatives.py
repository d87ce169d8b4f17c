"""Models of relatives: which kernels have one, and how much it is believed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.costmodel import Features, Prediction, space_features
from tilescout.costmodel.likeness import Likeness
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.costmodel.relatives import ERROR, doubted, model_for, relative_model
from tilescout.spaces.devices import find_device
from tilescout.spaces.templates import find_template


@pytest.mark.parametrize(
    ("space", "relative"),
    [
        ("quack_sm90", "gemm_sm90"),
        ("cublaslt", "gemm_sm90"),
        ("grouped_swiglu_sm90", "grouped_gemm_sm90"),
        ("grouped_scaled_sm90", "grouped_gemm_sm90"),
        ("grouped_gemm_sm90", ""),
        ("quack_varlen", ""),
        ("softmax_sm90", ""),
        ("gemm_sm90", "gemm_streamk_sm90"),
        ("unheard-of", ""),
    ],
)
def test_a_product_without_a_model_has_that_of_one_that_is_described_alike(space: str, relative: str) -> None:
    assert relative_model(space, "h200") == (shipped_model(relative, "h200") if relative else None)
    assert relative_model(space, "h100") == relative_model(space, "h200")  # a sibling's
    assert relative_model(space, "b200") is None  # nothing of that architecture is shipped


def test_a_device_without_a_model_has_that_of_a_sibling() -> None:
    shipped = shipped_model("gemm_sm90", "h200")
    assert shipped is not None
    assert model_for("gemm_sm90", "h200") == model_for("gemm_sm90", "h100") == model_for("gemm_sm90", "h100-pcie")
    assert model_for("gemm_sm90", "h100") == shipped
    assert shipped_model("gemm_sm90", "h100") is None
    assert model_for("gemm_sm90", "b200") is None
    assert model_for("gemm_sm90", "unheard-of") is None
    assert model_for("quack_sm90", "h100") is None  # of another kernel it is a relative's


def test_the_model_of_a_sibling_expects_longer_times_where_memory_is_slower() -> None:
    path, template = model_for("gemm_sm90", "h100"), find_template("gemm_sm90")
    assert path is not None
    model, problem = load_model(path)[0], template.parse("16x8192x8192:bf16")  # reads B, and does little else
    times = {
        device: model.predict(space_features(template.space(problem, find_device(device)), template)).mean
        for device in ("h100", "h200")
    }
    assert 0.1 < times["h100"].min() - times["h200"].min() <= np.log(4.8 / 3.35)


def test_the_model_of_a_relative_takes_the_features_of_the_space() -> None:
    template = find_template("quack_sm90")
    space = template.space(template.parse("512x512x4096:bf16"), find_device("h200"))
    path = relative_model(space.name, "h200")
    assert path is not None
    few = space_features(space.subset(np.arange(0, len(space), 997)), template)
    model, card = load_model(path)
    assert card.space == "gemm_sm90"
    assert np.ptp(model.predict(few).mean) > 0.5  # it tells configurations apart


def test_configurations_of_alike_features_lie_near_one_another() -> None:
    features = Features(("same", "work"), np.array([[1.0, 2.0], [1.0, 4.0], [1.0, 3.0]]))
    likeness = Likeness.of(features)
    assert likeness.points(features).tolist() == [[0.0], [1.0], [0.5]]  # what does not differ is left out
    other = Features(("same", "work"), np.array([[7.0, 6.0]]))
    assert likeness.points(other).tolist() == [[2.0]]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=5), st.floats(0, 10))
def test_what_a_relative_says_is_believed_less_and_says_the_same(spreads: list[float], shift: float) -> None:
    told = Prediction(np.arange(len(spreads), dtype=np.float64), np.array(spreads), shift)
    less = doubted(told)
    assert (less.mean == told.mean).all()
    assert (less.spread >= np.maximum(told.spread, ERROR)).all()
    assert less.shift >= max(shift, ERROR)
