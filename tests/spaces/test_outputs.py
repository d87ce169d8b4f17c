"""Files are written whole or not at all, and what killed processes left goes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilescout.spaces.errors import StoreError
from tilescout.spaces.outputs import check_replaceable, has_keys, publish, scratch_beside, sweep, write_whole

SLOW = """
import os, sys, time
from pathlib import Path
from tilescout.spaces import outputs
outputs.os.fsync = lambda file: (print("written", flush=True), time.sleep(60))
outputs.write_whole(Path(sys.argv[1]), b"new" * 1000)
"""


def test_a_writer_that_is_killed_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(b"old")
    command = [sys.executable, "-P", "-c", SLOW, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"written\n"
        writer.kill()

    assert path.read_bytes() == b"old"
    (left,) = (each for each in tmp_path.iterdir() if each != path)
    long_ago = time.time() - 7200
    os.utime(left, (long_ago, long_ago))
    write_whole(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["result.json"]
    assert path.read_bytes() == b"new"


def test_what_somebody_else_calls_alike_or_works_on_stays(tmp_path: Path) -> None:
    stays = [tmp_path / name for name in (".tilescout-old", ".tilescout-writing-notes", ".tilescout", "x")]
    for path in stays:
        path.mkdir()
        os.utime(path, (1.0, 1.0))
    at_work = scratch_beside(tmp_path / "bundle")
    at_work.mkdir()

    write_whole(tmp_path / "file", b"1")

    assert all(path.is_dir() for path in (*stays, at_work))
    sweep(tmp_path, "x")
    assert not (tmp_path / "x").exists()


def test_of_several_files_none_is_replaced_if_one_can_not_be_written(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "folder" / "second"
    first.write_bytes(b"old")
    (tmp_path / "folder").write_bytes(b"a file")

    with pytest.raises(OSError, match="folder"):
        publish({first: b"new", second: b"new"})

    assert first.read_bytes() == b"old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["first", "folder"]


def test_a_link_stays_one_and_a_mode_what_it_was(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_bytes(b"old")
    real.chmod(0o600)
    link.symlink_to(real)

    write_whole(link, b"new")

    assert link.is_symlink()
    assert (real.read_bytes(), real.stat().st_mode & 0o777) == (b"new", 0o600)


def test_a_device_is_written_to_and_a_full_one_told() -> None:
    write_whole(Path("/dev/null"), b"gone")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(StoreError, match="can't write /dev/full: No space left"):
        write_whole(Path("/dev/full"), b"x")


def test_a_place_that_can_not_be_looked_at_is_not_said_to_be_taken(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"^can't look at .*: File name too long$"):
        check_replaceable(tmp_path / ("n" * 300), "a suite", lambda path: True, StoreError)
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(StoreError, match=r"^can't look at .*: Too many levels of symbolic links$"):
        check_replaceable(tmp_path / "circle", "a suite", lambda path: True, StoreError)
    check_replaceable(Path(__file__) / "file", "a suite", lambda path: False, StoreError)


@pytest.mark.parametrize("name", ["loop", "loop/result.json"])
def test_a_link_that_leads_in_a_circle_is_told_and_stays(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreError, match="can't write"):
        write_whole(tmp_path / name, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["loop"]
    assert (tmp_path / "loop").is_symlink()


@pytest.mark.parametrize(
    ("content", "is_one"),
    [('{"a": 1, "b": 2, "c": 3}', True), ('[{"a": 1, "b": 2}]', True), ("[]", True), ("{}", False), ('["a"]', False)],
)
def test_a_file_is_of_a_kind_that_has_its_keys_and_an_empty_list_is_of_none(
    tmp_path: Path, content: str, is_one: bool
) -> None:
    path = tmp_path / "file.json"
    path.write_text(content)
    assert has_keys(path, ("x",), ("a", "b")) == is_one
