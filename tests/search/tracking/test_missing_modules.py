"""Where MLflow is not installed, or only in part, a search says which module is missing, and not that a pipe broke."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tilescout.search.api import tune
from tilescout.search.build.standby import can_stand_by, running
from tilescout.search.studies.folders import studies
from tilescout.search.tracking.standing import logger
from tilescout.search.tracking.standing.unlogged import unlogged

pytestmark = pytest.mark.usefixtures("own_standing")

PROBLEM = "512x512x512:bf16"
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture
def lacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A function: let every process that is started from now on lack a module."""

    def lacking(module: str) -> None:
        folder = tmp_path / "blocked"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(BLOCKER.format(module=module))
        monkeypatch.setenv("PYTHONPATH", str(folder))

    return lacking


@pytest.fixture(params=["--problem", "--suite"])
def asked(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """A search of one problem, and of a suite."""
    suite = tmp_path / "one.toml"
    suite.write_text(f'problems = ["{PROBLEM}"]\n')
    what = PROBLEM if request.param == "--problem" else str(suite)
    return ["tune", "gemm_sm90", request.param, what, "--sampler", "random", "--trials", "3", "--store", str(tmp_path)]


@pytest.mark.slow
def test_a_module_that_is_not_there_is_named_before_the_search(
    lacking: Callable[[str], None], asked: list[str], tmp_path: Path
) -> None:
    lacking("sqlalchemy")
    command = [str(Path(sys.executable).with_name("tilescout")), *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("tilescout: can't use MLflow: not installed: sqlalchemy; pip install 'mlflow")
    assert not list(tmp_path.rglob("*.journal"))


@pytest.mark.skipif(not can_stand_by(), reason="needs Linux")
def test_the_process_that_logs_says_what_it_can_not_import(
    lacking: Callable[[str], None],
    asked: list[str],
    run: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    lacking("google.protobuf")
    run(*asked, code=2)

    last = capsys.readouterr().err.splitlines()[-1]
    assert "can't use MLflow, which can't be imported: ModuleNotFoundError: No module named 'google.protobuf'" in last
    assert list(tmp_path.rglob("*.journal"))
    deadline = time.monotonic() + 60
    while running() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running()  # the next search starts another, which finds what was installed since


@pytest.mark.skipif(not can_stand_by(), reason="needs Linux")
def test_the_note_beside_a_study_says_what_a_process_that_went_on_alone_could_not_import(
    lacking: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(logger, "PATIENCE_SECONDS", 0.0)
    lacking("google.protobuf")
    left = tune("gemm_sm90", PROBLEM, sampler="random", budget=1, store=tmp_path)

    deadline = time.monotonic() + 120
    while not (told := unlogged(studies(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "No module named 'google.protobuf'" in told[left.info.name]
