"""NVIDIA's heuristics in their own process, where they are installed."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from tilescout.costmodel import heuristics
from tilescout.costmodel.heuristics import Suggestion, is_installed, matches, suggest
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

installed = pytest.mark.skipif(not is_installed(), reason="needs nvidia-matmul-heuristics")
PROBLEM = GemmProblem(4096, 4096, 4096)


@installed
def test_suggestions_are_distinct_and_in_the_order_of_their_estimates() -> None:
    found = suggest(PROBLEM, "h200", 16)
    times = [suggestion.time_us for suggestion in found]
    assert times == sorted(times)
    assert 100 < times[0] < 1000
    shapes = {(s.rows, s.columns, s.depth, s.cluster_m, s.cluster_n, s.split_k) for s in found}
    assert len(shapes) == len(found)
    assert "nvMatmulHeuristics" not in sys.modules


@installed
@pytest.mark.parametrize("layout", sorted(heuristics.LAYOUTS))
def test_each_layout_of_operands_is_asked_for(layout: str) -> None:
    assert suggest(replace(PROBLEM, layout=layout), "h200", 4)


@installed
def test_a_problem_that_crashes_it_is_an_error_and_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(heuristics.GPUS, "h200", "NO_SUCH_GPU")
    with pytest.raises(ModelError, match="gave no answer"):
        suggest(PROBLEM, "h200", 4)


def test_what_it_does_not_know_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heuristics, "is_installed", lambda: False)
    with pytest.raises(ModelError, match=r"pip install 'tilescout\[heuristics\]'"):
        suggest(PROBLEM, "h200")
    monkeypatch.setattr(heuristics, "is_installed", lambda: True)
    with pytest.raises(ModelError, match="knows no abacus"):
        suggest(PROBLEM, "abacus")
    with pytest.raises(ModelError, match="not asked for e4m3, only for bf16, fp16"):
        suggest(replace(PROBLEM, dtype="e4m3", out="bf16"), "h200")


def test_a_suggestion_matches_every_configuration_with_its_tile_and_cluster() -> None:
    template = find_template("gemm_sm90")
    space = template.space(PROBLEM, DEVICES["h200"])
    tiling = template.tiling(space.columns, PROBLEM)
    assert tiling is not None
    rows = matches(Suggestion(128, 256, 64, 2, 1, 1, 4, 100.0), tiling)
    wanted = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "cluster_m": 2, "cluster_n": 1}
    for name, value in wanted.items():
        assert (space.columns[name][rows] == value).all()
    every = np.logical_and.reduce([space.columns[name] == value for name, value in wanted.items()])
    assert len(rows) == every.sum() > 0
    assert not len(matches(Suggestion(128, 256, 64, 2, 1, 2, 4, 100.0), tiling))
