"""Campaigns: killed and resumed ones, with lost GPUs, and real ones with a race at the end."""

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.campaigns.campaign import Campaign, CampaignOptions, Progress
from tilescout.search.campaigns.collection import FORM, collect, journal_path
from tilescout.search.campaigns.finals import Final
from tilescout.search.campaigns.plan import Plan, make_plan
from tilescout.search.campaigns.records import Record, read_records
from tilescout.search.engines.engine import LiveOptions, Task, failed_future, settled_future
from tilescout.search.engines.local import LocalEngine
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.journal import Journal, never
from tilescout.search.tables.shipped import default_table
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import DeviceError, StoreError, TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration, Knob
from tilescout.spaces.problems import Problem
from tilescout.spaces.subspace import parse_restrictions
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")
PROBLEMS = (GemmProblem(16, 4096, 4096), GemmProblem(512, 512, 512))
KILLS = 4


@pytest.fixture(scope="module")
def table() -> Table:
    return default_table(TEMPLATE, PROBLEMS[0])


@pytest.fixture(scope="module")
def plan(table: Table) -> Plan:
    engine = ReplayEngine(table, TEMPLATE)
    spaces = [engine.space(problem) for problem in PROBLEMS]
    return make_plan(spaces, [TEMPLATE.default(problem, engine.device) for problem in PROBLEMS], 80, 0)


def contents(table: Table) -> list[object]:
    """All rows, in order."""
    return list(table.data.to_pylist())


def measured_rows(journal: Path) -> list[tuple[int, int]]:
    """The rows that a journal holds, in order; what is cut off at its end is left out."""
    lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
    records = [json.loads(line) for line in lines]
    return [tuple(record["row"]) for record in records if "row" in record]


@pytest.mark.slow
def test_a_campaign_killed_some_times_measures_what_an_uninterrupted_one_does(
    start_command: Callable[..., tuple[ForkServerProcess, Sequence[Path]]], tmp_path: Path
) -> None:
    suite = tmp_path / "two.toml"
    suite.write_text(f"problems = {json.dumps([str(problem) for problem in PROBLEMS])}")
    given = ["collect", "gemm_sm90", "--suite", str(suite), "--device", "replay", "--gpus", "3", "--sample", "1200"]

    def start(out: Path) -> ForkServerProcess:
        process, _ = start_command(tmp_path, *given, "--out", str(out))
        return process

    def wait(process: ForkServerProcess) -> int | None:
        process.join()
        return process.exitcode

    whole, killed = tmp_path / "whole.parquet", tmp_path / "killed.parquet"
    assert wait(start(whole)) == 0
    journal, rng = journal_path(killed), random.Random(0)
    size = 600 * 1000  # of half a journal, about
    known: list[int] = []
    for _ in range(KILLS):
        enough = (journal.stat().st_size if journal.exists() else 0) + rng.randrange(size // KILLS)
        process = start(killed)
        while process.is_alive() and not (journal.exists() and journal.stat().st_size > enough):
            time.sleep(0.001)
        process.kill()
        if (ended := wait(process)) == 0:  # it was finished first: this process had no core for seconds
            break
        assert ended == -signal.SIGKILL
        assert not killed.exists()
        rows = measured_rows(journal)
        assert len(rows) == len(set(rows)), "a row was measured twice"
        known.append(len(rows))
    if not killed.exists():
        assert wait(start(killed)) == 0

    assert known == sorted(known)
    assert len(set(known)) >= KILLS // 2  # it was killed at many stages
    assert not journal.exists()
    assert contents(Table.read(killed)) == contents(Table.read(whole))
    assert len(Table.read(killed)) == known[-1] or known[-1] < len(Table.read(killed))


def test_a_campaign_killed_before_its_journal_was_removed_finishes_again(
    table: Table, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "t.parquet"
    with monkeypatch.context() as patch:
        patch.setattr("tilescout.search.studies.journal.Journal.remove", lambda journal: None)
        first = collect(ReplayEngine(table, TEMPLATE), plan, out, CampaignOptions())
    assert journal_path(out).exists()
    again = collect(ReplayEngine(table, TEMPLATE), plan, out, CampaignOptions())
    assert contents(again) == contents(first)
    assert not journal_path(out).exists()
    with pytest.raises(
        StoreError, match=r"t\.parquet is there already and complete, .*: write another file, or delete"
    ):
        collect(ReplayEngine(table, TEMPLATE), plan, out, CampaignOptions())


def test_rows_are_in_the_order_of_the_plan_and_as_they_were_recorded(table: Table, plan: Plan, tmp_path: Path) -> None:
    seen: list[Progress] = []
    found = collect(ReplayEngine(table, TEMPLATE, 2), plan, tmp_path / "t.parquet", CampaignOptions(), seen.append)
    expected = [
        (problem, configuration)
        for problem, legal in zip(plan.problems, plan.legal, strict=True)
        for configuration, wanted in zip(plan.configurations, legal, strict=True)
        if wanted
    ]
    assert len(found) == len(expected) == plan.rows
    for row, (problem, configuration) in enumerate(expected):
        assert found.configuration(row) == configuration
        assert found.measurement(row) == table.measurement(table.row(configuration, problem) or 0)
    assert [seen[0].rows, seen[-1].rows] == [0, plan.rows]
    assert "no GPU was used" in found.card.selection
    assert plan.how in found.card.selection


def test_a_campaign_of_something_else_is_not_continued(table: Table, plan: Plan, tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(progress: Progress) -> None:
        if progress.rows:
            raise StoppedError

    out = tmp_path / "t.parquet"
    with pytest.raises(StoppedError):
        collect(ReplayEngine(table, TEMPLATE), plan, out, CampaignOptions(), stop)
    with pytest.raises(StoreError, match=r"another campaign: its prune is 2\.0, now it is 3"):
        collect(ReplayEngine(table, TEMPLATE), plan, out, CampaignOptions(prune=3))
    fewer = Plan(plan.problems, plan.configurations, plan.legal & (plan.legal.cumsum(axis=1) < 9), plan.how)
    with pytest.raises(StoreError, match="another campaign: its rows"):
        collect(ReplayEngine(table, TEMPLATE), fewer, out, CampaignOptions())
    engine = ReplayEngine(table, TEMPLATE)
    engine.provenance = replace(engine.provenance, objective=Objective.SANDWICH)
    with pytest.raises(StoreError, match="another campaign: its objective is 'chain', now it is 'sandwich'"):
        collect(engine, plan, out, CampaignOptions())
    assert len(collect(ReplayEngine(table, TEMPLATE), plan, out, CampaignOptions())) == plan.rows
    assert collect(engine, plan, tmp_path / "other.parquet", CampaignOptions()).card.objective is Objective.SANDWICH


class OfSeveralLibraries(ReplayEngine):
    """Problems of several types, whose library's kernels are called through functions of their own."""

    def library(self, problem: Problem) -> str:
        return "torch.mm" if problem == PROBLEMS[0] else "torch._scaled_mm"


def test_the_card_names_what_the_kernels_of_all_problems_are_called_through(
    table: Table, plan: Plan, tmp_path: Path
) -> None:
    found = collect(OfSeveralLibraries(table, TEMPLATE), plan, tmp_path / "t.parquet", CampaignOptions())
    assert found.card.library == "torch.mm, torch._scaled_mm"


class Failing(ReplayEngine):
    """GPUs that answer so many batches each, from threads, and are lost then."""

    def __init__(self, table: Table, lives: Sequence[int]) -> None:
        super().__init__(table, TEMPLATE, len(lives))
        self.lives = list(lives)
        self.asked: list[tuple[str, Problem]] = []

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        self.lives[gpu] -= 1
        if self.lives[gpu] < 0:
            return failed_future(DeviceError(f"GPU {gpu} fell off"))
        self.asked += [(str(task.configuration), task.problem) for task in tasks]
        answer = super().measure(gpu, tasks).result()
        later: Future[list[Measurement]] = Future()
        threading.Timer(0.001, lambda: later.set_result(answer)).start()
        return later


@pytest.mark.parametrize("name", ["registers", "problem", "throttle", "raced_low"])
def test_knobs_that_no_table_can_have_are_refused_before_anything_is_measured(
    tmp_path: Path, table: Table, plan: Plan, name: str
) -> None:
    engine = ReplayEngine(table, TEMPLATE)
    engine.template = type("Odd", (type(TEMPLATE),), {"knobs": (Knob(name, (1, 2), "as a column is called"),)})()
    with pytest.raises(TableError, match=f"knob {name} has the name of another column"):
        collect(engine, plan, tmp_path / "t.parquet", CampaignOptions())
    assert not list(tmp_path.iterdir())


def test_gpus_that_are_lost_lose_nothing_as_long_as_one_is_left(table: Table, plan: Plan, tmp_path: Path) -> None:
    engine = Failing(table, lives=[1, 2, 1000, 0])
    found = collect(engine, plan, tmp_path / "t.parquet", CampaignOptions(batch=4, worthwhile=1))
    assert len(found) == plan.rows == len(engine.asked) == len(set(engine.asked))


def test_when_the_last_gpu_is_lost_the_campaign_says_so_and_goes_on_later(
    table: Table, plan: Plan, tmp_path: Path
) -> None:
    out = tmp_path / "t.parquet"
    with pytest.raises(DeviceError, match="fell off"):
        collect(Failing(table, lives=[2, 1]), plan, out, CampaignOptions(batch=4))
    kept = set(measured_rows(journal_path(out)))
    assert kept
    engine = Failing(table, lives=[1000])
    found = collect(engine, plan, out, CampaignOptions(batch=4))
    assert len(found) == plan.rows
    assert len(engine.asked) == plan.rows - len(kept)


class Once(ReplayEngine):
    """A GPU that answers one batch, and is lost as soon as it is given the next."""

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        self.measure = lambda gpu, tasks: failed_future(DeviceError("it fell off"))  # type: ignore[method-assign]
        return super().measure(gpu, tasks)


def test_what_was_known_when_the_campaign_ended_is_kept(table: Table, plan: Plan, tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    with pytest.raises(DeviceError, match="fell off"):
        collect(Once(table, TEMPLATE), plan, out, CampaignOptions(batch=4))
    assert len(measured_rows(journal_path(out))) == 4


def test_a_problem_for_which_nothing_compiles_has_rows_and_the_librarys_time(
    table: Table, plan: Plan, tmp_path: Path
) -> None:
    class Refusing(ReplayEngine):
        def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
            return settled_future(CompileFailure("refused"))

    found = collect(Refusing(table, TEMPLATE), plan, tmp_path / "t.parquet", CampaignOptions())
    assert {found.measurement(row).status for row in range(len(found))} == {Status.COMPILE_ERROR}
    assert len(found) == plan.rows
    assert all(found.card.baselines[problem].library_us > 0 for problem in PROBLEMS)


def test_a_journal_that_names_what_is_not_in_the_plan_is_refused(table: Table, plan: Plan, tmp_path: Path) -> None:
    outcome = Measurement(Status.COMPILE_ERROR, "refused").to_dict()
    race: dict[str, object] = {"winner": None, "probability": 1.0, "error": "", "library_best": None}
    illegal = next(map(int, np.flatnonzero(~plan.legal[0])))
    damaged: list[dict[str, object]] = [
        {"row": [0, illegal], "measurement": outcome},
        {"row": [2, 0], "measurement": outcome},
        {"row": [-1, 0], "measurement": outcome},
        {"row": [0, "0"], "measurement": outcome},
        {"library": [0, -3.0]},
        {"library": [2, 3.0]},
        {"final": 0, "ratios": [[0, 1.0, 0.9, 1.1, 3]], **race},
        {"final": 0, "ratios": [], **race, "library_best": []},
    ]
    for number, record in enumerate(damaged):
        out = tmp_path / f"{number}.parquet"
        with pytest.raises(DeviceError):
            collect(Failing(table, lives=[0]), plan, out, CampaignOptions())
        with Journal(journal_path(out), FORM, never) as journal:
            journal.append([record])
        with pytest.raises(StoreError, match="is damaged"):
            collect(ReplayEngine(table, TEMPLATE), plan, out, CampaignOptions())


def test_a_journal_of_races_is_read_back_and_one_of_a_row_that_was_not_timed_for_the_problem_is_refused(
    table: Table, plan: Plan
) -> None:
    both = [number for number in range(len(plan.configurations)) if plan.legal[:, number].all()][:2]
    rows = [table.row(plan.configurations[number], PROBLEMS[0]) for number in both]
    timed = next(outcome for row in rows if row is not None and (outcome := table.measurement(row)).timing is not None)
    told = [
        Record.row(0, both[0], timed),
        Record.row(1, both[1], timed),
        Record.row(1, both[0], replace(timed, timing=None, raced=None, status=Status.WRONG)),
    ]
    final = Final({both[0]: (1.0, 0.9, 1.1, 3)}, both[0], 0.9)

    def journal(*records: Record) -> Any:
        return SimpleNamespace(path="t.journal", earlier=[{}, *records])

    found, _, finals = read_records(journal(*told, Record.final(0, final)), plan)
    assert len(found) == 3
    assert finals == {0: final}
    with pytest.raises(StoreError, match=rf"configuration {both[0]} can't have raced"):
        read_records(journal(*told, Record.final(1, final)), plan)


def test_what_is_known_is_sorted_by_problem_once(
    table: Table, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []

    class Rows(dict[tuple[int, int], Measurement]):
        def items(self) -> Any:
            passes.append(len(self))
            return super().items()

    def read(*given: Any) -> Any:
        rows, library_us, finals = read_records(*given)
        return Rows(rows), library_us, finals

    out = tmp_path / "t.parquet"
    with pytest.raises(DeviceError):
        collect(Failing(table, lives=[3]), plan, out, CampaignOptions(batch=16))
    monkeypatch.setattr("tilescout.search.campaigns.campaign.read_records", read)
    known = len(measured_rows(journal_path(out)))
    with Journal(journal_path(out), FORM, never) as held:
        campaign = Campaign(ReplayEngine(table, TEMPLATE), plan, held, CampaignOptions())
        assert passes == [known]
        campaign.run()
    assert passes == [known]
    assert len(campaign.rows) == plan.rows


@pytest.mark.slow
def test_a_real_campaign_compiles_measures_and_races(plain_gemm: ModuleType, tmp_path: Path) -> None:
    options = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0), timeout=60)
    problems = [GemmProblem(64, 64, 64), GemmProblem(32, 64, 32)]
    with LocalEngine(plain_gemm.TEMPLATE, tmp_path / "store", ["cpu"], plain_gemm.HOST, options) as engine:
        spaces = [engine.space(problem) for problem in problems]
        default = plain_gemm.TEMPLATE.default(problems[0], engine.device)
        some = parse_restrictions(["fault=nothing,corner,compiler_refuses"], spaces[0].knobs)
        plan = make_plan(spaces, [default] * 2, None, 0, some)
        race = RaceOptions(within=10.0, look=3, looks=2, pairs=2)
        campaign = CampaignOptions(prune=None, race=race)
        found = collect(engine, plan, tmp_path / "t.parquet", campaign)

    assert len(found) == plan.rows == 2 * 9
    status = {"nothing": Status.OK, "corner": Status.WRONG, "compiler_refuses": Status.COMPILE_ERROR}
    for row in range(len(found)):
        assert found.measurement(row).status is status[str(found.configuration(row)["fault"])]
    for problem in found.problems:
        measured = [found.measurement(int(row)) for row in found.rows(problem)]
        raced = [(each.timing, each.raced) for each in measured if each.raced is not None]
        assert len(raced) > 1  # some finalists and the default
        for timing, told in raced:
            assert told.pairs % (race.look * race.pairs) == 0
            assert timing is not None  # what its own pairs told stays beside it
            assert (timing.ratio, timing.ratio_low) != (told.ratio, told.low)
        assert all(each.raced is None for each in measured if not each.ok)
    assert "On 2 of 2 problems the fastest rows and the default were measured anew" in found.card.selection
    assert "timed in full" in found.card.selection
