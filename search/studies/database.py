"""Studies in a database, which several tuners share."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.exceptions import DuplicatedStudyError, StorageInternalError
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, RDBStorage

from tilescout.search.studies.optuna_hooks import cached, give_token, only_with_token, token_of
from tilescout.search.studies.reconnecting import Reconnection, reconnecting
from tilescout.search.studies.records import StudyResult
from tilescout.search.studies.sharing import SharingOptions, SharingTuner, Tuner, heartbeats, is_heard, is_searched
from tilescout.search.studies.study_store import StudyStore, resumed, unused
from tilescout.spaces.errors import MALFORMED, ResumableError, StoreError, one_line
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.sqlite_files import StoredOnly, fault_of_sqlite, open_to_read
from tilescout.spaces.templates import NONE_NAMED, Named
from tilescout.spaces.texts import without_secrets

if TYPE_CHECKING:
    from sqlalchemy import URL, Table

_LOCKS = "tilescout_locks"  # our table beside optuna's: a row for each study, which its tuners lock in turn
_LOCK_SECONDS = 60  # the longest wait for the lock, and the longest that its holder may leave the connection idle
_SQLITE: dict[str, Any] = {"timeout": 60.0, "factory": StoredOnly}
"""How SQLite's files are opened; the time is the longest wait while another process writes, in s."""

_UNANSWERED = {
    "connect_timeout": 4,  # of each address that the host's name has: a dead server is told within 10 s
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}
"""When libpq takes a PostgreSQL server for dead, in seconds, the last in ms; the system's own limits are hours."""

_STARTS = 5  # attempts at making the tables, which other tuners may be making at the same time


class Database(StudyStore):
    """The studies of a database, each of which several tuners can search together.

    The database is opened when it is first used. A search makes the tables that are missing. Reading makes none, and
    opens SQLite's file so that nothing is written, beside it either.

    Parameters
    ----------
    url
        As SQLAlchemy takes it: ``postgresql://user:password@host/name``, ``sqlite:////path/studies.db``. Of the others
        that Optuna knows, those whose rows can be locked with ``SELECT ... FOR UPDATE``.

    Attributes
    ----------
    url
        The address, with its password.
    name
        The same for people, without a password.

    Raises
    ------
    StoreError
        If the address is malformed, or names no file.
    """

    def __init__(self, url: str) -> None:
        self._address = _parse(url)
        self.url = self._address.render_as_string(hide_password=False)
        self.name = without_secrets(self.url)
        self._file: Path | None = None
        if self._address.get_backend_name() == "sqlite":
            if self._address.database in (None, "", ":memory:"):
                raise StoreError(f"{self.name} is no file: studies in memory can't be shared, nor found again")
            self._file = Path(str(self._address.database))

    @contextmanager
    def join(
        self, base: str, resume: bool | str, sampler: BaseSampler, space: SearchSpace, sharing: SharingOptions
    ) -> Iterator[tuple[optuna.Study, Tuner]]:
        with self._translated(searching=True):
            study, token = self._joined(base, resume, sampler)
            name, kept = study.study_name, self._kept(study, token)
            if self._file is not None:
                with kept, SharingTuner(study, space, lambda: self.exclusive(name), sharing) as tuner:
                    yield study, tuner
                return
            # From here on the database may be lost for a while.
            reconnection = Reconnection(self.name, sharing.reconnect)
            study = optuna.load_study(
                study_name=name, storage=reconnecting(self.storage, reconnection), sampler=sampler
            )

            @contextmanager
            def exclusive() -> Iterator[None]:
                # The lock is lost with its connection: what is done under it is repeated as a whole, or not at all.
                with reconnection.once(), self.exclusive(name):
                    yield

            with kept, SharingTuner(study, space, exclusive, sharing, reconnection.insist) as tuner:
                try:
                    yield study, tuner
                except BaseException:  # also where it was raised beside a call of the database
                    reconnection.give_up()
                    raise

    def check(self) -> None:
        self._locks  # noqa: B018

    def names(self) -> list[str]:
        with self._translated():
            return sorted(optuna.get_all_study_names(self._reading))

    def load(self, name: str) -> optuna.Study:
        with self._translated():
            try:
                return optuna.load_study(study_name=name, storage=self._reading)
            except KeyError as error:
                raise self.missing(name) from error

    def delete(self, name: str) -> None:
        study = self.load(name)
        with self._translated():
            before = heartbeats(study)
            searched = StoreError(
                f"another process is searching the study {name} in {self.name}: wait for it, or end it"
            )
            if is_searched(study):  # this may take half a minute; a file has one lock for all of its studies
                raise searched
            with self.exclusive(name):
                if is_heard(self.load(name), before):  # while this process waited for the lock
                    raise searched
                optuna.delete_study(study_name=name, storage=self.storage)
            if self._file is None:
                with self._writing.engine.begin() as connection:
                    connection.execute(self._locks.delete().where(self._locks.c.study == name))

    def attributes(self, name: str) -> dict[str, Any]:
        with self._translated():
            return super().attributes(name)

    def read(self, name: str, named: Named = NONE_NAMED) -> StudyResult:
        with self._translated():
            return super().read(name, named)

    def open(self, base: str, resume: bool | str, sampler: BaseSampler) -> optuna.Study:
        """Make a new study that is named after `base`, or open the newest of those, or the one that `resume` names.

        Raises
        ------
        StoreError
            If the database fails, or there is no such study.
        """
        with self._translated():
            while True:
                names = optuna.get_all_study_names(self.storage)
                name = resumed(names, base, resume) if resume else unused(names, base)
                try:
                    return optuna.create_study(
                        storage=self.storage,
                        sampler=sampler,
                        study_name=name,
                        direction="minimize",
                        load_if_exists=bool(resume),
                    )
                except DuplicatedStudyError:  # another tuner was faster
                    continue

    def exclusive(self, name: str) -> AbstractContextManager[None]:
        """A lock of a study, which one process holds at a time. The database releases it when its holder dies."""
        return (
            self._locked_row(name) if self._file is None else _locked(self._file.with_name(f"{self._file.name}.lock"))
        )

    @contextmanager
    def _translated(self, searching: bool = False) -> Iterator[None]:
        """Turn any error of the database into a `StoreError`, a `ResumableError` while it is searched."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, StorageInternalError) as error:
            cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
            told = getattr(cause, "orig", None) or cause  # by the driver, without SQLAlchemy's query and its address
            message = f"the database {self.name} failed ({one_line(fault_of_sqlite(told), 200)})"
            if searching:
                raise ResumableError(f"{message}; what is finished is kept there, go on") from error
            raise StoreError(message) from error
        except MALFORMED as error:
            if searching:  # of whatever is done between opening and closing a study
                raise
            raise StoreError(f"the database {self.name} is damaged ({one_line(error, 200)})") from error

    def _joined(self, base: str, resume: bool | str, sampler: BaseSampler) -> tuple[optuna.Study, str]:
        """A study, see `open`, and its token."""
        with self._translated():
            name = self.open(base, resume, sampler).study_name
            with self.exclusive(name):  # so that nobody deletes it here, and it gets one token
                try:
                    study = optuna.load_study(study_name=name, storage=self.storage, sampler=sampler)
                except KeyError as error:
                    raise self._deleted(name) from error
                return study, give_token(study)

    @contextmanager
    def _kept(self, study: optuna.Study, token: str) -> Iterator[None]:
        """Raise a `StoreError` if the study that is searched was deleted, even if another one has its name or number.

        In SQLite another one may have both. A server gives no number twice: there a record is not found.
        """
        name = study.study_name
        with ExitStack() as stack:
            if self._file is not None:
                stack.enter_context(only_with_token(self._writing, study, token, lambda: self._deleted(name)))
            try:
                yield
            except LookupError as error:
                if name in self.names() and token_of(self.load(name)) == token:
                    raise
                raise self._deleted(name) from error

    def _deleted(self, name: str) -> StoreError:
        return StoreError(f"the study {name} in {self.name} was deleted while it was searched: start a new one")

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Say in one line why a database can't be opened."""
        try:
            with self._translated():
                yield
        except ImportError as error:
            raise StoreError(
                f"{self.name} needs a driver that is not installed; for PostgreSQL: pip install 'tilescout[postgres]'"
            ) from error
        except (RuntimeError, AssertionError) as error:  # the tables are of an Optuna that is too old or too new
            raise StoreError(f"can't use the database {self.name}: {one_line(error, 200)}") from error

    @cached_property
    def storage(self) -> BaseStorage:
        """Optuna's storage, for searching; its tables are made where they are missing."""
        return cached(self._writing)

    @cached_property
    def _writing(self) -> RDBStorage:
        options: dict[str, Any] = {"pool_pre_ping": True, **self._connecting()}
        if self._file is not None:
            options = {"connect_args": _SQLITE}
        with self._usable():
            return _made(self.url, options)

    @cached_property
    def _reading(self) -> RDBStorage:
        from sqlalchemy.pool import NullPool

        url, options = self.url, dict[str, Any]()
        if self._file is not None:
            try:
                if not self._file.is_file():
                    raise StoreError(f"there is no database {self.name}")
            except OSError as error:  # a folder on the way may not be entered, or a name is too long
                raise StoreError(f"can't read the database {self.name}: {error.strerror}") from error
            # No connection is kept: whether somebody is writing, and what, is looked at when one is opened.
            url, options = "sqlite://", {"creator": partial(open_to_read, self._file, **_SQLITE), "poolclass": NullPool}
        elif self._address.get_backend_name() == "postgresql":
            options = {"execution_options": {"postgresql_readonly": True}, **self._connecting()}
        with self._usable():
            return RDBStorage(url, engine_kwargs=options, skip_table_creation=True)

    def _connecting(self) -> dict[str, Any]:
        """How long to wait for a server, where the address does not say so."""
        if self._address.get_backend_name() != "postgresql":
            return {}
        wanted = {name: value for name, value in _UNANSWERED.items() if name not in self._address.query}
        return {"connect_args": wanted}

    @cached_property
    def _locks(self) -> "Table":
        with self._usable():
            return _lock_table(self._writing)

    @contextmanager
    def _locked_row(self, name: str) -> Iterator[None]:
        import sqlalchemy

        table = self._locks
        mine = table.c.study == name
        with self._translated(searching=True), self._writing.engine.connect() as connection:
            while True:
                if connection.dialect.name == "postgresql":
                    # Without these, the server would wait for hours for a holder whose machine has vanished.
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
                    connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{_LOCK_SECONDS}s'")
                if connection.execute(sqlalchemy.select(table).where(mine).with_for_update()).first():
                    break
                connection.rollback()
                # There is none yet, or it was deleted with a study of this name while it was waited for.
                try:
                    connection.execute(table.insert().values(study=name))
                    connection.commit()
                except sqlalchemy.exc.IntegrityError:  # another tuner was faster
                    connection.rollback()
            yield
            try:
                connection.rollback()
            except sqlalchemy.exc.SQLAlchemyError:  # the lock went with the connection, and what it was for is done
                connection.invalidate()


def _parse(url: str) -> "URL":
    import sqlalchemy

    expected = "expected postgresql://user:password@host/name or sqlite:////file"
    try:
        address = sqlalchemy.make_url(url)
        address.get_dialect()
    except sqlalchemy.exc.NoSuchModuleError as error:
        raise StoreError(f"no database that can hold studies is called {address.drivername!r}: {expected}") from error
    except (sqlalchemy.exc.ArgumentError, ValueError) as error:
        raise StoreError(f"malformed address of a database: {expected}") from error
    # SQLAlchemy's own default changed between its releases.
    return address.set(drivername="postgresql+psycopg") if address.drivername == "postgresql" else address


def _made(url: str, options: dict[str, Any]) -> RDBStorage:
    """The storage of optuna, with its tables made where they are missing."""
    from sqlalchemy.exc import IntegrityError, ProgrammingError

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


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """A lock that one process holds at a time. The system releases it when its holder dies."""
    try:
        # For reading, too: opening a pipe, which somebody may have put there, for writing alone waits for a reader.
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StoreError(
            f"can't lock {path}: {error.strerror}; tuners that share a database write that file"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
