"""Trials of earlier studies, from a store of replayed ones."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.samplers import make_sampler
from tilescout.search.studies.journal_folder import JournalFolder
from tilescout.search.studies.records import StudyInfo
from tilescout.search.tables.shipped import default_table
from tilescout.search.tables.table import Table
from tilescout.search.tuning import earlier
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.earlier import earlier_trials, recalled
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")
BEFORE = GemmProblem(512, 512, 512), GemmProblem(1024, 1024, 1024)
PROBLEM = GemmProblem(16, 4096, 4096)
TRIALS = 6


class Anew(ReplayEngine):
    """Says that it measures, as one on a GPU does."""

    measures_anew = True


@pytest.fixture(scope="module")
def table() -> Table:
    return default_table(TEMPLATE, PROBLEM)


@pytest.fixture(scope="module")
def store(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Studies of two problems."""
    folder = tmp_path_factory.mktemp("studies")
    for problem in BEFORE:
        with Evaluator(ReplayEngine(table, TEMPLATE), problem) as evaluator:
            run_study(evaluator, TuneOptions("random", 0, Budget(TRIALS), folder))
    return folder


@pytest.fixture
def evaluator(table: Table) -> Iterator[Evaluator]:
    with Evaluator(Anew(table, TEMPLATE), PROBLEM) as found:
        yield found


def test_the_trials_of_other_problems_are_found(store: Path, evaluator: Evaluator) -> None:
    found = earlier_trials(store, evaluator, (PROBLEM,))

    assert {str(trials.space.problem): len(trials) for trials in found} == {str(one): TRIALS for one in BEFORE}
    assert all(not trials.pruned.all() for trials in found)


def test_problems_that_are_searched_now_are_left_out(store: Path, evaluator: Evaluator) -> None:
    [found] = earlier_trials(store, evaluator, (PROBLEM, BEFORE[0]))

    assert found.space.problem == BEFORE[1]


@pytest.mark.parametrize("what", [{"space_hash": "of another version"}, {"device": "h100"}])
def test_what_is_not_of_todays_kernel_on_this_device_is_left_out(
    what: dict[str, str], store: Path, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = StudyInfo.from_dict

    def changed(*given: object) -> StudyInfo:
        return replace(read(*given), **what)  # type: ignore[arg-type]

    monkeypatch.setattr(StudyInfo, "from_dict", changed)
    assert not earlier_trials(store, evaluator, ())


def test_studies_that_are_left_out_take_no_room_of_others(
    store: Path, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(earlier, "USED", 1)
    [last] = earlier_trials(store, evaluator, ())
    [other] = earlier_trials(store, evaluator, (last.space.problem,))
    assert {last.space.problem, other.space.problem} == set(BEFORE)


def test_what_the_name_rules_out_is_not_read_and_no_more_than_are_allowed(
    store: Path, evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = sorted(path.stem for path in store.iterdir())
    longer = f"{TEMPLATE.name}-16x4096x4096-bf16-relu-h200-replay-random-s0"
    wrong = [
        f"{TEMPLATE.name}-16x4096x4096-bf16-h200-replay-random-s0",
        f"{TEMPLATE.name}-512x512x512-bf16-h100-replay-random-s0",
        f"{TEMPLATE.name}-512x512x512-bf16-h200-live-random-s0",
        f"{TEMPLATE.name}x-512x512x512-bf16-h200-replay-random-s0",
    ]
    read: list[str] = []

    def note(folder: JournalFolder, name: str) -> optuna.Study:
        read.append(name)
        raise StoreError("it can't be read")

    monkeypatch.setattr(JournalFolder, "names", lambda folder: sorted([*right, *wrong, longer]))
    monkeypatch.setattr(JournalFolder, "load", note)
    assert not earlier_trials(store, evaluator, (PROBLEM,))
    assert read == sorted([*right, longer], reverse=True)
    monkeypatch.setattr(earlier, "READ", 1)
    assert not earlier_trials(store, evaluator, (PROBLEM,))
    assert len(read) == len([*right, longer]) + 1


def test_a_damaged_study_is_left_out(store: Path, evaluator: Evaluator, tmp_path: Path) -> None:
    for path in store.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    next(tmp_path.glob("*1024x1024x1024*")).write_text("no journal\n")

    [found] = earlier_trials(tmp_path, evaluator, ())
    assert found.space.problem == BEFORE[0]


def test_only_a_search_that_measures_by_a_sampler_that_recalls_asks_for_them(
    table: Table, store: Path, evaluator: Evaluator
) -> None:
    assert len(recalled("guided-cold:startup=3", store, evaluator, ())["earlier"]()) == len(BEFORE)
    assert not recalled("random", store, evaluator, ())
    assert not recalled(make_sampler("guided-cold"), store, evaluator, ())  # an object has what it has
    with Evaluator(ReplayEngine(table, TEMPLATE), PROBLEM) as replayed:
        assert not recalled("guided-cold", store, replayed, ())


def test_no_store_holds_nothing(evaluator: Evaluator, tmp_path: Path) -> None:
    assert earlier_trials(tmp_path / "none", evaluator, ()) == []
