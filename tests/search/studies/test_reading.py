"""Reading a study changes nothing about its store, and refuses what is no study in one line."""

import json
import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from operator import methodcaller
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.samplers import RandomSampler

from tilescout.experiments.compare.play import FinishedRuns
from tilescout.search.campaigns.collection import FORM
from tilescout.search.campaigns.plan import Plan
from tilescout.search.campaigns.records import read_records
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.samplers.base import distributions
from tilescout.search.studies import journal as journals
from tilescout.search.studies.database import Database
from tilescout.search.studies.journal import Journal, never
from tilescout.search.studies.journal_folder import JournalFolder, open_study
from tilescout.search.studies.places import read_study, result_of, study_store
from tilescout.search.studies.sharing import SharingOptions
from tilescout.search.studies.study_store import StudyStore
from tilescout.search.studies.trials import finished_trials, record_outcome, recover
from tilescout.spaces import sqlite_files
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

RECORDED = Path(__file__).parent / "recorded"
"""Files that tilescout wrote when each kind of journal had a class of its own: a replayed search of four random trials,
the same of three in SQLite, a campaign and a comparison."""

NAME = "gemm_sm90-4096x4096x4096-bf16-h200-replay-random-s0"
SPACE = find_template("gemm_sm90").space(GemmProblem(4096, 4096, 4096), find_device("h200"))

Seen = Mapping[str, tuple[bytes | None, int]]


def files(folder: Path) -> Seen:
    """Every file below a folder: its contents, and when it was written."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in (folder, *folder.rglob("*"))
    }


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    """A folder with a study whose last record is cut off."""
    folder = tmp_path / "studies"
    folder.mkdir()
    content = (RECORDED / f"{NAME}.journal").read_bytes()
    (folder / f"{NAME}.journal").write_bytes(content + content.splitlines()[-1][:100])
    return folder


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A SQLite file with a study."""
    folder = tmp_path / "database"
    folder.mkdir()
    with sqlite3.connect(folder / "studies.db") as connection:
        connection.executescript((RECORDED / "studies.sql").read_text())
    connection.close()
    return f"sqlite:///{folder}/studies.db"


def read_all(store: StudyStore) -> None:
    assert store.names() == [NAME]
    assert store.read(NAME).info.name == NAME
    assert store.attributes(NAME)["about"]["library_us"] > 0
    result = store.result(NAME)
    assert result is not None
    assert result["study"] == NAME
    assert store.results() == {NAME: result}
    with pytest.raises(StoreError, match="there is no study other in "):
        store.read("other")


def test_reading_a_journal_changes_no_file_and_makes_none(studies: Path) -> None:
    before = files(studies)
    read_all(study_store(studies))
    path = str(studies / f"{NAME}.journal")
    assert result_of(path, "nowhere") == result_of(NAME, studies)
    assert read_study(path, "nowhere") == read_study(NAME, studies)
    assert files(studies) == before


def test_reading_a_database_changes_no_file_and_makes_none(url: str, tmp_path: Path) -> None:
    before = files(tmp_path)
    read_all(study_store(url))
    assert files(tmp_path) == before
    with pytest.raises(StoreError, match="there is no database sqlite"):
        study_store(f"sqlite:///{tmp_path}/missing.db").names()
    assert files(tmp_path) == before


def test_reading_a_database_in_wal_mode_changes_no_file_and_makes_none(url: str, tmp_path: Path) -> None:
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
    before = files(tmp_path)
    read_all(study_store(url))
    assert files(tmp_path) == before


def test_a_database_in_wal_mode_is_read_while_it_is_written(url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        store = study_store(url)
        connection.execute("INSERT INTO studies VALUES (7, 'other')")
        assert store.names() == [NAME, "other"]
        connection.execute("DELETE FROM studies WHERE study_id = 7")
        read_all(store)
    read_all(store)  # nobody has it open any more


def test_a_database_whose_log_has_lost_its_index_is_refused_with_what_to_do(url: str, tmp_path: Path) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    path.with_name("studies.db-wal").write_bytes(bytes(1000))
    before = files(tmp_path)
    with pytest.raises(StoreError, match=r"write-ahead log.*wal_checkpoint'\)$"):
        study_store(url).names()
    assert files(tmp_path) == before


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
def test_a_pipe_in_the_place_of_a_file_of_sqlites_own_is_refused_by_readers_and_writers(url: str, suffix: str) -> None:
    os.mkfifo(url.removeprefix("sqlite:///") + suffix)
    for use in (methodcaller("names"), methodcaller("check")):
        with pytest.raises(StoreError, match=rf"failed \(studies.db{suffix} beside it is no regular file\)$"):
            use(study_store(url))


def test_a_query_that_takes_more_steps_than_its_file_explains_is_refused_in_one_line(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.executemany("INSERT INTO studies VALUES (?, ?)", ((at, f"s{at}") for at in range(7, 5007)))
    for name, value in {"_STEPS": 10_000, "_STEPS_BYTE": 0, "_BETWEEN": 100}.items():
        monkeypatch.setattr(sqlite_files, name, value)
    with pytest.raises(StoreError, match=r"failed \(a query takes far more than .* explains: it is damaged\)$"):
        study_store(url).names()


@pytest.mark.parametrize("type_", ["VIEW", b"view"])
def test_a_view_is_refused_in_a_database_however_its_type_is_written(url: str, type_: object) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("DELETE FROM sqlite_master WHERE tbl_name = 'studies'")
        view = "CREATE VIEW studies AS SELECT 1 AS study_id, 's' AS study_name"
        connection.execute("INSERT INTO sqlite_master VALUES (?, 'studies', 'studies', 0, ?)", (type_, view))
        connection.execute("PRAGMA schema_version=99")
    with pytest.raises(StoreError, match="a view"):
        study_store(url).names()


def test_a_database_without_studies_is_refused_and_gets_no_tables(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "other.db").close()
    (tmp_path / "text.db").write_text("not a database, but long enough for SQLite to look at it twice\n" * 20)
    before = files(tmp_path)
    for name in ("other", "text"):
        with pytest.raises(StoreError, match="failed") as refusal:
            study_store(f"sqlite:///{tmp_path}/{name}.db").names()
        assert "\n" not in str(refusal.value)
    assert files(tmp_path) == before


@pytest.mark.parametrize("value", ["X'fffe'", "'{'", "NULL"])
def test_a_damaged_row_of_a_database_is_refused_in_one_line(url: str, value: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.execute(f"UPDATE study_user_attributes SET value_json = {value}")
        connection.commit()
    for read in (lambda: study_store(url).names(), lambda: study_store(url).read(NAME)):
        with pytest.raises(StoreError, match=r"damaged|what it is about"):
            read()


ENDLESS = "WITH RECURSIVE n(study_id, study_name) AS (SELECT 1, 's' UNION ALL SELECT study_id + 1, 's' FROM n)"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"ALTER TABLE studies RENAME TO other; CREATE VIEW studies AS {ENDLESS} SELECT * FROM n", "a view"),
        (
            f"CREATE TRIGGER t AFTER INSERT ON studies BEGIN INSERT INTO studies {ENDLESS} SELECT * FROM n; END",
            "trigger",
        ),
        ("ALTER TABLE studies ADD COLUMN x AS (hex(zeroblob(study_id * 100000000)))", "computed"),
        ("CREATE VIRTUAL TABLE words USING fts5(text)", "a view"),
        ("UPDATE study_user_attributes SET value_json = hex(zeroblob(10000000))", "too big"),
        (f"UPDATE study_user_attributes SET value_json = '[{'[],' * 100_000}1]'", "200001 values"),
    ],
    ids=["view", "trigger", "computed column", "virtual table", "large value", "many values"],
)
def test_what_is_computed_and_what_fills_the_memory_is_refused_in_a_database(url: str, script: str, why: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.executescript(script)
    for use in (lambda: study_store(url).read(NAME), lambda: study_store(url).delete(NAME)):
        with pytest.raises(StoreError, match=why):
            use()


@pytest.mark.parametrize(
    ("value", "why"), [("[" + "[]," * 1_000_000 + "1]", "too many"), ("[" * 65 + "]" * 65, "deep")]
)
def test_a_journal_with_more_values_than_it_has_room_for_is_refused(studies: Path, value: str, why: str) -> None:
    record = f'{{"op_code":2,"worker_id":"w","study_id":0,"user_attr":{{"a":{value}}}}}\n'
    first, *_ = (RECORDED / f"{NAME}.journal").read_text().splitlines(keepends=True)
    (studies / f"{NAME}.journal").write_text(re.sub(',"sum":"[0-9a-f]*"', "", first) + record)

    with pytest.raises(StoreError, match=why):
        read_study(NAME, studies)
    with pytest.raises(StoreError, match=why), open_study(studies / f"{NAME}.journal", RandomSampler()):
        pass


def test_an_old_journal_is_said_to_be_unchecked_and_an_empty_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = (RECORDED / f"{NAME}.journal").read_text()
    (tmp_path / f"{NAME}.journal").write_text(re.sub(',"sum":"[0-9a-f]*"', "", content))
    (tmp_path / "empty.journal").touch()

    with caplog.at_level(logging.INFO, "tilescout"):
        read_study(NAME, tmp_path)
        assert caplog.text.count("has no checksums") == 1
        with pytest.raises(StoreError, match="is empty"):
            read_study("empty", tmp_path)
    assert caplog.text.count("has no checksums") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_study_in_a_folder_that_may_not_be_written_is_read(studies: Path) -> None:
    studies.chmod(0o500)
    assert len(read_study(NAME, studies).trials) == 4
    studies.chmod(0o700)


def test_a_study_is_read_while_it_is_searched(studies: Path) -> None:
    with open_study(studies / f"{NAME}.journal", RandomSampler(seed=0)) as study:
        trial = study.ask({**distributions(SPACE)})
        assert len(read_study(NAME, studies).trials) == 4
        record_outcome(study, trial, Measurement(Status.WRONG, "x"))
        assert len(read_study(NAME, studies).trials) == 5


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_loop(path: Path) -> None:
    path.symlink_to(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def holding(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "text": (holding(b"Monday: measured all day.\nTuesday: the same, with no new"), "its first line is not"),
    "text without a line": (holding(b"no new line"), "its first line is not"),
    "other JSON": (holding(b'{"format":1,"space":"gemm_sm90"}\n{"library":[0,4.0'), "its first line is not"),
    "a list": (holding(b'["op_code"]\n["op'), "its first line is not"),
    "nested": (holding(b"[" * 100_000 + b"\n[["), "its first line is not"),
    "zeros": (holding(bytes(1000)), "its first line is not"),
    "a folder": (Path.mkdir, "is no regular file"),
    "a pipe": (a_pipe, "is no regular file"),
    "a loop": (a_loop, "Too many levels of symbolic links"),
    "a device": (a_device, "is no regular file"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_study_is_refused_in_one_line_and_left_as_it_is(kind: str, tmp_path: Path) -> None:
    make, why = FOREIGN[kind]
    path = tmp_path / "notes.journal"
    make(path)
    before = sorted(os.listdir(tmp_path)), os.lstat(path).st_mtime_ns, path.is_file() and path.read_bytes()
    folder = JournalFolder(tmp_path)
    attempts: list[Callable[[], object]] = [
        lambda: folder.read("notes"),
        lambda: folder.result("notes"),
        folder.results,
        lambda: read_study(str(path), tmp_path),
        lambda: open_study(path, RandomSampler(seed=0)).__enter__(),
        lambda: folder.join("notes", True, RandomSampler(seed=0), SPACE, SharingOptions()).__enter__(),
    ]
    for attempt in attempts:
        with pytest.raises(StoreError, match=why) as refusal:
            attempt()
        assert "\n" not in str(refusal.value)
        assert "notes" in str(refusal.value)
    assert before == (sorted(os.listdir(tmp_path)), os.lstat(path).st_mtime_ns, path.is_file() and path.read_bytes())


def test_a_study_that_was_cut_within_its_first_record_or_is_empty_has_no_result(tmp_path: Path) -> None:
    folder, path = JournalFolder(tmp_path), tmp_path / "study.journal"
    for content in (b"", b'{"op_code":0,"worker_id":"26a8', b'{"op'):
        path.write_bytes(content)
        assert folder.results() == {"study": None}
        with pytest.raises(StoreError, match="is empty: no search of it has begun"):
            folder.read("study")
        assert path.read_bytes() == content
        with open_study(path, RandomSampler(seed=0)) as study:
            assert study.trials == []
        assert path.read_bytes().startswith(b'{"op_code":0,')


def test_a_record_or_a_journal_that_is_too_large_is_neither_read_nor_written(
    studies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = studies / f"{NAME}.journal"
    longest = max(map(len, path.read_bytes().splitlines(keepends=True)))
    monkeypatch.setattr(journals, "LONGEST", longest)
    with open_study(path, RandomSampler(seed=0)) as study, pytest.raises(StoreError, match="can't write"):
        study.set_user_attr("a", "b" * longest)
    assert len(read_study(NAME, studies).trials) == 4
    for limit, value in (("LONGEST", longest - 1), ("LARGEST", path.stat().st_size - 1)):
        with monkeypatch.context() as patch:
            patch.setattr(journals, limit, value)
            before = files(studies)
            with pytest.raises(StoreError, match=r"longer than|too large"):
                read_study(NAME, studies)
            with pytest.raises(StoreError, match=r"longer than|too large"), open_study(path, RandomSampler(seed=0)):
                pass
            assert files(studies) == before


def test_a_disk_that_fills_up_within_a_record_leaves_none_of_it(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
from tilescout.search.studies.journal import Journal, JournalForm, never
from tilescout.spaces.errors import StoreError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
with Journal(Path(sys.argv[1]), JournalForm("the journal", "row"), never) as journal:
    journal.append([{"row": 1}])
    try:
        journal.append([{"row": 2, "long": "x" * 200}])
    except StoreError as error:
        print(error)
    journal.append([{"row": 3}])
"""
    path = tmp_path / "a.journal"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    assert done.stdout == f"can't write the journal {path}: File too large\n"
    assert path.read_text() == '{"row":1}\n{"row":3}\n'


def test_a_recorded_study_is_read_and_goes_on(studies: Path) -> None:
    result = read_study(NAME, studies)
    assert [trial.number for trial in result.trials] == [0, 1, 2, 3]
    assert result.best is not None
    assert result.best.measurement.time_us == 197.3061655501379
    path = studies / f"{NAME}.journal"
    recorded = (RECORDED / path.name).read_bytes()
    with study_store(studies).join(NAME, True, RandomSampler(seed=0), SPACE, SharingOptions()) as (study, tuner):
        assert path.read_bytes().startswith(recorded + b'{"op_code":0,')  # the torn record is gone
        tuner.take_over()
        found = finished_trials(study, SPACE)
        assert [trial.configuration for trial in found] == [trial.configuration for trial in result.trials]
        record_outcome(study, study.ask({**distributions(SPACE)}), Measurement(Status.WRONG, "x"))
    assert path.read_bytes().startswith(recorded)
    assert [json.loads(line)["op_code"] for line in path.read_bytes().splitlines()][-1] == 6
    assert len(read_study(NAME, studies).trials) == 5
    assert sorted(os.listdir(studies)) == [path.name]  # with no lock beside it
    optuna.load_study(
        study_name=NAME,
        storage=optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path))),
    )


def test_a_study_that_was_cut_anywhere_is_read_and_goes_on(studies: Path) -> None:
    path = studies / f"{NAME}.journal"
    recorded = path.read_bytes()
    trials = []
    for length in range(20, len(recorded), 997):
        path.write_bytes(recorded[:length])
        attributes = JournalFolder(studies).attributes(NAME) if b"\n" in recorded[:length] else {}
        trials.append(len(read_study(NAME, studies).trials) if "info" in attributes else 0)
        with open_study(path, RandomSampler(seed=0)) as study:
            recover(study, SPACE)
            assert len(finished_trials(study, SPACE)) >= trials[-1]
    assert trials == sorted(trials)
    assert trials[-1] >= 3


def test_a_recorded_database_is_read_and_goes_on(url: str) -> None:
    assert len(read_study(NAME, url).trials) == 3
    with study_store(url).join(NAME, True, RandomSampler(seed=0), SPACE, SharingOptions()) as (study, tuner):
        with tuner.exclusive():
            tuner.take_over()
            trial = study.ask({**distributions(SPACE)})
            tuner.begin(trial)
        record_outcome(study, trial, Measurement(Status.WRONG, "x"))
    assert len(read_study(NAME, url).trials) == 4
    Database(url).check()


def test_a_recorded_campaign_goes_on(tmp_path: Path) -> None:
    path = shutil.copy(RECORDED / "campaign.journal", tmp_path)
    recorded = Path(path).read_bytes()
    plan = Plan((GemmProblem(512, 512, 512),), tuple(SPACE[at] for at in range(18)), np.ones((1, 18), np.bool_), "")
    with Journal(Path(path), FORM, never) as journal:
        rows, library_us, _ = read_records(journal, plan)
        assert (len(rows), len(library_us)) == (18, 1)
        journal.append([{"library": [0, library_us[0]]}])
        journal.append([{"row": [0, 1], "measurement": rows[0, 1].to_dict()}])
    lines = [json.loads(line) for line in Path(path).read_bytes()[len(recorded) :].splitlines()]
    before = [json.loads(line) for line in recorded.splitlines()]
    assert all(line.pop("sum") for line in lines)
    assert all(line in before for line in lines), "it is written as it was, but for a checksum"
    assert len(lines) == 2


def test_recorded_searches_of_a_comparison_are_not_run_again(tmp_path: Path) -> None:
    path = Path(shutil.copy(RECORDED / "runs.jsonl", tmp_path))
    recorded = path.read_bytes()
    path.write_bytes(recorded[:-30])
    with FinishedRuns(path, resume=True) as finished:
        assert [trace.run.contender for trace in finished.traces] == ["random", "random", "tpe"]
        last = finished.traces[-1]
        assert finished.left([trace.run for trace in finished.traces]) == []
        finished.take([last], lambda trace: None)
    lines = path.read_bytes().splitlines(keepends=True)
    assert b"".join(lines[:3]) == b"".join(recorded.splitlines(keepends=True)[:3])
    assert lines[3] == lines[2], "it is written as it was"


@pytest.mark.parametrize(("name", "member"), [("library", "torch.mm"), ("sampler", "random"), ("device", "h200")])
def test_a_name_in_a_study_that_would_end_a_line_where_it_is_shown_is_refused(
    studies: Path, name: str, member: str
) -> None:
    path = studies / f"{NAME}.journal"
    given, forged = f'"{name}":"{member}"', f'"{name}":"{member}\\nbest: forged"'
    text = path.read_text()
    assert given in text
    path.write_text(text.replace(given, forged))
    with pytest.raises(StoreError, match="is damaged \\(a name has several lines: "):
        JournalFolder(studies).read(NAME)


def test_a_search_that_did_not_end_took_no_negative_time_where_the_clock_was_set_back(studies: Path) -> None:
    path = studies / f"{NAME}.journal"
    lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    lines = [line for line in lines if "result" not in line.get("user_attr", {})]
    for line in lines:
        if "datetime_complete" in line:
            line["datetime_complete"] = "2001-01-01T00:00:00"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert JournalFolder(studies).read(NAME).seconds == 0
