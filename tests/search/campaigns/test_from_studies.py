"""Tables of what searches measured: real searches on the host, in a store, and what a model can learn from."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from tilescout.search.build.compilers import CompileOptions
from tilescout.search.campaigns.from_studies import measured_alike, table_of_studies
from tilescout.search.engines.engine import Engine, LiveOptions
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.places import study_store
from tilescout.search.studies.records import StudyResult
from tilescout.search.tables.table import Table
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces import templates
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem

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
    return table_of_studies(measured_alike(found, engine.template, None, None), engine.template, out)


def test_a_table_has_each_trial_once_with_what_the_newest_study_measured(
    engine: Engine, found: list[StudyResult], tmp_path: Path
) -> None:
    table = written(engine, found, tmp_path / "own.parquet")
    oldest_first = sorted(found, key=lambda result: result.trials[0].started)
    tried = {
        (result.info.problem, trial.configuration): trial.measurement
        for result in oldest_first
        for trial in result.trials
    }

    assert len(table) == len(tried) < sum(len(result.trials) for result in found)
    assert set(table.problems) == {PROBLEM, OTHER}
    for problem in table.problems:
        for row in table.rows(problem).tolist():
            assert table.measurement(row).timing == tried[problem, table.configuration(row)].timing
            assert table.measurement(row).status == tried[problem, table.configuration(row)].status


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


def test_replayed_studies_and_those_of_other_kernels_are_left_out(engine: Engine, found: list[StudyResult]) -> None:
    replayed, stale, kept = found
    provenance = replace(replayed.info.provenance, kind="replay")
    replayed = replace(replayed, info=replace(replayed.info, provenance=provenance))
    stale = replace(stale, info=replace(stale.info, space_hash="0" * 64))

    assert measured_alike([replayed, stale, kept], engine.template, None, None) == [kept]
    with pytest.raises(StoreError, match="studies of it: 2, with times of a GPU: 1, of today's kernels: 0"):
        measured_alike([replayed, stale], engine.template, None, None)


def test_times_of_two_devices_are_refused_until_one_is_named(engine: Engine, found: list[StudyResult]) -> None:
    elsewhere = replace(found[0], info=replace(found[0].info, device="h200"))
    studies = [elsewhere, *found[1:]]

    with pytest.raises(StoreError, match="not comparable: name the device"):
        measured_alike(studies, engine.template, None, None)
    assert measured_alike(studies, engine.template, "h200", None) == [elsewhere]
    with pytest.raises(StoreError, match="has measured what is asked for"):
        measured_alike(studies, engine.template, None, Objective.CHAIN)


def test_a_table_that_is_there_is_never_replaced(engine: Engine, found: list[StudyResult], tmp_path: Path) -> None:
    table = written(engine, found, tmp_path / "own.parquet")
    before = table.path.read_bytes()

    with pytest.raises(StoreError, match="is there already"):
        written(engine, found, tmp_path / "own.parquet")
    assert table.path.read_bytes() == before
