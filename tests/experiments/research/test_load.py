"""The benchmark of load, on little: what it makes is what it says, and its commands run."""

import subprocess
from pathlib import Path

import pytest

from tilescout.experiments.research.benchmarks.load import copy_studies, searched, timed, write_cache
from tilescout.search.studies.journal_folder import JournalFolder
from tilescout.search.tables.results import read_results


def test_a_cache_has_at_least_so_many_rows(tmp_path: Path) -> None:
    write_cache(tmp_path / "cache.json", 1000)
    card, columns = read_results(tmp_path / "cache.json")
    assert columns.num_rows == 1000
    assert {name: len(values) for name, values in card.knobs.items()} == {"a": 10, "b": 10, "c": 10}


@pytest.mark.slow
def test_what_a_command_and_a_search_take_is_told(tmp_path: Path) -> None:
    write_cache(tmp_path / "cache.json", 1000)

    took = timed(tmp_path, "tables", "import", "cache.json", "table.parquet")
    found = searched(tmp_path / "table.parquet", 20, tmp_path / "studies")

    assert took["cpu_seconds"] > 0
    assert took["mib"] > 20
    assert found["trials"] == 20
    assert min(found.values()) > 0
    with pytest.raises(subprocess.CalledProcessError):
        timed(tmp_path, "tables", "nowhere.parquet")


def test_copies_of_a_study_are_studies_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "one.journal").write_text('{"op_code":0,"worker_id":"w","study_name":"one","directions":[1]}\n')
    copy_studies(tmp_path, 5)
    folder = JournalFolder(tmp_path)
    assert folder.names() == ["one", "one-2", "one-3", "one-4", "one-5"]
    assert [folder.load(name).study_name for name in folder.names()] == folder.names()
