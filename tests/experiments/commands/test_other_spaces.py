"""The command line and spaces that are not ours."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., None]


def test_doctor_lists_the_spaces_of_other_packages_and_what_is_wrong_with_them(
    run: Run, install: Callable[..., None], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    install("sound-kernels", "sound")
    install("unsound-kernels", "unsound", "import a_module_that_nobody_has")
    install("grasping-kernels", "softmax_sm90")

    run("doctor", "--store", str(tmp_path / "store"))

    said = capsys.readouterr().out
    assert re.search("ok      sound: for sm_90a, source [0-9a-f]{12}, of sound-kernels 1.0", said)
    assert "note    unsound: space 'unsound' of unsound-kernels 1.0 is broken" in said
    assert "note    softmax_sm90: space 'softmax_sm90' of grasping-kernels 1.0 is refused" in said


def test_a_space_that_can_not_be_loaded_is_one_line(
    run: Run, install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("faulty-kernels", "faulty", "raise RuntimeError('of two\\nlines')")

    run("tune", "faulty", "--problem", "8x8", code=2)

    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "space 'faulty' of faulty-kernels 1.0 is broken" in said


def test_a_space_in_the_working_directory_is_found(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from tilescout.spaces.softmax_sm90.template import SoftmaxSm90Template as Mine\n"
    (tmp_path / "kernel_of_mine.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))  # what the command adds is taken back

    run("tune", "kernel_of_mine:Mine", "--problem", "8x8", "--device", "replay", code=2)

    assert "no table of softmax_sm90 is shipped" in capsys.readouterr().err
