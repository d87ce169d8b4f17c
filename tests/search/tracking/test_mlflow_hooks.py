"""The private parts of MLflow are used with versions that were tested; MLflow's client does the same otherwise."""

import sqlite3
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tilescout.search.studies import optuna_hooks
from tilescout.search.tracking import mlflow_hooks
from tilescout.search.tracking.mlflow_hooks import VIEW_TAG, DatabaseRuns, View, is_tested
from tilescout.search.tracking.store import default_store, find_experiment, open_client, quiet_mlflow
from tilescout.spaces.errors import StoreError

PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.fixture
def other_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(mlflow_hooks, "version", lambda package: "4.1.0")
    is_tested.cache_clear()
    yield
    is_tested.cache_clear()


def test_the_ranges_are_those_that_are_installed() -> None:
    required = [Requirement(text) for text in tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]]
    ranges = {requirement.name: requirement.specifier for requirement in required}
    assert ranges["mlflow"] == Requirement(f"mlflow{mlflow_hooks.TESTED}").specifier
    assert ranges["optuna"] == Requirement(f"optuna{optuna_hooks.TESTED}").specifier


def test_the_installed_version_is_one_that_was_tested() -> None:
    is_tested.cache_clear()
    assert is_tested()


@pytest.mark.slow
@pytest.mark.usefixtures("other_version")
def test_with_another_version_a_store_is_made_by_the_client_and_not_written_behind_its_back(tmp_path: Path) -> None:
    uri, artifacts = default_store(tmp_path)
    with quiet_mlflow():
        client = open_client(uri)
        experiment = find_experiment(client, "tilescout/x", artifacts)
        parent = client.create_run(experiment).info.run_id
        assert DatabaseRuns.of(client, parent, experiment) is None
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    assert [path.name for path in tmp_path.iterdir()] == ["mlflow.db"]


def test_an_older_table_of_an_experiment_has_new_columns_unless_somebody_changed_it(
    tmp_path: Path, copy_store: Callable[[Path], str]
) -> None:
    older, newer = View(("a",)), View(("a", "b"))
    with quiet_mlflow():
        client = open_client(copy_store(tmp_path))
        for view in (older, newer, newer):
            number = find_experiment(client, "tilescout/columns", None, view)
            assert client.get_experiment(number).tags[VIEW_TAG] == view.tag()
        changed = older.tag().replace('"updatedAt": 0', '"updatedAt": 1764590000000')
        client.set_experiment_tag(number, VIEW_TAG, changed)
        assert find_experiment(client, "tilescout/columns", None, newer) == number
        assert client.get_experiment(number).tags[VIEW_TAG] == changed


def test_with_other_tables_they_are_not_written(
    tmp_path: Path, copy_store: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: Mapping[str, Any] = mlflow_hooks.COLUMNS | {"tags": {"run_uuid", "key", "value", "new"}}
    monkeypatch.setattr(mlflow_hooks, "COLUMNS", changed)
    is_tested.cache_clear()
    try:
        with quiet_mlflow():
            client = open_client(copy_store(tmp_path))
            experiment = find_experiment(client, "tilescout/x", None)
            assert DatabaseRuns.of(client, client.create_run(experiment).info.run_id, experiment) is None
    finally:
        is_tested.cache_clear()


def test_another_optuna_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna_hooks, "version", lambda package: "6.0.0")
    optuna_hooks._check_version.cache_clear()
    with pytest.raises(StoreError, match=r"optuna 6.0.0 is installed, and tested is >=5,<6"):
        optuna_hooks._check_version()
