"""Kinds of kernels of ``gemm_streamk_sm90`` that are compared, and what a kind gains."""

import numpy as np
import pytest

from tilescout.experiments.research.studies.sharing_knobs import PLAIN, kinds_of, worth
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template


def test_no_kernel_is_of_two_kinds_and_each_has_its_knob() -> None:
    space = find_template("gemm_streamk_sm90").space(GemmProblem.parse("600x1032x2048:bf16"), DEVICES["h200"])
    kinds = kinds_of(space.columns)
    assert (np.sum(list(kinds.values()), axis=0) <= 1).all()
    assert all(mask.any() for mask in kinds.values())
    assert (space.columns["split"][kinds["split"]] > 1).all()
    assert (space.columns["stream_k"][kinds["stream_k"]] == 1).all()
    assert (space.columns["tile_n"][kinds["fine"]] % 16 == 8).all()
    assert (space.columns["raster"][kinds["pairs"]] == "pairs").all()
    assert (space.columns["split"][kinds[PLAIN]] == 1).all()


def test_a_kind_is_worth_what_its_median_gains_on_the_plain_one_and_on_all_others() -> None:
    kinds = {PLAIN: {"ratios": [1.0, 0.9, 5.0]}, "split": {"ratios": [0.8, 0.8, 0.1]}, "fine": {"ratios": [2.0]}}
    gains = worth(kinds)
    assert gains["split"] == pytest.approx((0.25, 0.25))
    assert gains["fine"] == pytest.approx((-0.5, -0.6))
    assert worth({"split": {"ratios": [1.0]}}) == {}
