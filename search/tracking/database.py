"""Runs that are written to a database store in one transaction, as many as there are to write.

A trial's run is complete when it is written: through MLflow's client that takes four calls and eight transactions, most
of their time spent on reading back what was just written. Where the store is a database that this process opens itself,
the same rows go in at once: MLflow's own tables, over MLflow's own session.
"""

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isfinite
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from mlflow import MlflowClient

_PLAIN = re.compile(r"[/\w.\- ]{1,250}")  # the keys that MLflow takes
_LONGEST = 500  # characters of a parameter's value


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
            and all(map(isfinite, self.metrics.values()))
            and all(len(value) <= _LONGEST for value in self.params.values())
        )


class DatabaseRuns:
    """Writes children of one run; make it with `of`.

    A child's id follows from its parent's and its number, so that writing one twice writes it once.
    """

    def __init__(self, store: Any, parent: str, experiment: str, location: str) -> None:
        self._store, self._parent, self._experiment, self._location = store, parent, experiment, location

    @classmethod
    def of(cls, client: "MlflowClient", parent: str, experiment: str) -> Self | None:
        """The writer for children of `parent`; None where the client's store is no database that it opens itself."""
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
        from sqlalchemy import delete, insert, select

        parent = uuid.UUID(self._parent)
        ids = [uuid.uuid5(parent, str(child.number)).hex for child, _, _ in batch]
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
                    connection.execute(insert(kind.__table__), rows)
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


def _metric_rows(run_id: str, metrics: Mapping[str, float], stamp: int, step: int) -> list[dict[str, Any]]:
    return [
        {"run_uuid": run_id, "key": key, "value": value, "timestamp": stamp, "step": step, "is_nan": False}
        for key, value in metrics.items()
    ]
