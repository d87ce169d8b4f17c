"""The studies, run in this process by their names."""

import sys
from collections.abc import Callable

import pytest

from tilescout.experiments.research.__main__ import main


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function: run a study with arguments, which must leave with a code, 0 unless told otherwise."""

    def study(*arguments: str, code: int = 0) -> None:
        monkeypatch.setattr(sys, "argv", ["research", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code

    return study
