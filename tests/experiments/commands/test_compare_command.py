"""``tilescout compare``, from the command line to the files and MLflow."""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
import pytest

from tilescout.experiments.commands import compare as command
from tilescout.experiments.compare.contender import Answering, Contender
from tilescout.experiments.compare.play import Case, FinishedRuns, Run, Trace, open_case, run_all, run_named, run_one
from tilescout.experiments.compare.report import verdict, write_comparison
from tilescout.experiments.compare.result import Comparison, Standing, compare_traces
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.search.tracking.mlflow_hooks import VIEW_TAG
from tilescout.spaces.errors import StoreError
from tilescout.spaces.problems import Problem

RunCommand = Callable[..., None]

PROBLEM, OTHER = "512x512x512:bf16", "16x4096x4096:bf16"
MM, ACCURATE = "torch.mm", "torch._scaled_mm(use_fast_accum=False)"


@pytest.fixture(scope="module")
def table(part_of_table: Callable[..., Table]) -> Table:
    """A table of two problems: each process reads it, and all 24 would take it a second."""
    return part_of_table(PROBLEM, OTHER, rows=4000)


@pytest.fixture
def case(table: Table) -> Case:
    return Case(str(table.path), table.card.sha256, PROBLEM)


def test_the_help_names_all_that_can_be_compared() -> None:
    (said,) = (
        each.help for each in command.compare.params if isinstance(each, click.Option) and each.name == "samplers"
    )
    for written in ("module:Class", "helion.SEARCH", "quack.autotuner", "flashinfer.autotuner", ":seeds=N"):
        assert written in str(said)


@pytest.mark.slow
def test_a_comparison_ends_in_figures_plots_and_mlflow(
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: RunCommand,
    capsys: pytest.CaptureFixture[str],
    copy_store: Callable[[Path], str],
) -> None:
    monkeypatch.chdir(tmp_path)
    copy_store(tmp_path / ".tilescout")
    arguments = ("--table", str(table.path), "--trials", "15", "--seeds", "3")
    names = ("random", "lfbo:initial=5", "kernel_tuner.genetic_algorithm", "ranking.quack")
    run("compare", *arguments, "--samplers", ",".join(names), "--processes", "1", "--json", "c.json")
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    result = json.loads(Path("c.json").read_text())
    assert set(result["contenders"]) == set(names)
    assert len(result["paired_tests"]) == 6
    assert len(result["cases"]) == 2
    for name, figures in result["contenders"].items():
        assert figures["runs"] == (2 if figures["deterministic"] else 6), name
        assert figures["score"]["low"] <= figures["score"]["mean"] <= figures["score"]["high"]
        curve = figures["time_over_best"]["geometric_mean"]
        assert len(curve) == 15
        assert curve == sorted(curve, reverse=True)
        assert min(curve) >= 1
    assert "times the speed of torch.mm on 2 of 2 problems" in " ".join(printed.split())
    fixed = result["contenders"]["ranking.quack"]  # the seed changes nothing
    assert [name for name, figures in result["contenders"].items() if figures["deterministic"]] == ["ranking.quack"]
    assert fixed["score"]["seeds_low"] is None  # one search has no interval
    assert "the searches of ranking.quack are the same with every seed, and count as one a problem" in printed
    assert "intervals over 2 problems of different shape hold less than they say" in printed
    assert {name: figures["stops"]["searches"] for name, figures in result["contenders"].items()} == dict.fromkeys(
        names, 0
    )
    out = Path(".tilescout/compare")
    assert len((out / "runs.jsonl").read_text().splitlines()) == 3 * 6 + 2  # so it is run once a problem
    assert {path.name for path in out.iterdir()} == {
        "runs.jsonl", "comparison.json", "scores.csv", "tests.csv", "convergence.png", "scores.png",
    }  # fmt: skip
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/.tilescout/mlflow.db")
    (experiment,) = [found for found in client.search_experiments() if found.name == "tilescout/compare"]
    runs = {found.info.run_name: found for found in client.search_runs([experiment.experiment_id])}
    assert set(names) < set(runs)
    assert all(f"answers/{name}`" in experiment.tags[VIEW_TAG] for name in ("over_library", "over_library_best"))
    assert len(client.get_metric_history(runs["random"].info.run_id, "time_over_best")) == 15
    (parent,) = set(runs) - set(names)
    assert {file.path for file in client.list_artifacts(runs[parent].info.run_id)} >= {"convergence.png", "runs.jsonl"}
    assert runs[parent].data.metrics["score/random"] == pytest.approx(result["contenders"]["random"]["score"]["mean"])
    note = runs[parent].data.tags["mlflow.note.content"]
    assert all(f"`{name}`" in note for name in names)
    assert f"get-artifact?path=convergence.png&run_uuid={runs[parent].info.run_id}" in note
    inputs = runs[parent].inputs
    assert inputs is not None
    assert [each.dataset.name for each in inputs.dataset_inputs] == [table.path.name]


@pytest.mark.slow
def test_the_same_searches_give_the_same_figures_and_are_not_run_again(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["--table", str(table.path), "--problem", PROBLEM, "--trials", "10", "--seeds", "2"]
    arguments += ["--samplers", "random,tpe", "--processes", "1"]
    run("compare", *arguments, "--json", "first.json")
    journal = Path(".tilescout/compare/runs.jsonl")
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join(lines[:3]) + "\n" + lines[3][:40])  # killed while it wrote the last
    run("compare", *arguments, "--resume", "--json", "second.json")
    again = journal.read_text().splitlines()
    assert again[:3] == lines[:3]
    first, second = (json.loads(Path(name).read_text()) for name in ("first.json", "second.json"))
    for figures in (*first["contenders"].values(), *second["contenders"].values()):
        del figures["seconds_per_trial"], figures["answers"]["own_seconds"]
    assert first == second


@pytest.mark.slow
def test_a_search_that_fails_or_hangs_is_an_outcome(case: Case) -> None:
    runs = [Run("kernel_tuner.genetic_algorithm:popsize=many", case, 10, 0), Run("random", case, 10, 0)]
    traces = {trace.run: trace for trace in run_all(runs, 1, timeout=120)}
    assert traces[runs[0]].error
    assert traces[runs[0]].indices == ()
    assert len(traces[runs[1]].indices) == 10
    (late,) = run_all([Run("gp", case, 1000, 0)], 1, timeout=3)
    assert late.error == "not done after 3 s"


def test_a_journal_keeps_what_is_finished_and_forgets_what_failed(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "runs.jsonl"
    runs = [Run("random", case, 10, seed) for seed in range(3)]
    with FinishedRuns(path, resume=False) as finished:
        finished.take([Trace(runs[0], (1, 2), 0.5), Trace(runs[1], (), 0.1, "broken")], lambda trace: None)
    with FinishedRuns(path, resume=True) as again:
        assert again.traces[0] == Trace(runs[0], (1, 2), 0.5)
        assert again.left(runs) == runs[1:]
    with pytest.raises(StoreError, match="keep them with --resume, drop them with --anew"):
        FinishedRuns(path, resume=False)
    with FinishedRuns(path, resume=False, anew=True) as anew:
        assert anew.left(runs) == runs


class Warner(Contender):
    """Warns of each of its searches."""

    def check(self) -> None: ...

    def play(self, engine: Answering, problem: Problem, trials: int, seed: int) -> Sequence[int]:
        logging.getLogger("tilescout.search").warning("%s is noise", problem)
        return [0]


def test_a_warning_names_the_strategy_and_the_problem_and_is_told_once(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("some", "other:100%"):
        for seed in range(3):
            run_named(Run(name, case, 5, seed), Warner(name, {}, 3, Path()))
    lines = capsys.readouterr().err.splitlines()
    told = [f"{name} on {case.label}: {PROBLEM} is noise" for name in ("some", "other:100%")]
    assert lines == told
    assert logging.getLogger("tilescout").propagate


def test_the_luck_of_a_search_is_its_problem_s_own(case: Case) -> None:
    other = replace(case, problem=OTHER)
    traces = {(c.problem, s): run_one(Run("random", c, 30, s)).indices for c in (case, other) for s in (0, 1)}
    assert len(set(traces.values())) == 4
    again = run_one(Run("random", case, 30, 1))
    assert again.indices == traces[PROBLEM, 1]
    assert Run("tpe", other, 5, 1).entropy == Run("random", other, 9, 1).entropy


@pytest.mark.parametrize(("seeds", "fixed", "warned"), [(3, False, True), (20, False, False), (3, True, False)])
def test_a_score_far_below_random_search_of_few_seeds_is_warned_of(seeds: int, fixed: bool, warned: bool) -> None:
    scores = {"score": (-1.3, -4.0, 0.1)}
    standing = Standing("lfbo", 6, (), fixed, scores, {}, {}, np.full((3, 2), np.nan), 0.0, {}, {}, {})
    comparison = Comparison(2, seeds, ("t.parquet",), {}, [standing], [], 12)
    assert any("the score of lfbo is far below" in warning for warning in comparison.warnings) == warned


def test_no_strategy_is_called_better_where_nothing_can_be_gained_or_nothing_was_tested() -> None:
    def compared(score: float) -> Comparison:
        nothing = np.full((3, 2), np.nan)
        standings = [
            Standing(name, 6, (), False, {"score": (score, score, score)}, {}, {}, nothing, 0.0, {}, {}, {})
            for name in ("lfbo", "tpe")
        ]
        return Comparison(2, 3, ("t.parquet",), {}, standings, [], 12)

    assert verdict(compared(np.nan)) == ""
    assert (
        verdict(compared(0.5))
        == "lfbo has the highest score, and is proven to be better than no other at the 5 % level"
    )


def test_the_tables_best_is_told_over_the_library_and_over_its_best_where_that_was_recorded() -> None:
    cases = {"a": {"best_over_library": 1.0}, "b": {"best_over_library": 4.0, "best_over_library_best": 3.0}}
    told = Comparison(2, 3, ("t.parquet",), cases, [], [], 12).peers
    assert "2.000 times the speed of the library on 2 of 2 problems" in told
    assert "3.000 times the speed of the library's best on 1 of 2 problems" in told
    named = Comparison(2, 3, ("t.parquet",), cases, [], [], 12, libraries=(MM, ACCURATE)).peers
    assert f"2.000 times the speed of {MM} and {ACCURATE} on 2 of 2 problems" in named


def test_a_comparison_names_the_functions_that_speeds_are_over() -> None:
    tables = {path.stem: Table.read(path) for path in shipped_tables()}
    of = {"gemm_sm90-h200-bf16": "512x512x512:bf16", "gemm_sm90-h200-e4m3": "512x512x512:e4m3-bf16"}
    cases = [Case(str(tables[name].path), tables[name].card.sha256, problem) for name, problem in of.items()]
    found = compare_traces({case: open_case(case)[0] for case in cases}, [], 1, 1)
    assert found.libraries == (MM, ACCURATE)
    assert found.to_dict()["libraries"] == [MM, ACCURATE]


@pytest.mark.slow
def test_odd_tables_of_other_tuners_are_compared_and_what_they_lack_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lists = {
        "one": [{"a": 1, "time": 1.0}],
        "free": [{"a": a, "time": 1.0 + abs(a - 7)} for a in range(12)],
        "dear": [{"a": a, "time": 1.0 + (a * 5) % 12, "compile_time": 9.0, "times": [1.0]} for a in range(12)],
    }
    tables = []
    for name, rows in lists.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
        tables += ["--table", f"{name}-t.parquet"]
        run("tables", "import", f"{name}.json", tables[-1], "--kernel", name, "--problem", "64", "--device", "some GPU")
    capsys.readouterr()
    run("compare", *tables, "--samplers", "guided,random", "--trials", "6", "--seeds", "2", "--processes", "1",
        "--json", "c.json")  # fmt: skip
    printed = " ".join(capsys.readouterr().out.split())
    result = json.loads(Path("c.json").read_text())
    assert "3 problems, 6 trials, 2 seeds" in printed
    assert "nothing can be gained on one-t 64" in printed
    assert "times the speed of" not in printed
    for figures in result["contenders"].values():
        assert figures["runs"] == 6  # without a model guided is not the same with every seed
        assert np.isfinite(figures["score"]["mean"])


def test_a_comparison_in_which_every_search_failed_is_told_and_written(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: RunCommand, capsys: pytest.CaptureFixture[str]
) -> None:
    truth, _, _ = open_case(case)
    broken = compare_traces({case: truth}, [Trace(Run("x", case, 5, 0), (), 0.5, "it broke")], 5, 1)

    def compared(*asked: object, out: Path, **named: object) -> Comparison:
        out.mkdir()
        write_comparison(broken, out)
        return broken

    monkeypatch.setattr(command, "run_comparison", compared)
    monkeypatch.setattr(command, "log_comparison", lambda *asked: "")
    run("compare", "--out", str(tmp_path / "out"), "--store", str(tmp_path / "store"), code=1)
    printed = capsys.readouterr().out
    assert "x failed on" in printed
    assert "nan" not in printed
    assert {"convergence.png", "scores.png"} < {path.name for path in (tmp_path / "out").iterdir()}
