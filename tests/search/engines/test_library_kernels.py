"""Kernels of a library as a space: listed, described, launched, verified and searched, through the real C signatures.

The library is one in C that runs on the host; see `fake_cublaslt`.
"""

from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest

from tests.search.tables.invented_card import card_of
from tilescout.experiments.commands.printing import print_result
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.engine import CannotMeasureError, LiveOptions
from tilescout.search.engines.evaluator import Evaluator, evaluate
from tilescout.search.engines.library_candidates import known_or_why
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.race import Estimate
from tilescout.search.studies.places import study_store
from tilescout.search.tables.card import Baseline
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import Table, write_table
from tilescout.search.tracking.fields import result_metrics
from tilescout.search.tracking.page import to_html
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.terminal import Console

PROBLEM = GemmProblem(48, 64, 40)
OPTIONS = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0), timeout=60)


@pytest.fixture(scope="module")
def engine(fake_cublaslt: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEngine]:
    store = tmp_path_factory.mktemp("store")
    with LocalEngine(fake_cublaslt.TEMPLATE, store, ["cpu"], fake_cublaslt.HOST, OPTIONS) as engine:
        yield engine


def test_the_space_is_what_the_library_says_is_legal_and_its_first_guess_is_the_default(engine: LocalEngine) -> None:
    space = engine.space(PROBLEM)

    assert engine.space(PROBLEM) is space
    assert sorted(guess for guess in space.columns["guess"].tolist() if guess) == [1, 2, 3]  # it names one twice
    assert engine.default(PROBLEM) == {
        **dict.fromkeys(space[0], 0),
        "guess": 1, "algorithm": 7, "tile": 2, "stages": 4, "split_k": 1, "cluster": 3,
    }  # fmt: skip
    assert 9 not in space.columns["algorithm"]
    assert 9 in engine.space(GemmProblem(16, 8, 16)).columns["algorithm"]
    assert len({space[index] for index in range(len(space))}) == len(space)


def test_a_listing_is_kept_in_the_store_and_one_that_can_not_be_read_is_asked_for_again(
    engine: LocalEngine, fake_cublaslt: ModuleType
) -> None:
    folder, problem = engine._listings._folder, GemmProblem(56, 64, 40)
    before = {*folder.glob("*")}
    listed, again = (engine.listing(0, fake_cublaslt.TEMPLATE, problem, None).result() for _ in range(2))

    assert (again.seconds, again.version) == (listed.seconds, listed.version)
    assert [tuple(row) for row in again.rows] == [tuple(row) for row in listed.rows]
    [kept] = {*folder.glob("*")} - before
    whole = kept.read_bytes()
    for damaged in (whole[:100], b""):
        kept.write_bytes(damaged)
        anew = engine.listing(0, fake_cublaslt.TEMPLATE, problem, None).result()
        assert anew.seconds != listed.seconds
        assert [tuple(row) for row in anew.rows] == [tuple(row) for row in listed.rows]


def test_the_library_names_the_kernel_that_it_runs_for_each_of_many_problems(
    engine: LocalEngine, fake_cublaslt: ModuleType
) -> None:
    problems = [GemmProblem(m, 64, 40) for m in (16, 48, 56)]
    named = engine.named(0, fake_cublaslt.TEMPLATE, problems).result()
    listed = [engine.listing(0, fake_cublaslt.TEMPLATE, problem, 1).result().rows[0] for problem in problems]
    assert named == [list(row) for row in listed]
    with pytest.raises(SpaceError, match="not supported"):
        engine.named(0, fake_cublaslt.TEMPLATE, [PROBLEM, GemmProblem(16, 16, 16, dtype="fp16")]).result()


def test_a_product_that_the_library_has_nothing_for_is_refused(engine: LocalEngine) -> None:
    with pytest.raises(SpaceError, match="not supported"):
        engine.space(GemmProblem(16, 16, 16, dtype="fp16"))


def test_every_kernel_is_verified_on_its_own_problem_and_a_wrong_or_crashing_one_is_a_failed_configuration(
    engine: LocalEngine,
) -> None:
    with Evaluator(engine, PROBLEM) as evaluator:
        space = evaluator.space
        default = dict(engine.default(PROBLEM))
        told = {
            "split in place": {"split_k": 3, "reduction": 1},
            "split in fp32": {"split_k": 3, "reduction": 2},
            "wrong": {"custom_option": 2},
            "crashing": {"custom_option": 3},
        }
        tried = {space.index({**default, "guess": 0, **changed}): name for name, changed in told.items()}
        outcomes = dict(evaluate(evaluator, tried))

    assert {tried[index]: outcome.status for index, outcome in outcomes.items()} == {
        "split in place": Status.OK, "split in fp32": Status.OK, "wrong": Status.WRONG, "crashing": Status.CRASH,
    }  # fmt: skip
    assert all(outcome.compile_seconds < 1 for outcome in outcomes.values())
    assert all((outcome.relative_error or 0) < PROBLEM.tolerance for outcome in outcomes.values() if outcome.ok)


@pytest.mark.parametrize(
    "text",
    ["48x64x40:bf16:mn", "24x40x16x2:bf16:kn", "24x40x16:bf16:alpha+bias+relu", "24x40x16:bf16:bias+gelu",
     "24x40x16:bf16-fp32:silu", "24x40x32x2:e4m3-bf16:alpha+bias"],
)  # fmt: skip
def test_layouts_batches_epilogues_and_types_are_told_to_the_library(engine: LocalEngine, text: str) -> None:
    with Evaluator(engine, GemmProblem.parse(text)) as evaluator:
        default = evaluator.space.index(engine.default(evaluator.problem))
        [(_, outcome)] = evaluate(evaluator, [default])

    assert outcome.ok, outcome.error


def test_a_search_tries_the_guesses_first_and_states_its_speed_over_the_best_of_them(
    engine: LocalEngine, host_library: ModuleType, tmp_path: Path
) -> None:
    with Evaluator(engine, PROBLEM) as evaluator:
        result = run_study(evaluator, TuneOptions("random", 0, Budget(trials=8), tmp_path / "studies"))

    assert [trial.configuration["guess"] for trial in result.trials[:3]] == [1, 2, 3]
    assert result.best is not None
    assert result.race is not None
    assert result.best.measurement.ok
    assert result.default is not None
    assert result.default.index in result.race.ratios
    assert result.info.default["guess"] == 1
    best = result.library_best
    assert best is not None
    assert best.over is not None
    assert (best.name, best.space) == ("cuBLASLt's best of 3", "host_cublaslt")
    assert best.version == result.info.provenance.versions.get("cublaslt", "")
    listed = {trial.index: trial for trial in result.trials if trial.configuration["guess"]}
    [index] = [index for index, trial in listed.items() if trial.configuration == best.configuration]
    assert result.race.beside == {index: best.ratio}
    assert result.over_library_best == best.over.inverse()
    assert best.gpu_seconds == 0  # its trials are counted
    assert sum(map(result.race.seconds_of, (trial.index for trial in result.trials))) <= result.race.gpu_seconds
    out = StringIO()
    print_result(result, Console(file=out, width=200))
    assert f"{result.over_library_best.value:.4f}" in out.getvalue()
    assert "of the speed of cuBLASLt's best of 3, in the race" in out.getvalue()
    assert result_metrics(result)["best_speedup_over_library_best"] == result.over_library_best.value
    assert "cuBLASLt's best of 3" in to_html(result)
    assert result.to_dict()["library_best"]["speedup_of_best"]["value"] == result.over_library_best.value
    assert study_store(tmp_path / "studies").read(result.info.name).over_library_best == result.over_library_best


def test_where_none_of_the_librarys_candidates_works_the_reason_is_told(engine: LocalEngine) -> None:
    with Evaluator(engine, PROBLEM) as evaluator:
        failed = Measurement(Status.WRONG, "relative error 0.7")
        best, unknown = known_or_why(lambda: evaluator.best_of_own({evaluator.own_candidates[1]: failed}))

    assert best is None
    assert unknown == "none of 1 candidate of cuBLASLt worked: relative error 0.7"


def test_a_recorded_table_is_replayed_where_no_library_can_be_asked(
    engine: LocalEngine, fake_cublaslt: ModuleType, tmp_path: Path
) -> None:
    template, space = fake_cublaslt.TEMPLATE, engine.space(PROBLEM)
    rows: list[Row] = []
    for number in range(len(space)):
        ratio = 1.0 + number / 100
        timing = Timing(ratio, ratio, ratio, ratio, ratio, 10.0, 9)
        rows.append((space[number], PROBLEM, Measurement(Status.OK, timing=timing, pilot_us=ratio * 10)))
    card = card_of(template, fake_cublaslt.HOST, {PROBLEM: Baseline(engine.default(PROBLEM), 10.0)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DEVICES, "host", fake_cublaslt.HOST)
        table = write_table(tmp_path / "table.parquet", card, rows)
        table = Table.read(table.path, {template.name: template})
        with ReplayEngine(table, template) as replay, Evaluator(replay, table.problems[0]) as evaluator:
            result = run_study(evaluator, TuneOptions("random", 0, Budget(trials=5), tmp_path / "studies"))

    assert len(replay.space(table.problems[0])) == len(space)
    assert result.trials[0].configuration == engine.default(PROBLEM)
    assert result.best is not None
    assert result.best.measurement.timing is not None
    assert result.library_best is not None
    assert result.library_best.over is None
    ratio = min(trial.measurement.timing.ratio for trial in result.trials[:3] if trial.measurement.timing)
    assert result.library_best.ratio.value == ratio
    assert result.over_library_best is not None
    assert result.over_library_best.value == pytest.approx(ratio / result.best.measurement.timing.ratio)
    itself = replace(result, library_best=replace(result.library_best, configuration=result.best.configuration))
    assert itself.over_library_best == Estimate(1, 1, 1)
    with pytest.raises(CannotMeasureError, match="no library can be asked"):
        replay.listing(0, template, PROBLEM, 8).result()
    with pytest.raises(CannotMeasureError, match="no library can be asked"):
        replay.named(0, template, [PROBLEM]).result()
