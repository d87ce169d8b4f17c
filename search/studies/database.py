"""Studies in a database, which several tuners share."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.samplers import BaseSampler
from optuna.storages import RDBStorage, get_storage

from tilescout.search.studies.trials import FileLock, latest, unused
from tilescout.spaces.errors import StoreError, one_line

if TYPE_CHECKING:
    from sqlalchemy import URL, Table

_LOCKS = "tilescout_locks"  # our table beside optuna's: a row a study, locked by the tuner whose turn it is
_LOCK_SECONDS = 60  # how long a turn is waited for, and how long one may last without a word to the database
_SQLITE_SECONDS = 60.0  # how long SQLite is waited for while another process writes
_STARTS = 5  # attempts at making the tables, which other tuners may be making just now


class Database:
    """The studies of a database.

    Parameters
    ----------
    url
        As SQLAlchemy takes it: ``postgresql://user:password@host/name``, ``sqlite:////path/studies.db``. Of the others
        that Optuna knows, those whose rows can be locked with ``SELECT ... FOR UPDATE``.

    Attributes
    ----------
    url
        The address.
    name
        The same for people, without a password.
    storage
        Optuna's storage.

    Raises
    ------
    StoreError
        If there is no such database, or its driver is not installed.
    """

    def __init__(self, url: str) -> None:
        address = _parse(url)
        self.url = address.render_as_string(hide_password=False)
        self.name = address.render_as_string(hide_password=True)
        sqlite = address.get_backend_name() == "sqlite"
        if sqlite and address.database in (None, "", ":memory:"):
            raise StoreError(f"{self.name} is no file: studies in memory can't be shared, nor found again")
        self._file_lock = Path(f"{address.database}.lock") if sqlite else None
        try:
            with self.translated():
                self._backend = _open(self.url, sqlite)
                self._locks = _lock_table(self._backend)
        except ImportError as error:
            raise StoreError(
                f"{self.name} needs a driver that is not installed; for PostgreSQL: pip install 'tilescout[postgres]'"
            ) from error
        except RuntimeError as error:  # the tables are of an Optuna that is too old or too new
            raise StoreError(f"can't use the database {self.name}: {one_line(error, 200)}") from error
        self.storage = get_storage(self._backend)

    def open(self, base: str, resume: bool, sampler: BaseSampler) -> optuna.Study:
        """A new study that is named after `base`, or the newest of those, which other tuners may be at.

        Raises
        ------
        StoreError
            If the database fails.
        """
        with self.translated():
            while True:
                names = self.names()
                name = latest(names, base) if resume else unused(names, base)
                try:
                    return optuna.create_study(
                        storage=self.storage,
                        sampler=sampler,
                        study_name=name,
                        direction="minimize",
                        load_if_exists=resume,
                    )
                except DuplicatedStudyError:  # another tuner was faster
                    continue

    def names(self) -> list[str]:
        """The names of all studies."""
        with self.translated():
            return optuna.get_all_study_names(self.storage)

    def attributes(self, name: str) -> dict[str, Any]:
        """The user attributes of a study.

        Raises
        ------
        StoreError
            If there is no such study, or the database fails.
        """
        with self.translated():
            try:
                found = self.storage.get_study_id_from_name(name)
            except KeyError as error:
                raise StoreError(f"there is no study {name} in {self.name}") from error
            return self.storage.get_study_user_attrs(found)

    def exclusive(self, name: str) -> AbstractContextManager[None]:
        """A context that one process at a time is in for a study; the database ends it when its holder dies."""
        return self._locked_file() if self._file_lock is not None else self._locked_row(name)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn any error of the database into a `StoreError`."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, StorageInternalError) as error:
            cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
            raise StoreError(
                f"the database {self.name} failed ({one_line(str(cause), 200)}); what is finished is kept there, "
                "tune --resume goes on with it"
            ) from error

    @contextmanager
    def _locked_file(self) -> Iterator[None]:
        assert self._file_lock is not None
        with FileLock(self._file_lock):
            yield

    @contextmanager
    def _locked_row(self, name: str) -> Iterator[None]:
        import sqlalchemy

        mine = self._locks.c.study == name
        with self.translated(), self._backend.engine.connect() as connection:
            if not connection.execute(sqlalchemy.select(self._locks).where(mine)).first():
                try:
                    connection.execute(self._locks.insert().values(study=name))
                    connection.commit()
                except sqlalchemy.exc.IntegrityError:  # another tuner was faster
                    pass
            connection.rollback()
            if connection.dialect.name == "postgresql":
                # A holder whose machine vanished is one that the server would believe in for hours.
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
                connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{_LOCK_SECONDS}s'")
            connection.execute(sqlalchemy.select(self._locks).where(mine).with_for_update())
            yield
            connection.rollback()


def public_address(url: str) -> str:
    """The URL of a database without its password.

    Raises
    ------
    StoreError
        If it is malformed.
    """
    return _parse(url).render_as_string(hide_password=True)


def _parse(url: str) -> "URL":
    import sqlalchemy

    try:
        address = sqlalchemy.make_url(url)
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        raise StoreError(
            "malformed address of a database: expected postgresql://user:password@host/name or sqlite:////file"
        ) from error
    # SQLAlchemy's own default changed between its releases.
    return address.set(drivername="postgresql+psycopg") if address.drivername == "postgresql" else address


def _open(url: str, sqlite: bool) -> RDBStorage:
    from sqlalchemy.exc import IntegrityError, ProgrammingError

    options: dict[str, Any] = {"connect_args": {"timeout": _SQLITE_SECONDS}} if sqlite else {"pool_pre_ping": True}
    for _ in range(_STARTS - 1):
        try:
            return RDBStorage(url, engine_kwargs=options)
        except (IntegrityError, ProgrammingError):  # two that make the same table at the same time: one of them fails
            continue
    return RDBStorage(url, engine_kwargs=options)


def _lock_table(backend: RDBStorage) -> "Table":
    import sqlalchemy

    metadata = sqlalchemy.MetaData()
    table = sqlalchemy.Table(_LOCKS, metadata, sqlalchemy.Column("study", sqlalchemy.String(512), primary_key=True))
    for attempt in range(_STARTS):
        try:
            metadata.create_all(backend.engine)
            break
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError):
            if attempt == _STARTS - 1:
                raise
    return table
