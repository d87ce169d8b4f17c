"""The standing of grouped products beside their peers."""

import pytest

from tilescout.experiments.research.grouped_tuners import QUACK, TRITON
from tilescout.experiments.research.studies.grouped_standing import standing


def record(**speeds: float) -> dict[str, object]:
    """A problem, as `grouped peers` keeps it."""
    named = {
        "grouped_gemm_sm90 best": 1.5, "grouped_gemm_sm90 default": 1.2, "quack_varlen best": 1.4,
        "quack_varlen default": 0.9, "cuBLAS by expert": 0.5, **speeds,
    }  # fmt: skip
    return {"speedup_over_library": {name: {"value": value} for name, value in named.items()}}


def test_ours_stands_beside_the_best_of_what_users_get_and_beside_the_best_of_all() -> None:
    found = standing({"a": record(**{QUACK: 1.25}), "b": record(**{QUACK: 0.8, TRITON: 0.7}), "c": record()})
    assert list(found["problems"]) == ["a", "b"]  # nobody asked Quack's autotuner for the last
    a, b = found["problems"].values()
    assert (a["best_peer"], a["over_peers"]) == (QUACK, 1.5 / 1.25)
    assert (b["best_peer"], b["over_peers"]) == ("torch._grouped_mm", 1.5)
    assert a["over_all"] == b["over_all"] == 1.5 / 1.4
    assert found["means"]["over_peers"] == pytest.approx((1.2 * 1.5) ** 0.5)
    low, high = found["intervals"]["over_peers"]
    assert low < found["means"]["over_peers"] < high
    assert found["slower"] == 0
