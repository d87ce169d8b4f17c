"""The names that the rooms of search make public are there, and cost little until they are used."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("build", "campaigns", "engines", "measure", "samplers", "tables", "tuning")
ROOMS = [f"tilescout.search.{name}" for name in NAMES]


@pytest.mark.parametrize("package", ["tilescout.search", *ROOMS])
def test_every_public_name_is_there(package: str) -> None:
    room = importlib.import_module(package)
    assert dir(room) == sorted(room.__all__)
    assert all(getattr(room, name) is not None for name in room.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        room.no_such_name  # noqa: B018


@pytest.mark.parametrize(
    "statement",
    [
        "from tilescout.search import Evaluator, evaluate, make_engine, Table, RaceOptions",
        "from tilescout.search.engines import Evaluator, LocalEngine, RayEngine, ReplayEngine",
        "from tilescout.search.build import ArtifactStore, CompileOptions",
        "from tilescout.search.measure import Measurement, MeasuringProcess, run_race",
        "from tilescout.search.tables import Table, default_table",
    ],
)
def test_what_only_measures_loads_no_optuna(statement: str) -> None:
    check = f"{statement}\nimport sys\nsys.exit('optuna' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], check=False, cwd=Path("/"))
    assert done.returncode == 0
