"""The checksum of a fitted model's content: the same of equal models, another of any other one."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from tilescout.costmodel.analytic import AnalyticModel
from tilescout.costmodel.contents import content_sha256
from tilescout.costmodel.estimator import CostModel, Fitted
from tilescout.costmodel.persistence import load_model, save_model, shipped_model


@dataclass(frozen=True)
class Learned:
    names: tuple[str, ...] = ("a", "b")
    weights: Any = 0.5


class Own(CostModel):
    def __init__(self, fitted: Any) -> None:
        self.fitted = fitted

    def learn(self, samples: Any) -> Fitted:
        raise AssertionError("it was fitted before")


def test_a_model_that_was_read_twice_or_written_anew_has_one_checksum(tmp_path) -> None:
    path = shipped_model("gemm_sm90", "h200")
    assert path is not None
    model, card = load_model(path)
    save_model(tmp_path / "again.npz", model, replace(card, rows=1))
    assert content_sha256(load_model(tmp_path / "again.npz")[0]) == content_sha256(model)
    other = shipped_model("gemm_streamk_sm90", "h200")
    assert other is not None
    assert content_sha256(load_model(other)[0]) != content_sha256(model)


def test_whatever_differs_in_what_was_learned_makes_another_checksum() -> None:
    learned: list[Any] = [
        Learned(), Learned(("a", "c")), Learned(("ab",)), Learned(("a",)), Learned(weights=0.25),
        Learned(weights="0.5"), Learned(weights=None), Learned(weights=1), Learned(weights=True),
        Learned(weights=np.float64(0.5)),
        Learned(weights=np.zeros(4)), Learned(weights=np.zeros((2, 2))), Learned(weights=np.zeros(4, np.float32)),
        Learned(weights=np.zeros((4, 1))[::1]), Learned(weights={"a": 1}), Learned(weights={"a": 2}),
        Learned(weights=[1, 2]), Learned(weights=(1, 2)), Learned(weights=[[1], 2]),
    ]  # fmt: skip
    found = [content_sha256(Own(each)) for each in learned]
    assert len({*found}) == len(found)
    assert all(len(each) == 64 for each in found)
    assert content_sha256(Own(Learned())) == found[0]
    strided = np.arange(8.0)[::2]
    assert content_sha256(Own(Learned(weights=strided))) == content_sha256(Own(Learned(weights=strided.copy())))


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    "held", [object(), {1, 2}, np.array([None]), lambda: 0, LOOP], ids=lambda held: type(held).__name__
)
def test_of_what_has_no_content_that_is_known_there_is_no_checksum(held: Any) -> None:
    assert content_sha256(Own(Learned(weights=held))) == ""
    assert content_sha256(AnalyticModel()) == ""  # it was not fitted
