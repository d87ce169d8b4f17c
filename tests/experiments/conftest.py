"""The command line, run in this process."""

import sys
from collections.abc import Callable

import pytest

from tilescout.experiments.cli import main


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function: run ``tilescout`` with arguments, which must leave with a code, 0 unless told otherwise."""

    def run(*arguments: str, code: int = 0) -> None:
        monkeypatch.setattr(sys, "argv", ["tilescout", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code

    return run
