"""Ctrl-C at a moment at which an error may hide it."""

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

import click
import pytest

from tilescout.experiments.commands import tune
from tilescout.experiments.commands.cli import cli

_SEARCHES = "tilescout.search.tuning.study"


class _Broken:
    """Finds no module that searches, as where modules that it imports were imported in part."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == _SEARCHES:
            raise NameError("name 'coroutines' is not defined")
        return None


def test_one_while_what_searches_is_imported_is_no_error_of_importing_it_again(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tune, "run_tune", interrupted)
    monkeypatch.delitem(sys.modules, _SEARCHES, raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Broken(), *sys.meta_path])

    run("tune", "gemm_sm90", "--problem", "512x512x512:bf16", code=130)

    assert capsys.readouterr().err.splitlines()[-1].startswith("tilescout: interrupted")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("tune", "gemm_sm90"), "; what is finished is kept, and tune --resume goes on with it"),
        (("compare",), "; what is finished is kept, and compare --resume goes on with it"),
        (
            ("collect", "gemm_sm90", "--suite", "odd", "--out", "t.parquet"),
            "; what is finished is kept, and the same command goes on with it",
        ),
        (("suites",), ""),
    ],
    ids=["tune", "compare", "collect", "suites"],
)
def test_it_is_told_what_goes_on_with_the_command(
    run: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    told: str,
) -> None:
    command = cli.get_command(click.Context(cli), arguments[0])
    assert command is not None

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "invoke", interrupted)

    run(*arguments, code=130)

    assert capsys.readouterr().err.splitlines()[-1] == f"tilescout: interrupted{told}"
