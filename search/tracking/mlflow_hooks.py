"""Every use of MLflow that its documentation does not promise, in one place, for the versions that it was tested on.

There are three: runs are written to a database in one transaction, as many as there are to write; a SQLite store is
made in a file of another name; and an experiment's table has the columns that matter. With any other version, or other
tables, the first two are done by MLflow's client, slower, and a UI that does not know the third shows its own columns.

A trial's run is complete when it is written. By MLflow's client that takes four calls and eight transactions, most of
their time spent on reading back what was just written. Where the store is a database that this process opens itself,
the same rows go in at once: MLflow's own tables, over MLflow's own session.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import chain
from math import isfinite
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from sqlalchemy import Connection

_LOG = logging.getLogger(__name__)

TESTED = ">=3.17,<4"
"""The versions that this was tested on, as ``pyproject.toml`` has them."""

COLUMNS = {
    "runs": {
        *("run_uuid", "name", "source_type", "source_name", "entry_point_name", "user_id", "status", "start_time"),
        *("end_time", "deleted_time", "source_version", "lifecycle_stage", "artifact_uri", "experiment_id"),
    },
    "tags": {"run_uuid", "key", "value"},
    "params": {"run_uuid", "key", "value"},
    "metrics": {"run_uuid", "key", "value", "timestamp", "step", "is_nan"},
    "latest_metrics": {"run_uuid", "key", "value", "timestamp", "step", "is_nan"},
}
"""The tables that are written, and the columns that they had in the versions that this was tested on."""

VIEW = "tilescout"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
"""The tag of an experiment that holds a view which MLflow lists under "Views", and opens by its name in an address."""

_UNCHANGED = {"name": VIEW, "createdAt": 0, "updatedAt": 0}  # which MLflow sets where a user saves the view

_PLAIN = re.compile(r"[/\w.\- ]{1,250}")  # the keys that MLflow takes
_LONGEST = 500  # characters of a parameter's value
_DIGITS = 8  # of a child's number, in hexadecimal, in its id


# Pixels of the columns of a table: MLflow's own widths cut names so that two look the same.
_NAME_WIDTH, _HEADING_WIDTH, _LETTER_WIDTH = 270, 30, 7


@dataclass(frozen=True)
class View:
    """The columns of an experiment's table of runs, and their order.

    Attributes
    ----------
    metrics, params
        The columns, by the names of metrics and parameters.
    by
        The metric that the rows are ordered by, the largest first; None has the newest first.
    ascending
        The smallest first.
    """

    metrics: Sequence[str]
    params: Sequence[str] = ()
    by: str | None = None
    ascending: bool = False

    def tag(self) -> str:
        """The value of `VIEW_TAG`."""
        widths = {"attributes.`Run Name`": _NAME_WIDTH} | {
            f"{kind}.`{name}`": _HEADING_WIDTH + _LETTER_WIDTH * len(name)
            for kind, names in (("metrics", self.metrics), ("params", self.params))
            for name in names
        }
        columns = [f"metrics.`{name}`" for name in self.metrics] + [f"params.`{name}`" for name in self.params]
        state = {
            "searchFilter": "",
            "orderByKey": f"metrics.`{self.by}`" if self.by else "attributes.start_time",
            "orderByAsc": self.ascending,
            "startTime": "ALL",
            "lifecycleFilter": "Active",
            "datasetsFilter": [],
            "modelVersionFilter": "All Runs",
            "selectedColumns": columns,
            "columnOrder": list(widths),
            "columnWidths": widths,
            "runsExpanded": {},
            "runsPinned": [],
            "runsHidden": [],
            "runsVisibilityMap": {},
            "runsHiddenMode": "FIRST_10_RUNS",
            "viewMaximized": False,
            "runListHidden": False,
            "isAccordionReordered": False,
            "useGroupedValuesInCharts": True,
            "hideEmptyCharts": True,
            "groupBy": None,
            "groupsExpanded": {},
            "autoRefreshEnabled": True,
            "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        }
        return json.dumps({**_UNCHANGED, "state": json.dumps(state)})

    def replaces(self, tag: str | None) -> bool:
        """Whether this is to stand where an experiment has that tag: none, or an older one that nobody has changed."""
        return tag is None or (tag.startswith(json.dumps(_UNCHANGED)[:-1]) and tag != self.tag())


@dataclass(frozen=True)
class ChildRun:
    """A finished run.

    Attributes
    ----------
    number
        Its number among the parent's children.
    name, status
        As MLflow has them.
    started, ended
        In milliseconds since the epoch.
    tags, params, metrics
        What it holds.
    """

    number: int
    name: str
    status: str
    started: int
    ended: int
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: Mapping[str, float]

    @property
    def plain(self) -> bool:
        """Whether MLflow has nothing to refuse or to change in it; otherwise its client has to say what."""
        return (
            all(_PLAIN.fullmatch(key) for key in chain(self.tags, self.params, self.metrics))
            and all(map(_is_finite, self.metrics.values()))
            and all(len(value) <= _LONGEST for value in self.params.values())
        )


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)


class DatabaseRuns:
    """Writes children of one run; make it with `of`.

    A child's id is its parent's with its number in it, so that writing one twice writes it once. As ids of a study
    start alike, what is written together is together in the database's indices too: that halves the time of writing it,
    and does more in a large store.
    """

    def __init__(self, store: Any, parent: str, experiment: str, location: str) -> None:
        self._store, self._parent, self._experiment, self._location = store, parent, experiment, location

    @classmethod
    def of(cls, client: "MlflowClient", parent: str, experiment: str) -> Self | None:
        """The writer for children of `parent`.

        None where the client's store is no database that it opens itself, or where this MLflow was not tested: its
        client writes them then.
        """
        if not is_tested():
            return None
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        store = client._tracking_client.store
        if type(store) is not SqlAlchemyStore:
            return None
        return cls(store, parent, experiment, client.get_experiment(experiment).artifact_location)

    def write(self, batch: Sequence[tuple[ChildRun, Mapping[str, float], int]]) -> list[str]:
        """Write children, each with the parent's metrics after it, all or nothing; return the children's ids.

        Parameters
        ----------
        batch
            Children, the parent's metrics after each, and their step.

        Raises
        ------
        MlflowException
            If the database can't be written.
        """
        from mlflow.store.tracking.dbmodels.models import SqlLatestMetric, SqlMetric, SqlParam, SqlRun, SqlTag
        from sqlalchemy import delete, select

        # The number stands where a page that shows the start of an id still has it.
        start, end = self._parent[:_DIGITS], self._parent[2 * _DIGITS :]
        ids = [f"{start}{child.number:0{_DIGITS}x}{end}" for child, _, _ in batch]
        runs, tags, params, metrics, history = (list[dict[str, Any]]() for _ in range(5))
        latest: list[dict[str, Any]] = []
        with self._store.ManagedSessionMaker(read_only=False) as session:
            # Tables and not classes: what is written is not read again, and so needs no objects that keep track of it.
            connection = session.connection()
            known: Any = select(SqlRun.run_uuid).where(SqlRun.run_uuid.in_(ids))
            there = set(connection.execute(known).scalars())
            for run_id, (child, progress, step) in zip(ids, batch, strict=True):
                if run_id in there:
                    continue
                runs.append(self._row(run_id, child))
                named = {**child.tags, "mlflow.runName": child.name}
                tags += [{"run_uuid": run_id, "key": key, "value": value} for key, value in named.items()]
                params += [{"run_uuid": run_id, "key": key, "value": value} for key, value in child.params.items()]
                metrics += _metric_rows(run_id, child.metrics, child.ended, 0)
                latest = _metric_rows(self._parent, progress, child.ended, step)
                history += latest
            keys = [row["key"] for row in latest]
            connection.execute(
                delete(SqlLatestMetric.__table__).where(
                    SqlLatestMetric.run_uuid == self._parent, SqlLatestMetric.key.in_(keys)
                )
            )
            for kind, rows in (
                (SqlRun, runs),
                (SqlTag, tags),
                (SqlParam, params),
                (SqlMetric, metrics + history),
                (SqlLatestMetric, metrics + latest),
            ):
                if rows:
                    _insert(connection, kind.__table__, rows)
        return ids

    def _row(self, run_id: str, child: ChildRun) -> dict[str, Any]:
        return {
            "run_uuid": run_id,
            "name": child.name,
            "source_type": "UNKNOWN",
            "source_name": "",
            "entry_point_name": "",
            "user_id": "unknown",
            "status": child.status,
            "start_time": child.started,
            "end_time": child.ended,
            "deleted_time": None,
            "source_version": "",
            "lifecycle_stage": "active",
            "artifact_uri": f"{self._location.rstrip('/')}/{run_id}/artifacts",
            "experiment_id": int(self._experiment),
        }


@cache
def is_tested() -> bool:
    """Whether the installed MLflow is a version that this was tested on, with the tables that it had."""
    from mlflow.store.tracking.dbmodels import models
    from packaging.specifiers import SpecifierSet

    installed = version("mlflow")
    tables = {
        kind.__tablename__: {column.name for column in kind.__table__.columns}
        for kind in (models.SqlRun, models.SqlTag, models.SqlParam, models.SqlMetric, models.SqlLatestMetric)
    }
    if SpecifierSet(TESTED).contains(installed, prereleases=True) and tables == COLUMNS:
        return True
    _LOG.info(
        "MLflow %s is not one that this tilescout was tested on (%s): runs are written by its client, slower",
        installed,
        TESTED,
    )
    return False


def make_sqlite_store(uri: str, artifacts: Path) -> None:
    """Make a store in the new SQLite file at `uri` and let go of it; files of its default experiment go to `artifacts`.

    With an MLflow that was not tested its client makes the store, whose default experiment, which we do not use, then
    keeps its files where MLflow does.
    """
    if not is_tested():
        from mlflow import MlflowClient

        MlflowClient(tracking_uri=uri).search_experiments(max_results=1)
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    store = SqlAlchemyStore(uri, artifacts.as_uri())  # type: ignore[no-untyped-call]
    store.engine.dispose()


def _insert(connection: "Connection", table: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert rows with the same columns by one call of the driver's: SQLAlchemy would look at every value of each."""
    from sqlalchemy import insert

    compiled = insert(table).compile(dialect=connection.dialect, column_keys=list(rows[0]))
    order = compiled.positiontup  # None where the driver takes names
    values: Any = rows if order is None else [*map(itemgetter(*order), rows)]
    connection.exec_driver_sql(str(compiled), values)


def _metric_rows(run_id: str, metrics: Mapping[str, float], stamp: int, step: int) -> list[dict[str, Any]]:
    return [
        {"run_uuid": run_id, "key": key, "value": value, "timestamp": stamp, "step": step, "is_nan": False}
        for key, value in metrics.items()
    ]
