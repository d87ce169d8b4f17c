"""A search of our kernels states its speed over the library's best candidate, from its list to the stored result."""

from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import space_features
from tilescout.costmodel.forest import ForestModel, ForestOptions
from tilescout.costmodel.persistence import ModelCard, save_model
from tilescout.experiments.commands.printing import print_result
from tilescout.experiments.commands.studies import _grid as studies_grid
from tilescout.experiments.commands.studies_diff import differences
from tilescout.experiments.commands.tune_suite import _print as print_suite
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.campaigns.campaign import CampaignOptions
from tilescout.search.campaigns.collection import collect
from tilescout.search.campaigns.plan import make_plan
from tilescout.search.engines import library_candidates
from tilescout.search.engines.engine import CannotMeasureError, LiveOptions
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.peers import timed_peer
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.library_best import LibraryBest, Peer
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.race import Estimate, RaceOptions
from tilescout.search.studies.places import study_store
from tilescout.search.studies.records import StudyResult
from tilescout.search.tables.card import FORMAT
from tilescout.search.tables.table import Table
from tilescout.search.tracking import fields
from tilescout.search.tracking.description import not_timed, verdict
from tilescout.search.tracking.page import times, to_html
from tilescout.search.tracking.plots import convergence
from tilescout.search.tracking.suite import _describe as described_suite
from tilescout.search.tracking.suite import suite_metrics
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces import peers
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.subspace import parse_restrictions
from tilescout.spaces.terminal import Console

OPTIONS = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0), timeout=60)


@pytest.fixture(scope="module")
def searched(host_library: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyResult, Path]:
    """A search of the kernels of ours that are right, and where its study is."""
    folder = tmp_path_factory.mktemp("searched")
    with (
        pytest.MonkeyPatch.context() as patch,
        LocalEngine(host_library.COMPARED, folder / "store", ["cpu"], host_library.HOST, OPTIONS) as engine,
        Evaluator(engine, GemmProblem(48, 64, 40)) as evaluator,
    ):
        patch.setitem(peers._PEERS, "aten", "fake_cublaslt:PEER")
        like = [evaluator.space.index({"fault": "nothing", "repeats": n}) for n in (4, 2)]
        patch.setattr(
            type(host_library.COMPARED), "like", lambda self, space, library: like if len(library) == 1 else []
        )
        options = TuneOptions("random", 0, Budget(3), folder / "studies", peers=("aten", "triton"))
        result = run_study(evaluator, options)
    return result, folder / "studies"


@pytest.mark.slow
def test_the_librarys_candidates_are_timed_and_the_best_of_them_races(searched: tuple[StudyResult, Path]) -> None:
    result, _ = searched
    best = result.library_best

    assert best is not None
    assert best.name == "cuBLASLt's best of 3"
    assert (best.space, best.version) == ("host_cublaslt", "13.1.0")
    assert best.configuration["guess"] in (1, 2, 3)
    assert best.over is not None
    assert result.race is not None
    assert result.race.beside[-1] == best.ratio
    assert -1 not in result.race.ratios
    assert result.over_library_best == best.over.inverse()
    assert result.account["candidates"] == best.gpu_seconds > 0
    assert [trial.configuration["repeats"] for trial in result.trials[1:]] == [4, 2]  # like it, in the order told
    shares = sum(result.race.seconds_of(trial.index) for trial in result.trials)
    assert 0 < shares < result.race.gpu_seconds  # it has its share of the race


def test_what_others_would_run_is_tuned_and_races_and_what_does_not_work_is_said(
    searched: tuple[StudyResult, Path],
) -> None:
    result, studies = searched
    works, fails = result.peers

    assert (works.name, works.error, fails.name) == ("aten", "", "triton")
    assert works.ratio is not None
    assert works.over is not None
    assert result.race is not None
    assert result.race.beside[-2] == works.ratio
    assert fails.ratio is None
    assert "does not compute what compared_gemm computes" in fails.error
    assert works.seconds > 0
    out = StringIO()
    print_result(result, Console(file=out, width=200))
    over = works.over.inverse()
    assert f"{over.value:.4f} [{over.low:.4f}, {over.high:.4f}] of the speed of aten" in out.getvalue()
    assert f"triton: {fails.error}" in out.getvalue()
    metrics = fields.result_metrics(result)
    named = ("best_speedup_over_aten", "best_speedup_over_aten_low", "best_speedup_over_aten_high")
    assert tuple(metrics[name] for name in named) == (over.value, over.low, over.high)
    assert "aten" in {row["name"] for row in times(result)}
    assert f"{over.value:.3f} [{over.low:.3f}, {over.high:.3f}] times that of aten" in verdict(result)
    assert fields.result_tags(result)["peer_triton"] == f"not known: {fails.error}"
    assert not_timed(result) == [f"triton: {fails.error}"]
    assert fails.error in to_html(result)
    assert study_store(studies).read(result.info.name).peers == result.peers
    damaged = works.to_dict() | {"ratio": {"value": 0, "low": 0, "high": 1}}
    with pytest.raises(ValueError, match="can't have the interval"):
        Peer.from_dict(damaged)


@pytest.mark.slow
def test_a_peer_that_was_tuned_before_says_what_that_took(
    host_library: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(peers._PEERS, "aten", "fake_cublaslt:PEER")
    problem = GemmProblem(48, 64, 40)
    with (
        LocalEngine(host_library.COMPARED, tmp_path, ["cpu"], host_library.HOST, OPTIONS) as engine,
        engine.beside(host_library.COMPARED) as beside,
    ):
        library_us = engine.prepare(0, problem).result()
        first, again = (timed_peer(each, 0, problem, library_us, "aten")[0] for each in (engine, beside))
    assert first.seconds == again.seconds > 0
    assert first.error == again.error == ""


def test_the_speed_over_it_is_in_all_that_is_shown_and_stored(searched: tuple[StudyResult, Path]) -> None:
    result, studies = searched
    assert result.library_best is not None
    over = result.over_library_best
    assert over is not None
    said = f"{over.value:.3f}"

    out = StringIO()
    print_result(result, Console(file=out, width=200))
    assert "cuBLASLt's best of 3" in out.getvalue()
    assert f"{over.value:.4f}" in out.getvalue()
    assert f"{said} [" in verdict(result)
    record = result.to_dict()["library_best"]
    assert record["speedup_of_best"]["value"] == over.value
    assert record["time_us"] == pytest.approx(result.library_best.ratio.value * result.info.library_us)
    assert fields.result_metrics(result)["best_speedup_over_library_best"] == over.value
    assert "best_speedup_over_library_best" in fields.STUDIES.metrics  # a column of MLflow's table
    assert "guess=" in fields.result_tags(result)["library_best"]

    result, suite = replace(result, peers=()), StringIO()
    print_suite([result], 1, "a suite", Console(file=suite, width=200))
    assert "vs cuBLASLt's best" in suite.getvalue()
    assert f"the speed of torch.mm and {over.value:.4f} of cuBLASLt's best over 1 of 1" in suite.getvalue()
    assert "trained" not in suite.getvalue()
    info = replace(result.info, hindsight=True, problem=result.info.problem.with_signature("fp16"))
    unknown = replace(result, library_best=None, info=info)
    print_suite([result, unknown], 2, "a suite", Console(file=suite, width=200))
    assert f"{over.value:.4f} of cuBLASLt's best (1 known) over 2 of 2 problems" in suite.getvalue()
    assert "trained on measurements of 1 of the 2 problems" in suite.getvalue()
    assert f"| {said} |" in described_suite([result])
    assert suite_metrics([result])["mean_speedup_over_library_best"] == pytest.approx(over.value)

    stored = study_store(studies).read(result.info.name)
    assert stored.library_best == result.library_best
    assert stored.over_library_best == over


def test_speeds_over_a_peer_stand_beside_those_over_the_library_in_tables_of_results(
    searched: tuple[StudyResult, Path],
) -> None:
    result, _ = searched
    over = result.over_peers["aten"].value
    without = replace(result, peers=(), info=replace(result.info, problem=result.info.problem.with_signature("fp16")))

    suite = StringIO()
    print_suite([result, without], 2, "a suite", Console(file=suite, width=200))
    assert "vs aten" in suite.getvalue()
    assert "triton" not in suite.getvalue()  # which did not work
    assert f"and {over:.4f} of aten (1 known) over 2 of 2 problems" in suite.getvalue()
    heading, _, row, bare = described_suite([result, without]).splitlines()
    assert heading.endswith("| over aten |")
    assert row.endswith(f"| {over:.3f} |")
    assert bare.endswith("|  |")
    metrics = suite_metrics([result, without])
    assert [metrics[f"{name}_speedup_over_aten"] for name in ("mean", "least")] == pytest.approx([over, over])
    assert metrics["known_aten"] == 1

    studies = StringIO()
    Console(file=studies, width=200).print(studies_grid([result, without]))
    assert "aten" in studies.getvalue()
    assert f"{over:.3f}" in studies.getvalue()
    assert differences(result, without)["vs aten"] == (f"{over:.3f}", "")


def test_kernels_of_others_are_lines_of_the_plot_of_times(searched: tuple[StudyResult, Path]) -> None:
    result, _ = searched
    best, (works, _) = result.library_best, result.peers
    assert best is not None
    level, slow = Estimate(1, 1, 1), replace(works, name="slow", ratio=Estimate(1e3, 1e3, 1e3))
    near = replace(result, library_best=replace(best, ratio=level), peers=(replace(works, ratio=level), slow))
    (axes, _) = convergence(near).axes
    lines = [str(line.get_label()).split(":")[0] for line in axes.get_lines()]
    assert lines[-2:] == ["cuBLASLt's best of 3", "aten"]  # a line far above all else would flatten it
    assert len({line.get_linestyle() for line in axes.get_lines()[-3:]}) > 1


def test_a_result_without_it_says_why(searched: tuple[StudyResult, Path]) -> None:
    result = replace(searched[0], library_best=None, no_library_best="the library was asked in vain")

    out = StringIO()
    print_result(result, Console(file=out, width=200))
    assert "the library's best is not known: the library was asked in vain" in out.getvalue()
    assert result.to_dict()["library_best"] == {"unknown": "the library was asked in vain"}
    assert "not known" in fields.result_tags(result)["library_best"]
    assert not_timed(result)[0] == "the library's best is not known: the library was asked in vain"
    assert result.over_library_best is None


@pytest.mark.slow
def test_a_campaign_records_it_and_a_replay_states_it(host_library: ModuleType, tmp_path: Path) -> None:
    problem = GemmProblem(48, 64, 40)
    template = host_library.COMPARED
    with LocalEngine(template, tmp_path / "store", ["cpu"], host_library.HOST, OPTIONS) as engine:
        some = parse_restrictions(["fault=nothing"], template.knobs)
        plan = make_plan([engine.space(problem)], [engine.default(problem)], None, 0, some)
        collect(engine, plan, tmp_path / "t.parquet", CampaignOptions(race=RaceOptions(look=3, looks=1)))
    table = Table.read(tmp_path / "t.parquet", {template.name: template})
    with ReplayEngine(table, template) as replay, Evaluator(replay, problem) as evaluator:
        result = run_study(evaluator, TuneOptions("random", 0, Budget(3), tmp_path / "studies"))

    recorded = table.card.baselines[problem].library_best
    assert table.card.format == FORMAT
    assert recorded is not None
    assert recorded.over is not None
    assert result.library_best == replace(recorded, over=None, gpu_seconds=0.0)
    assert result.over_library_best is not None
    assert result.race is None


def test_without_a_race_the_interval_is_that_of_both() -> None:
    best = LibraryBest("cuBLASLt", "13.1.0", "cublaslt", Configuration.of({"guess": 2}), 8, Estimate(0.9, 0.88, 0.92))

    speed = best.speed_of(Estimate(0.8, 0.78, 0.82))

    assert speed.value == pytest.approx(0.9 / 0.8)
    assert speed.low == pytest.approx(0.88 / 0.82)
    assert speed.high == pytest.approx(0.92 / 0.78)


def test_a_record_is_read_back_as_it_was_and_a_damaged_one_is_refused() -> None:
    best = LibraryBest(
        "cuBLASLt", "13.1.0", "cublaslt", Configuration.of({"guess": 2}), 8, Estimate(0.9, 0.88, 0.92),
        Estimate(0.95, 0.94, 0.96), 0.1,
    )  # fmt: skip
    assert LibraryBest.from_dict(best.to_dict()) == best
    with pytest.raises(ValueError, match="can't have the interval"):
        LibraryBest.from_dict(best.to_dict() | {"ratio": {"value": 0, "low": 0, "high": 1}})
    with pytest.raises((LookupError, TypeError)):
        LibraryBest.from_dict({"ratio": {"value": 1, "low": 1, "high": 1}})


@pytest.mark.slow
def test_more_than_the_librarys_list_are_those_that_a_cost_model_expects_to_be_fastest(
    host_library: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, template = GemmProblem(48, 64, 40), host_library.TEMPLATE
    with LocalEngine(host_library.COMPARED, tmp_path / "store", ["cpu"], host_library.HOST, OPTIONS) as engine:
        with pytest.raises(CannotMeasureError, match="no cost model of host_cublaslt on host"):
            library_candidates.listed_candidates(engine, 0, problem, 1.0, 12)
        listing = engine.listing(0, template, problem, None).result()
        space = template.space_of(SearchSpace.codes_of(template.knobs, listing.rows), problem, engine.device)
        features = space_features(space, template)
        rows = features.values[:, features.names.index("rows")]  # as if the largest tiles were the fastest
        model = ForestModel(ForestOptions(trees=4, validation_trees=2, leaf=1))
        none = np.zeros(len(space), dtype=np.bool_)
        model.fit([Sample(name, features, -rows, none, "small") for name in ("a", "b", "c")])
        save_model(tmp_path / "m.npz", model, ModelCard("host_cublaslt", "host", (), (), len(space)))
        monkeypatch.setattr(library_candidates, "model_for", lambda space, device: tmp_path / "m.npz")
        listed = library_candidates.listed_candidates(engine, 0, problem, 1.0, 12)

    assert listed is not None
    chosen = [space.index(task.configuration) for task in listed.tasks]
    assert [space.columns["guess"][index] for index in chosen[:3]] == [1, 2, 3]
    assert len(set(chosen)) == len(chosen) == 12
    assert rows[chosen[3:]].min() >= np.delete(rows, chosen).max()
