"""The calibration of the stopping rule: what a factor promises, and what it is found from."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel.persistence import load_model
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.stop_rule import RISK, Watched, calibrated, figures
from tilescout.search.samplers.guided.options import GuidedOptions
from tilescout.search.tables.table import Table
from tilescout.spaces.gemm import GemmProblem

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"
RECORDED = RESULTS / "evaluation-2026-11-22" / "stop-rule.json.gz"


def watched(problem: str, left: list[float], widest: list[float], shape: str = "") -> Watched:
    return Watched("table", problem, shape or problem, "large", left, widest, [0.01] * len(left))


def drawn(count: int, rng: np.random.Generator) -> list[Watched]:
    """Searches that find the best after a random time, and grow sure of it at a random rate."""
    found, sure = rng.integers(1, 40, count), rng.lognormal(0, 0.5, count)
    return [
        watched(f"p{at}", [0.05] * int(found[at]) + [0.0] * (40 - int(found[at])), (np.arange(40) / 20 * one).tolist())
        for at, one in enumerate(sure)
    ]


def test_a_search_misses_if_it_stops_with_more_left_than_is_worth_it() -> None:
    one = watched("p", [0.05, 0.05, 0.02, 0.0], [0.0, 1.2, 1.1, 3.0])
    assert (one.stop(1.0), one.misses(1.0)) == (2, True)
    assert (one.stop(1.2), one.misses(1.2)) == (4, False)
    assert (one.stop(3.0), one.misses(3.0)) == (None, False)  # it uses its budget
    assert one.least == 1.2


def test_the_factor_keeps_the_promise_on_problems_that_it_was_not_found_on() -> None:
    rng = np.random.default_rng(0)
    missed = []
    for _ in range(300):
        factor = calibrated(drawn(30, rng))
        assert factor is not None
        missed.append(np.mean([one.misses(factor) for one in drawn(30, rng)]))
    assert np.mean(missed) <= RISK
    assert np.mean(missed) > RISK / 4  # it is no larger than it has to be


def test_problems_of_one_shape_count_as_one_and_too_few_shapes_promise_nothing() -> None:
    rng = np.random.default_rng(1)
    few = drawn(18, rng)
    assert calibrated(few) is None
    assert calibrated([*few, *drawn(1, rng)]) is None  # one of the name of another
    assert calibrated([*few, watched("other", [0.05, 0.0], [0.0, 2.0])]) is not None


def test_the_shipped_factor_is_the_one_of_the_recorded_searches() -> None:
    searches = [Watched(**one) for one in Record.read(RECORDED).result["searches"]]
    factor = calibrated(searches)
    assert factor is not None
    assert factor <= GuidedOptions().widening < factor + 0.01
    assert not any("out-of-sample" in one.table for one in searches)
    assert figures(searches, 1.0)["misses"] > 2 * figures(searches, GuidedOptions().widening)["misses"]


@pytest.mark.parametrize(("unseen", "without"), [("family", {1, 2}), ("shape", {2})])
def test_the_study_watches_searches_by_models_that_never_saw_the_problem(
    unseen: str, without: set[int], study: Callable[..., None], part_of_table: Callable[..., Table], tmp_path: Path
) -> None:
    names = ("4096x4096x4096:bf16", "64x8192x8192:bf16", "128x14336x4096:bf16")
    table, out = part_of_table(*names, rows=120), tmp_path / "stop-rule.json"
    asked = ["--unseen", unseen, "--trials", "14", "--processes", "1", "--store", str(tmp_path), "--out", str(out)]
    study("stop-rule", str(table.path), *asked)
    known = [load_model(path)[1].problems for path in (tmp_path / "models" / "held-out").glob("*.npz")]
    assert {len(problems) for problems in known} == without
    assert not any(set(names) <= set(problems) for problems in known)
    result = Record.read(out).result
    assert result["factor"] is None  # of three shapes
    for one in result["searches"]:
        assert GemmProblem.parse(one["problem"]).family == one["family"]
        assert len(one["left"]) == len(one["widest"]) == 14
        assert one["left"] == sorted(one["left"], reverse=True)
        assert one["widest"][:9] == [0.0] * 9  # before ten measurements it may not stop
        assert max(one["widest"]) > 0


def test_figures_are_printed_again(study: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    study("stop-rule", "--again", str(RECORDED))
    assert "84 searches of 71 shapes that the models have not seen" in capsys.readouterr().out
