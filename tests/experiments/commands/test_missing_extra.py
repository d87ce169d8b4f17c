"""Without the packages of other projects' kernels: each space says what to install, and nothing else suffers."""

import shutil
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table, card_path
from tilescout.spaces.libraries import template

PROBLEM = ("--problem", "4096x4096x4096:bf16")
EXTRAS = {
    "quack_sm90": ("quack-kernels", "quack"),
    "quack_sm100": ("quack-kernels", "quack"),
    "quack_sm120": ("quack-kernels", "quack"),
    "cutlass_operators": ("nvidia-cutlass-operators", "operators"),
    "cutlass_operators_sm100": ("nvidia-cutlass-operators", "operators"),
}


@pytest.fixture(autouse=True)
def _without_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def not_found(distribution: str) -> str:
        raise PackageNotFoundError(distribution)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(template, "version", not_found)
    for module in [name for name in sys.modules if name.split(".")[0] == "quack" or name == "cutlass.operators"]:
        monkeypatch.delitem(sys.modules, module)
    for module in ("quack", "cutlass.operators"):
        monkeypatch.setitem(sys.modules, module, None)  # importing it fails


@pytest.mark.parametrize("space", EXTRAS)
@pytest.mark.parametrize("command", ["tune", "compile", "predict"])
def test_a_command_says_in_one_line_which_extra_to_install(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str], space: str, command: str
) -> None:
    run(command, space, *PROBLEM, code=2)
    distribution, extra = EXTRAS[space]
    printed = capsys.readouterr()
    assert printed.err.splitlines() == [
        f"tilescout: {space} needs the package {distribution}: pip install 'tilescout[{extra}]'"
    ]
    assert printed.out == ""


def test_doctor_names_the_extras_and_misses_nothing(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    run("doctor")
    lines = capsys.readouterr().out.splitlines()
    for space, (_, extra) in EXTRAS.items():
        (line,) = [line for line in lines if f" {space}: " in line]
        assert line.startswith("note")
        assert f"tilescout[{extra}]" in line
    assert any(line.startswith("ok") and " gemm_sm90: " in line for line in lines)


def test_what_lists_spaces_works_as_before(run: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    run("tables")
    assert "gemm_sm90" in capsys.readouterr().out
    run("tune", "gem", *PROBLEM, code=2)
    assert "known are gemm_sm90, gemm_streamk_sm90, " in capsys.readouterr().err


@pytest.fixture
def table_of_quack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table that says that it is of a kernel of Quack's."""
    shipped, copy = shipped_tables()[0], tmp_path / "quack.parquet"
    shutil.copy(shipped, copy)
    card = card_path(shipped).read_text()
    card_path(copy).write_text(card.replace('"space": "gemm_sm90"', '"space": "quack_sm90"', 1))
    monkeypatch.setattr(Table, "fits", lambda table, template: True)
    return str(copy)


def test_doctor_looks_at_a_table_of_kernels_that_are_not_here(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str], table_of_quack: str
) -> None:
    run("doctor", "--table", table_of_quack)
    *_, line = capsys.readouterr().out.splitlines()
    assert line.startswith("note    table: quack.parquet: quack_sm90 on NVIDIA H200")
    assert line.endswith("is not known: quack_sm90 needs the package quack-kernels: pip install 'tilescout[quack]'")


def test_a_table_of_kernels_that_are_not_here_is_listed_and_its_space_is_known(
    run: Callable[..., None], capsys: pytest.CaptureFixture[str], table_of_quack: str
) -> None:
    run("tables", table_of_quack)
    said = capsys.readouterr().out
    assert "is not known: quack_sm90 needs the package quack-kernels" in said
    assert "does not know the space" not in said
