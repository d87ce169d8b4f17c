"""Searches on kernels of which no table and no model exist."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel.blend import BlendOptions
from tilescout.costmodel.forest import ForestOptions
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.costmodel.ranking import RankingOptions
from tilescout.experiments.research.few_shot_figures import Figures, Search, median_over_problems
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.few_shot import (
    check_left_out,
    learned,
    search,
    search_behind,
    search_together,
)
from tilescout.search.tables.results import read_results
from tilescout.search.tables.shipped import largest_table
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.errors import ModelError, SamplerError
from tilescout.spaces.templates import find_template

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results" / "few-shot-2026-11-22"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Of another project's kernel: the time is least in the middle of two knobs."""
    folder = tmp_path_factory.mktemp("few")
    values = [2**power for power in range(8)]
    times = {(x, y): 1 + abs(np.log2(x) - 4) + abs(np.log2(y) - 3) for x in values for y in values}
    cache = {
        "device_name": "a", "kernel_name": "k", "problem_size": [64], "tune_params_keys": ["x", "y"],
        "tune_params": {"x": values, "y": values}, "objective": "time",
        "cache": {f"{x},{y}": {"x": x, "y": y, "time": time} for (x, y), time in times.items()},
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(cache))
    return write_table(folder / "k.parquet", *read_results(folder / "results.json"))


@pytest.mark.parametrize("strategy", ["guided", "random", "kernel_tuner.genetic_algorithm"])
def test_a_search_tries_the_default_first_and_notes_what_is_left_to_find(table: Table, strategy: str) -> None:
    found = search(table.path, "64", strategy, 0, 20)
    default = table.row(table.card.baselines[table.problems[0]].default, table.problems[0])
    assert default is not None
    assert found.regret[0] == pytest.approx(table.times_us[default] / table.times_us.min() - 1)
    assert list(found.regret) == sorted(found.regret, reverse=True)
    assert len(found.regret) == 4  # after 1, 5, 10 and 20 trials
    assert (found.within is not None) == (found.regret[-1] <= 0.02)


def test_a_kernel_that_has_a_model_is_not_left_out(table: Table) -> None:
    assert check_left_out(table) == ""
    assert check_left_out(Table.read(RESULTS / "quack_sm90-h200.parquet")) == "gemm_sm90-h200.npz"
    with pytest.raises(ModelError, match="a model of gemm_sm90 on h200 is shipped"):
        check_left_out(largest_table(find_template("gemm_sm90")))
    shipped = shipped_model("gemm_sm90", "h200")
    with pytest.raises(ModelError, match="is a model of gemm_sm90 itself"):
        check_left_out(largest_table(find_template("gemm_sm90")), shipped)
    assert check_left_out(Table.read(RESULTS / "quack_sm90-h200.parquet"), shipped) == "gemm_sm90-h200.npz"


QUICK = BlendOptions(ForestOptions(trees=8), RankingOptions(members=2, steps=200))


@pytest.mark.slow
def test_a_model_of_other_kernels_has_seen_neither_the_kernel_nor_its_problems(tmp_path: Path) -> None:
    later = RESULTS.with_name("few-shot-2026-11-23")
    operators, streamk = (
        Table.read(later / f"{name}-h200.parquet") for name in ("cutlass_operators", "gemm_streamk_sm90")
    )
    path = learned(streamk, [operators], tmp_path / "others.npz", QUICK)
    card = load_model(path)[1]
    assert set(card.problems) == set(map(str, operators.problems)) - set(map(str, streamk.problems))
    assert [one.sha256 for one in card.tables] == [operators.card.sha256]
    assert check_left_out(streamk, path) == "others.npz"
    assert search(streamk.path, "36x448x14720:bf16", "guided", 0, 5, path).regret[-1] < 0.2
    changed = search(streamk.path, "144x11840x6464:bf16", "random", 0, 5)  # its default is not legal any more
    assert changed.regret[0] >= changed.regret[-1]
    with pytest.raises(ModelError, match="name tables of other kernels on h200"):
        learned(streamk, [operators, streamk], path)
    with pytest.raises(ModelError, match="nothing is left to learn from"):
        learned(Table.read(RESULTS / "quack_sm90-h200.parquet"), [operators], path)


def test_a_named_model_guides_and_the_default_may_be_left_out() -> None:
    path, name = RESULTS / "quack_sm90-h200.parquet", "8x640x384:bf16"
    asked = search(path, name, "guided", 0, 5, shipped_model("gemm_sm90", "h200"), default=False)
    usual = search(path, name, "guided", 0, 5)
    assert asked.regret[-1] <= 0.05
    assert asked.regret[0] < usual.regret[0]  # what the model expects to be fastest, not the default


def test_problems_that_are_searched_together_learn_from_those_before() -> None:
    whole = Table.read(RESULTS / "softmax_sm90-h200.parquet")
    together = search_together(whole.path, "guided-cold", 0, 5)
    assert sorted(one.problem for one in together) == sorted(map(str, whole.problems))
    assert {one.strategy for one in together} == {"guided-cold together"}
    alone = [search(whole.path, one.problem, "guided-cold", 0, 5) for one in together]
    assert alone[0].regret == together[0].regret  # nothing is known before the first
    after = [np.mean([one.regret[1] for one in found]) for found in (alone, together)]
    assert after[1] < 0.7 * after[0]  # after five trials
    with pytest.raises(SamplerError, match="random learns nothing from other problems"):
        search_together(whole.path, "random", 0, 5)


@pytest.mark.slow
def test_a_search_behind_earlier_studies_learns_from_these() -> None:
    whole = Table.read(RESULTS / "softmax_sm90-h200.parquet")
    behind = search_behind(whole.path, "guided-cold", 2, 0, 5)
    assert [one.problem for one in behind] == list(map(str, whole.problems))
    assert {one.strategy for one in behind} == {"guided-cold behind 2"}
    alone = [search(whole.path, one.problem, "guided-cold", 0, 5) for one in behind]
    after = [np.mean([one.regret[1] for one in found]) for found in (alone, behind)]
    assert after[1] < after[0]
    with pytest.raises(SamplerError, match="earlier studies"):
        search_behind(whole.path, "random", 1, 0, 5)


def test_half_of_the_searches_that_find_nothing_make_an_infinite_median() -> None:
    def one(problem: str, within: int | None) -> Search:
        return Search("f", "t", problem, "s", 0, (0.5, 0.1), within, 7 if within else None, 0.02 if within else None)

    figures = Figures.of([one("a", 3), one("b", 5), one("c", None), one("d", None)])
    assert figures.plain()["within"][0] is None
    assert (figures.within[0], figures.found, figures.stopped, figures.off) == (np.inf, 0.5, 2, 2)
    assert Figures.of([one("a", 3), one("b", 5), one("c", None)]).within[0] == 5
    middle, low, high = median_over_problems([1.0, 2.0, 3.0, 4.0, 5.0])
    assert low < middle == 3 < high


def test_of_one_problem_there_is_no_interval() -> None:
    figures = Figures.of([Search("f", "t", "a", "s", seed, (0.5, 0.25), 3, None, None) for seed in range(3)])
    assert np.isnan(figures.regret[0][1:]).all()
    assert figures.plain()["regret"] == [[0.5, None, None], [0.25, None, None]]
    assert figures.plain()["within"] == [3.0, None, None]


def test_the_study_prints_and_writes_every_search(
    table: Table, tmp_path: Path, study: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    asked = ["--strategy", "guided", "--strategy", "random", "--seeds", "2", "--trials", "10", "--processes", "1"]
    study("few-shot", str(table.path), *asked, "--out", str(out))
    printed = capsys.readouterr().out
    held = Record.read(out).result
    assert "one problem, no relative has a model: no intervals, as these are over problems" in printed
    assert [(one["strategy"], one["seed"]) for one in held["searches"]] == [
        ("guided", 0), ("guided", 1), ("random", 0), ("random", 1),
    ]  # fmt: skip
    study("few-shot", "--again", str(out))
    assert capsys.readouterr().out.splitlines()[-5:] == printed.splitlines()[-5:]
    joined = ["--strategy", "random", "--seeds", "1", "--trials", "10", "--processes", "1", "--again", str(out)]
    study("few-shot", str(table.path), *joined, "--out", str(out))
    assert [(one["strategy"], one["seed"]) for one in Record.read(out).result["searches"]] == [
        ("guided", 0), ("guided", 1), ("random", 0),
    ]  # fmt: skip
