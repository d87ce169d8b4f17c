"""The file that only grows."""

import os
from pathlib import Path

import pytest

from tilescout.search.studies.journal import Journal, JournalForm, never, read_records
from tilescout.spaces.errors import StoreError

FORM = JournalForm("the journal", "row")


def opened(path: Path) -> Journal:
    return Journal(path, FORM, never)


def test_what_was_appended_is_there_when_it_is_opened_again(tmp_path: Path) -> None:
    with opened(tmp_path / "a.journal") as journal:
        assert journal.earlier == []
        journal.append([{"row": 1}])
        journal.append([{"row": 2}, {"row": [3, "ä"]}])
    with opened(tmp_path / "a.journal") as journal:
        assert journal.earlier == [{"row": 1}, {"row": 2}, {"row": [3, "ä"]}]


def test_a_record_that_was_cut_off_is_removed_wherever_it_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    whole = b'{"row":1}\n{"row":2}\n'
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with opened(path) as journal:
            assert len(journal.earlier) == whole[:length].count(b"\n")
            journal.append([{"row": 9}])
        with opened(path) as journal:
            assert journal.earlier[-1] == {"row": 9}


def test_two_can_not_write_one(tmp_path: Path) -> None:
    with opened(tmp_path / "a.journal"), pytest.raises(StoreError, match="another process writes"):
        opened(tmp_path / "a.journal")


def test_one_that_is_damaged_or_can_not_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(b'{"row":1\n{"row":2}\n')
    with pytest.raises(StoreError, match="is damaged"):
        opened(path)
    with pytest.raises(StoreError, match="can't write the journal"):
        opened(tmp_path / "nowhere" / "a.journal")


def test_a_record_whose_writing_is_interrupted_leaves_a_journal_that_can_be_written_and_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, form, write = tmp_path / "a.journal", JournalForm("the journal", "row", sums=True), os.write

    def interrupted(descriptor: int, content: bytes) -> int:
        write(descriptor, content)
        raise KeyboardInterrupt

    with Journal(path, form, never) as journal:
        journal.append([{"row": 1}])
        monkeypatch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.append([{"row": 2}])
        monkeypatch.setattr(os, "write", write)
        journal.append([{"row": 3}])
        assert list(journal.read()) == [{"row": 1}, {"row": 3}]
    assert [record["row"] for record in read_records(path, form)] == [1, 3]
