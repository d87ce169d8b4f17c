"""The calibration of the stopping rule: what a patience promises, and what it is found from."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel.blend import BlendOptions
from tilescout.costmodel.forest import ForestOptions
from tilescout.costmodel.persistence import load_model
from tilescout.costmodel.ranking import RankingOptions
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies import stop_rule
from tilescout.experiments.research.studies.stop_rule import (
    AHEAD,
    LEAST,
    RISKS,
    Watched,
    behind_others,
    by_chance,
    by_count,
    by_patience,
    calibrated,
    missed,
    risk,
)
from tilescout.search.samplers.guided.options import GuidedOptions
from tilescout.search.tables.table import Table
from tilescout.spaces.gemm import GemmProblem

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "experiments" / "results" / "evaluation-2026-11-22"
RECORDED = RESULTS.with_name("tail-2026-11-23") / "stop-rule.json.gz"
BY_CHANCE = RESULTS / "stop-rule.json.gz"
PROMISE = RISKS[0]


def watched(problem: str, left: list[float], shape: str = "", widest: list[float] | None = None) -> Watched:
    return Watched("table", problem, shape or problem, "large", left, [0.01] * len(left), widest=widest or [])


def drawn(count: int, rng: np.random.Generator) -> list[Watched]:
    """Searches that find better ones at random times, and the best after a random time."""
    found = []
    for at in range(count):
        times = np.sort(rng.integers(1, 40, 3))
        left = np.select([np.arange(60) < time for time in times], [0.05, 0.03, 0.02], 0.0)
        found.append(watched(f"p{at}", left.tolist()))
    return found


def test_a_rule_ends_a_search_and_misses_if_more_is_left_than_is_worth_it() -> None:
    left = [0.05] * LEAST + [0.02] * 3 + [0.0] * 6
    one = watched("p", left, widest=[0.0] * LEAST + [1.5] * 9)
    assert list(one.since) == [*range(LEAST), 0, 1, 2, *range(6)]
    assert [by_patience(one, limit) for limit in (1, LEAST - 1, LEAST, 40)] == [LEAST, LEAST, LEAST + 9, LEAST + 9]
    assert [by_count(one, limit) for limit in (3, 99)] == [3, LEAST + 9]
    assert [by_chance(one, limit) for limit in (1.4, 1.5)] == [LEAST + 1, LEAST + 9]
    assert missed(one, by_patience, 2)
    assert not missed(one, by_patience, LEAST)
    assert missed(watched("q", [0.05] * 5), by_patience, 40)  # its budget is used up, and the answer is no better


def test_a_gain_that_may_be_chance_does_not_prolong_a_search() -> None:
    one = watched("p", [0.05, 0.003, 0.0025, 0.0019, 0.0004, 0.0])
    assert list(one.since_alike) == [0, 0, 1, 2, 1, 2]
    assert list(replace(one, to_beat=0.0035).since_alike) == [1, 2, 3, 4, 1, 2]


@pytest.mark.slow
def test_the_patience_keeps_the_promise_on_problems_that_it_was_not_found_on() -> None:
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(150):
        patience = calibrated(drawn(30, rng), by_patience, range(1, 60), PROMISE)
        assert patience is not None
        shares.append(np.mean([missed(one, by_patience, patience) for one in drawn(30, rng)]))
    assert np.mean(shares) <= PROMISE
    assert np.mean(shares) > PROMISE / 4  # it is no larger than it has to be


def test_problems_of_one_shape_count_as_one_and_too_few_shapes_promise_nothing() -> None:
    few = [watched(f"p{at}", [0.0] * 20) for at in range(8)]
    assert calibrated(few, by_patience, range(1, 20), PROMISE) is None
    assert calibrated([*few, watched("twin", [0.0] * 20, "p0")], by_patience, range(1, 20), PROMISE) is None
    assert calibrated([*few, watched("other", [0.0] * 20)], by_patience, range(1, 20), PROMISE) == 1


def test_the_shipped_patience_is_the_one_of_the_recorded_searches() -> None:
    searches = [Watched(**one) for one in Record.read(RECORDED).result["searches"]]
    assert {one.ahead for one in searches} == set(AHEAD)
    assert calibrated(searches, by_patience, range(1, 64), PROMISE) == GuidedOptions().patience
    assert not any("out-of-sample" in one.table for one in searches)


def test_behind_another_space_a_search_that_does_not_beat_it_ends_as_soon_as_is_promised() -> None:
    recorded = RESULTS.with_name("stream-k-2026-11-23")
    own = [Table.read(recorded / f"gemm_streamk_sm90-h200-{types}.parquet") for types in ("bf16", "e4m3")]
    others = [Table.read(path) for path in sorted((ROOT / "search/tables/recorded").glob("gemm_sm90-*.parquet"))]
    searches = [Watched(**one) for one in Record.read(recorded / "stop-rule.json.gz").result["searches"]]
    behind = behind_others(searches, own, others)
    shipped = 8  # until both spaces were searched at the same time

    assert len(behind) == 25
    least = calibrated(behind, by_patience, range(1, 65), 0.1)
    assert least is not None
    assert least <= shipped
    assert risk(behind, by_patience, shipped) <= 0.1
    assert all(by_patience(one, shipped) == shipped for one in behind if min(one.left) == one.to_beat)


@pytest.mark.parametrize(("unseen", "without"), [("family", {1, 2}), ("shape", {2})])
def test_the_study_watches_searches_by_models_that_never_saw_the_problem(
    unseen: str,
    without: set[int],
    study: Callable[..., None],
    part_of_table: Callable[..., Table],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quick = BlendOptions(ForestOptions(trees=2, validation_trees=2), RankingOptions(members=1, steps=20))
    monkeypatch.setattr(stop_rule, "BlendOptions", lambda: quick)
    names = ("4096x4096x4096:bf16", "64x8192x8192:bf16", "128x14336x4096:bf16")
    table, out = part_of_table(*names, rows=120), tmp_path / "stop-rule.json"
    asked = ["--unseen", unseen, "--trials", "14", "--ahead", "4", "--processes", "1", "--store", str(tmp_path)]
    study("stop-rule", str(table.path), *asked, "--out", str(out))
    known = [load_model(path)[1].problems for path in (tmp_path / "models" / "held-out").glob("*.npz")]
    assert {len(problems) for problems in known} == without
    assert not any(set(names) <= set(problems) for problems in known)
    result = Record.read(out).result
    assert result["calibrated"]["patience"] == {"0.1": None, "0.05": None}  # of three shapes
    for one in result["searches"]:
        assert GemmProblem.parse(one["problem"]).family == one["family"]
        assert len(one["left"]) == 14
        assert one["left"] == sorted(one["left"], reverse=True)
        assert one["ahead"] == 4


def test_figures_are_printed_again(study: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    study("stop-rule", "--again", str(BY_CHANCE))
    printed = capsys.readouterr().out
    assert "84 searches of 71 shapes that the models have not seen" in printed
    assert "…" not in printed  # whole in a pipe of any width
