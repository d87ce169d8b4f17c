"""Tables of what searches measured: real searches on the host, in a store, and what a model can learn from."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tilescout.search.build.compilers import CompileOptions
from tilescout.search.campaigns.from_studies import comparable, table_of_studies
from tilescout.search.engines.engine import Engine, LiveOptions
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.places import study_store
from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces import templates
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import DeviceError, StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem

PROBLEM, OTHER = GemmProblem(32, 48, 40), GemmProblem(16, 48, 40)
OPTIONS = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0), timeout=60)


@pytest.fixture(scope="module")
def engine(plain_gemm: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(templates._BUILT_IN, "plain_gemm", "plain_gemm:TEMPLATE")
        patch.setitem(DEVICES, "host", plain_gemm.HOST)
        with LocalEngine(
            plain_gemm.TEMPLATE, tmp_path_factory.mktemp("store"), ["cpu"], plain_gemm.HOST, OPTIONS
        ) as engine:
            yield engine


@pytest.fixture(scope="module")
def found(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> list[StudyResult]:
    """Three studies, read back: two of one problem, and one that raced."""
    folder = tmp_path_factory.mktemp("studies")
    for problem, seed, race in ((PROBLEM, 0, None), (PROBLEM, 1, None), (OTHER, 0, RaceOptions(look=3, looks=1))):
        space = engine.space(problem)
        first = [space.index({"fault": fault, "repeats": 2}) for fault in ("nothing", "corner")]
        options = TuneOptions("random", seed, Budget(4), folder, first=first)
        run_study(Evaluator(engine, problem), options if race is None else replace(options, race=race))
    store = study_store(folder)
    return [store.read(name, {engine.template.name: engine.template}) for name in store.names()]


def written(engine: Engine, found: list[StudyResult], out: Path) -> Table:
    return table_of_studies(comparable(found, engine.template, None, None), engine.template, out)


def rows_of(table: Table) -> dict[tuple[Problem, Configuration], Measurement]:
    return {
        (problem, Configuration.of(table.configuration(row))): table.measurement(row)
        for problem in table.problems
        for row in table.rows(problem).tolist()
    }


@pytest.mark.slow
def test_a_table_has_each_trial_once_with_the_ratio_that_was_measured_last(
    engine: Engine, found: list[StudyResult], tmp_path: Path
) -> None:
    rows = rows_of(written(engine, found, tmp_path / "own.parquet"))
    trials = sorted((trial.finished, result.info.problem, trial) for result in found for trial in result.trials)
    last = {(problem, trial.configuration): trial.measurement for _, problem, trial in trials}

    assert rows.keys() == last.keys()
    assert len(rows) < len(trials)
    for key, measured in rows.items():
        assert measured.status == last[key].status
        ratios = [each.timing and each.timing.ratio for each in (measured, last[key])]
        assert ratios[0] == ratios[1]


def test_times_of_a_problem_are_by_one_time_of_the_library(
    engine: Engine, found: list[StudyResult], tmp_path: Path
) -> None:
    twice = [result for result in found if result.info.problem == PROBLEM]
    slower = replace(twice[0], info=replace(twice[0].info, library_us=10 * twice[1].info.library_us))
    table = written(engine, [slower, twice[1]], tmp_path / "own.parquet")
    newest = max((slower, twice[1]), key=lambda result: result.trials[-1].finished)

    assert table.card.baselines[PROBLEM].library_us == newest.info.library_us
    timings = [measured.timing for measured in rows_of(table).values() if measured.timing is not None]
    assert {timing.library_us for timing in timings} == {newest.info.library_us}


def outcome(trial: TrialRecord, finished: float, measurement: Measurement) -> TrialRecord:
    return replace(trial, finished=finished, measurement=measurement)


def test_of_outcomes_a_time_counts_more_than_a_pilot_and_that_more_than_a_failure_unless_it_was_found_wrong(
    engine: Engine, found: list[StudyResult], tmp_path: Path
) -> None:
    timed = next(trial for trial in found[0].trials if trial.measurement.timing is not None)
    pruned = Measurement(Status.PRUNED, pilot_us=90.0, relative_error=0.0)
    crash, wrong = Measurement(Status.CRASH, "it fell"), Measurement(Status.WRONG, "off by 1")
    cases = (
        ([timed.measurement, pruned, crash], Status.OK),
        ([crash, pruned], Status.PRUNED),
        ([pruned, crash], Status.PRUNED),
        ([timed.measurement, wrong], Status.WRONG),
        ([wrong, timed.measurement], Status.OK),
    )
    for number, (outcomes, kept) in enumerate(cases):
        studies = [
            replace(found[0], race=None, trials=[outcome(timed, at, each)]) for at, each in enumerate(outcomes, start=1)
        ]
        [row] = rows_of(written(engine, studies[::-1], tmp_path / f"{number}.parquet")).values()
        assert row.status is kept


def test_a_trial_that_did_not_end_is_no_row(engine: Engine, found: list[StudyResult], tmp_path: Path) -> None:
    ended, cut = found[0].trials[:2]
    cut = replace(cut, measurement=Measurement(Status.INTERRUPTED, "stopped"))

    assert len(written(engine, [replace(found[0], race=None, trials=[ended, cut])], tmp_path / "own.parquet")) == 1


def test_an_older_protocol_is_left_out_and_versions_that_differ_are_all_named(
    engine: Engine, found: list[StudyResult], tmp_path: Path
) -> None:
    def with_versions(result: StudyResult, **versions: str) -> StudyResult:
        source = result.info.provenance
        source = replace(source, versions={**source.versions, **versions})
        return replace(result, info=replace(result.info, provenance=source))

    older = with_versions(found[0], protocol="paired-3 sandwich")
    assert older not in comparable([older, *found[1:]], engine.template, None, None)
    table = written(engine, [with_versions(found[0], torch="0.1"), *found[1:]], tmp_path / "own.parquet")
    assert sorted(table.card.versions["torch"].split(", ")) == sorted(["0.1", engine.versions["torch"]])


def test_its_card_says_what_measured_and_its_rows_what_a_race_told(
    engine: Engine, found: list[StudyResult], tmp_path: Path
) -> None:
    table = written(engine, found, tmp_path / "own.parquet")
    card = table.card
    [raced] = [result for result in found if result.race is not None and result.info.problem == OTHER]
    assert raced.race is not None
    told = [row for row in table.rows(OTHER).tolist() if table.measurement(row).raced is not None]

    assert (card.space, card.device, card.product) == ("plain_gemm", engine.device.name, engine.device.product)
    assert card.source_hash == engine.template.source_hash
    assert card.objective is Objective.SANDWICH
    assert card.versions["torch"] == engine.versions["torch"]
    assert "protocol" not in card.versions
    assert card.baselines[OTHER].library_us == raced.info.library_us
    assert len(told) == len(raced.race.ratios)


def test_a_race_tells_its_rows_how_many_pairs_it_measured(
    engine: Engine, found: list[StudyResult], tmp_path: Path
) -> None:
    [result] = [result for result in found if result.info.problem == OTHER]
    assert result.race is not None
    race = replace(result.race, pairs=5)
    table = written(engine, [replace(result, race=race)], tmp_path / "own.parquet")
    raced = [row.raced for row in rows_of(table).values() if row.raced is not None]

    assert {each.pairs for each in raced} == {5 * race.rounds}


def test_replayed_studies_and_those_of_other_kernels_are_left_out(engine: Engine, found: list[StudyResult]) -> None:
    replayed, stale, kept = found
    provenance = replace(replayed.info.provenance, kind="replay")
    replayed = replace(replayed, info=replace(replayed.info, provenance=provenance))
    stale = replace(stale, info=replace(stale.info, space_hash="0" * 64))

    assert comparable([replayed, stale, kept], engine.template, None, None) == [kept]
    with pytest.raises(StoreError, match="studies of it: 2, with times of a GPU: 1, of today's kernels: 0"):
        comparable([replayed, stale], engine.template, None, None)


def test_times_of_two_devices_are_refused_until_one_is_named(engine: Engine, found: list[StudyResult]) -> None:
    elsewhere = replace(found[0], info=replace(found[0].info, device="h200"))
    studies = [elsewhere, *found[1:]]

    with pytest.raises(StoreError, match="not comparable: name the device"):
        comparable(studies, engine.template, None, None)
    assert comparable(studies, engine.template, "h200", None) == [elsewhere]
    with pytest.raises(StoreError, match="has measured what is asked for"):
        comparable(studies, engine.template, None, Objective.CHAIN)
    with pytest.raises(DeviceError, match="h20"):
        comparable(studies, engine.template, "h20", None)


def test_a_table_that_is_there_is_never_replaced(engine: Engine, found: list[StudyResult], tmp_path: Path) -> None:
    table = written(engine, found, tmp_path / "own.parquet")
    before = table.path.read_bytes()

    with pytest.raises(StoreError, match="is there already"):
        written(engine, found, tmp_path / "own.parquet")
    assert table.path.read_bytes() == before
