"""The search on the shipped table: the same loop as on a GPU, the recorded measurements."""

import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from tilescout.costmodel.contents import content_sha256
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import FEWEST
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import Objective
from tilescout.search.samplers import SAMPLERS
from tilescout.search.studies.places import read_study
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tables.card import TableCard
from tilescout.search.tables.rows import Row
from tilescout.search.tables.shipped import default_table
from tilescout.search.tables.table import Table, write_table
from tilescout.search.tracking.fields import common_tags
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.errors import DeviceError, SamplerError, StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
TEMPLATE = find_template("gemm_sm90")
PROBLEM = GemmProblem(4096, 4096, 4096)


@pytest.fixture(scope="module")
def table() -> Table:
    return default_table(TEMPLATE, PROBLEM)


def search(
    table: Table, studies: Path, sampler: str = "random", seed: int = 0, resume: bool = False, **budget: float
) -> StudyResult:
    options = TuneOptions(sampler, seed, Budget(**budget, whole=True), studies, resume)  # type: ignore[arg-type]
    with Evaluator(ReplayEngine(table, TEMPLATE), PROBLEM) as evaluator:
        return run_study(evaluator, options)


def indices(trials: Sequence[TrialRecord]) -> list[int]:
    return [trial.index for trial in trials]


Searched = Callable[[str], Sequence[TrialRecord]]


@pytest.fixture(scope="module")
def searched(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    """A function: the 60 trials of a sampler with the seed 3, searched once."""

    @functools.cache
    def searched(sampler: str) -> Sequence[TrialRecord]:
        return search(table, tmp_path_factory.mktemp("searched"), sampler, seed=3, trials=60).trials

    return searched


@pytest.mark.slow
@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_the_same_seed_gives_the_same_trials(table: Table, tmp_path: Path, sampler: str, searched: Searched) -> None:
    first, second = searched(sampler)[:25], search(table, tmp_path, sampler, seed=3, trials=25).trials
    assert indices(first) == indices(second)
    assert [t.measurement for t in first] == [t.measurement for t in second]


@pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - {"exhaustive", "guided"}))  # nothing in them is random
def test_another_seed_gives_other_trials(table: Table, tmp_path: Path, sampler: str, searched: Searched) -> None:
    first, second = searched(sampler)[:25], search(table, tmp_path, sampler, seed=1, trials=25).trials
    assert indices(first) != indices(second)


class SlowToStart(ReplayEngine):
    """A GPU that is set up only once all that a search tries first was asked of the compilers."""

    measures_anew = True

    def __init__(self, table: Table, count: int) -> None:
        super().__init__(table, TEMPLATE)
        self.asked: list[Configuration] = []
        self._count, self._ready = count, Event()

    def capacity(self, gpus: int) -> int:
        return FEWEST

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        self.asked.append(configuration)
        if len(self.asked) == self._count:
            self._ready.set()
        return super().compile(configuration, signature)

    def recorded_library_best(self, problem: Problem) -> None:
        """Nothing: kernels like it are tried early, and those are not known before."""

    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        future: Future[float] = Future()

        def set_up() -> None:
            if self._ready.wait(120):
                future.set_result(super(SlowToStart, self).prepare(gpu, problem).result())
            else:
                future.set_exception(DeviceError("nothing was asked of the compilers"))

        Thread(target=set_up, daemon=True).start()
        return future


def test_what_is_tried_first_is_compiled_while_the_gpu_is_set_up(table: Table, tmp_path: Path) -> None:
    engine = SlowToStart(table, count=12)
    with Evaluator(engine, PROBLEM) as evaluator:
        options = TuneOptions("guided", 0, Budget(12, whole=True), tmp_path)
        begun: list[int] = []
        result = run_study(evaluator, options, meanwhile=lambda: begun.append(len(engine.asked)))

    assert begun == [12]
    assert {trial.configuration for trial in result.trials} == set(engine.asked[:12])
    assert result.trials[0].configuration == engine.asked[0]


@pytest.mark.parametrize(("sampler", "times"), [("random", 0), ("tpe", 0), ("guided", 1)])
def test_the_stored_kernels_are_looked_for_where_the_sampler_makes_something_of_them(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampler: str, times: int
) -> None:
    asked: list[str] = []

    def stored(engine: ReplayEngine, signature: str) -> Sequence[Configuration]:
        asked.append(signature)
        return ()

    monkeypatch.setattr(ReplayEngine, "stored", stored)
    search(table, tmp_path, sampler, trials=1)

    assert asked == [PROBLEM.signature] * times


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_no_configuration_is_tried_twice(sampler: str, searched: Searched) -> None:
    assert len(set(indices(searched(sampler)))) == len(searched(sampler)) == 60


def test_trial_0_is_the_default(table: Table, tmp_path: Path) -> None:
    result = search(table, tmp_path, trials=2)
    assert result.trials[0].configuration == result.info.default
    assert result.default == result.trials[0]


def test_the_best_is_the_fastest_right_one(table: Table, tmp_path: Path) -> None:
    result = search(table, tmp_path, trials=50)
    assert result.best is not None
    assert result.best.measurement.time_us == min(t.measurement.time_us for t in result.trials)


@pytest.mark.slow
def test_an_exhaustive_search_ends_with_the_space_and_finds_its_best(tmp_path: Path) -> None:
    problem = GemmProblem(16, 4096, 4096, dtype="e4m3")  # the fewest recorded
    table = default_table(TEMPLATE, problem)
    with Evaluator(ReplayEngine(table, TEMPLATE), problem) as evaluator:
        result = run_study(evaluator, TuneOptions("exhaustive", 0, Budget(whole=True), tmp_path))
    times = table.times_us[table.rows(problem)]
    assert len(result.trials) == len(times)
    assert result.best is not None
    assert result.best.measurement.time_us == pytest.approx(times.min())


def test_a_search_ends_when_its_gpu_seconds_are_spent(table: Table, tmp_path: Path) -> None:
    result = search(table, tmp_path, gpu_seconds=0.2)
    spent = list(itertools.accumulate(trial.measurement.gpu_seconds for trial in result.trials))
    assert spent[-1] >= 0.2
    assert all(seconds < 0.2 for seconds in spent[:-1])


def test_a_search_ends_when_its_time_is_up(table: Table, tmp_path: Path) -> None:
    result = search(table, tmp_path, "exhaustive", seconds=0.5)
    assert 0 < len(result.trials) < len(table.rows(PROBLEM))


@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_a_resumed_search_goes_on_where_it_ended(table: Table, tmp_path: Path, sampler: str) -> None:
    first = search(table, tmp_path, sampler, trials=15)
    whole = search(table, tmp_path, sampler, resume=True, trials=30)
    assert whole.info.name == first.info.name
    assert list(whole.trials[:15]) == list(first.trials)
    assert len(set(indices(whole.trials))) == 30


def test_without_resume_another_study_starts(table: Table, tmp_path: Path) -> None:
    first, second = search(table, tmp_path, trials=3), search(table, tmp_path, trials=3)
    assert first.info.name != second.info.name
    resumed = search(table, tmp_path, resume=True, trials=5)
    assert resumed.info.name == second.info.name


def test_a_study_of_other_kernels_is_not_resumed(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search(table, tmp_path, trials=3)
    monkeypatch.setattr(type(TEMPLATE), "source_hash", "another")
    with pytest.raises(StoreError, match="another version of gemm_sm90"):
        search(table, tmp_path, resume=True, trials=5)


@pytest.mark.parametrize(
    "change",
    [{"budget": 5}, {"race": None}, {"settings": None}, {"first": 1}, {"sharing": None}, {"peers": None},
     {"library_kernels": -1}, {"library_kernels": "8"}, {"studies": None}, {"resume": 1}, {"seed": True},
     {"settings": {"seed": 1}}],
)  # fmt: skip
def test_options_of_another_kind_are_told_when_they_are_made(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises((SamplerError, StoreError), match="can't be"):
        TuneOptions(**{"sampler": "random", "seed": 0, "budget": Budget(trials=1), "studies": tmp_path, **change})


def test_what_is_no_evaluator_and_what_are_no_options_is_told(table: Table, tmp_path: Path) -> None:
    options: Any = TuneOptions("random", 0, Budget(trials=1), tmp_path)
    with pytest.raises(SamplerError, match="`evaluator` can't be None: allowed are Evaluator"):
        run_study(None, options)  # type: ignore[arg-type]
    with (
        Evaluator(ReplayEngine(table, TEMPLATE), PROBLEM) as evaluator,
        pytest.raises(SamplerError, match="`options` can't be 5: allowed are TuneOptions"),
    ):
        run_study(evaluator, 5)  # type: ignore[arg-type]


def test_a_study_goes_on_with_the_cost_model_that_it_began_with_and_no_other(table: Table, tmp_path: Path) -> None:
    other = EXAMPLES / "gemm_sm90-h200.npz"
    shipped = TuneOptions("guided", 0, Budget(trials=3), tmp_path)
    named = replace(shipped, settings={"model": other})
    with Evaluator(ReplayEngine(table, TEMPLATE), PROBLEM) as evaluator:
        begun = run_study(evaluator, named)
        with pytest.raises(StoreError, match=f"begun with the cost model of SHA-256 {begun.info.model_sha256[:12]}"):
            run_study(evaluator, replace(shipped, resume=True))
        whole = run_study(evaluator, replace(named, budget=Budget(trials=5), resume=True))

    assert whole.info.name == begun.info.name
    assert whole.info.model_sha256 == begun.info.model_sha256
    assert len(whole.trials) == 5


def test_a_cost_model_that_is_an_object_is_named_and_told_from_others(table: Table, tmp_path: Path) -> None:
    paths = [shipped_model(name, "h200") for name in ("gemm_sm90", "gemm_streamk_sm90")]
    first, other = (load_model(path)[0] for path in paths if path is not None)
    options = TuneOptions("guided", 0, Budget(trials=2), tmp_path, settings={"model": first})
    with Evaluator(ReplayEngine(table, TEMPLATE), PROBLEM) as evaluator:
        info = run_study(evaluator, options).info
        with pytest.raises(StoreError, match=f"begun with the cost model of SHA-256 {content_sha256(first)[:12]}"):
            run_study(evaluator, replace(options, settings={"model": other}, resume=True))
        again = run_study(evaluator, replace(options, budget=Budget(trials=3), resume=True)).info

    assert info == again
    assert info.model == ""
    assert info.guide == {
        "name": f"{type(first).__name__}, given as an object", "sha256": content_sha256(first),
        "trained_on_problem": None,
    }  # fmt: skip


def test_a_study_goes_on_with_the_bytes_of_its_table_and_with_no_other(
    invented_card: TableCard, invented_rows: list[Row], tmp_path: Path
) -> None:
    studies, card = tmp_path / "studies", invented_card
    first, other = tmp_path / "first.parquet", tmp_path / "other.parquet"
    tables = [write_table(path, card, rows) for path, rows in ((first, invented_rows), (other, invented_rows[::-1]))]
    begun = search(tables[0], studies, trials=3)

    told = f"begun with the table {first} .SHA-256 {tables[0].card.sha256[:12]}., and this search replays {other} "
    with pytest.raises(StoreError, match=told):
        search(tables[1], studies, resume=True, trials=5)
    moved = write_table(tmp_path / "moved.parquet", card, invented_rows)
    whole = search(moved, studies, resume=True, trials=5)

    assert whole.info.name == begun.info.name
    assert len(whole.trials) == 5


def test_a_study_that_has_not_told_its_table_goes_on(
    invented_table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studies = tmp_path / "studies"
    with monkeypatch.context() as older:
        older.setattr("tilescout.search.tuning.study.record_info", lambda study, info: None)
        search(invented_table, studies, trials=3)

    assert len(search(invented_table, studies, resume=True, trials=5).trials) == 5


def test_studies_of_two_objectives_do_not_mix(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ReplayEngine(table, TEMPLATE)
    engine.provenance = replace(engine.provenance, objective=Objective.SANDWICH)
    options = TuneOptions("random", 0, Budget(trials=3), tmp_path, resume=True)

    chain = search(table, tmp_path, trials=2)
    with Evaluator(engine, PROBLEM) as evaluator:
        sandwich = run_study(evaluator, options)
        monkeypatch.setattr("tilescout.search.tuning.study._place", lambda _: "h200-replay")
        with pytest.raises(StoreError, match="holds times by the objective chain, asked for is sandwich"):
            run_study(evaluator, options)

    assert (len(chain.trials), len(sandwich.trials)) == (2, 3)
    assert chain.info.name == "gemm_sm90-4096x4096x4096-bf16-h200-replay-random-s0"
    assert sandwich.info.name == "gemm_sm90-4096x4096x4096-bf16-h200-replay-sandwich-random-s0"
    assert sandwich.to_dict()["objective"] == "sandwich"
    assert common_tags(chain.info)["objective"] == "chain"
    for result in (chain, sandwich):
        assert read_study(result.info.name, tmp_path).info.provenance == result.info.provenance
    older = chain.info.to_dict()
    del older["provenance"]["objective"]  # as before there was a choice
    assert StudyInfo.from_dict(older, PROBLEM).provenance == chain.info.provenance


def test_an_unknown_sampler_is_refused_before_anything_is_written(table: Table, tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match="magic"):
        search(table, tmp_path / "studies", "magic", trials=3)
    assert not (tmp_path / "studies").exists()


FAILURES = [status for status in Status if status not in (Status.OK, Status.PRUNED, Status.INTERRUPTED)]


class FlakyEvaluator(Evaluator):
    """Every third configuration fails, each in another way, three may be in flight, and the last comes back first."""

    def __init__(self, table: Table) -> None:
        super().__init__(ReplayEngine(table, TEMPLATE), PROBLEM)
        self.capacity = 3
        self.waiting: list[int] = []
        self.failures = itertools.cycle(status for status in FAILURES)
        self.submitted = 0

    def submit(self, index: int, incumbent: float | None = None) -> None:
        self.waiting.append(index)
        assert len(self.waiting) <= self.capacity

    def wait(self) -> list[tuple[int, Measurement]]:
        self.submitted += 1
        index = self.waiting.pop()
        if self.submitted % 3 == 0:
            return [(index, Measurement(next(self.failures), "it failed"))]
        super().submit(index)
        return super().wait()


@pytest.mark.slow
@pytest.mark.parametrize("sampler", list(SAMPLERS))
def test_failed_configurations_are_trials_and_the_search_goes_on(table: Table, tmp_path: Path, sampler: str) -> None:
    evaluator: Evaluator = FlakyEvaluator(table)
    result = run_study(evaluator, TuneOptions(sampler, 0, Budget(trials=30, whole=True), tmp_path))
    failed = [trial for trial in result.trials if trial.measurement.failed]
    assert len(result.trials) == 30
    assert len(failed) == 10
    assert {trial.measurement.status for trial in failed} == set(FAILURES)
    assert len(set(indices(result.trials))) == 30
    # The first configurations in order may all be pruned ones.
    assert (result.best is not None) == any(trial.measurement.ok for trial in result.trials)
    assert result.best is None or result.best.measurement.ok


def test_what_is_to_be_tried_first_comes_right_after_the_default_and_once(table: Table, tmp_path: Path) -> None:
    with Evaluator(ReplayEngine(table, TEMPLATE), PROBLEM) as evaluator:
        default = evaluator.space.index(TEMPLATE.default(PROBLEM, evaluator.device))
        first = [7, default, 3, 7, 11]
        options = TuneOptions("random", 0, Budget(trials=6), tmp_path, first=first)
        result = run_study(evaluator, options)
        resumed = run_study(evaluator, replace(options, budget=Budget(trials=8), resume=True))
    assert indices(result.trials)[:4] == [default, 7, 3, 11]
    assert len(set(indices(resumed.trials))) == len(resumed.trials) == 8
