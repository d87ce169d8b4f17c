"""Open an MLflow store: its address and files, the checks before it is used, and MLflow's settings meanwhile."""

import logging
import os
import re
import sqlite3
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Self

from tilescout.search.tracking.mlflow_hooks import TESTED, VIEW_TAG, View, make_sqlite_store
from tilescout.spaces.errors import StoreError, one_line
from tilescout.spaces.faults import described
from tilescout.spaces.outputs import DIGITS, sweep
from tilescout.spaces.sqlite_files import check_beside, check_stored

if TYPE_CHECKING:
    from mlflow import MlflowClient

ERROR_LENGTH = 300  # of a message of MLflow's, in characters
_STATEMENT = re.compile(r"\s*(\[SQL: .*|\(Background on this error at: .*)", re.DOTALL)
"""The statement, of some hundred characters, and the address that SQLAlchemy puts behind the reason of an error."""
_SQLITE = "sqlite:///"
_CONNECT_SECONDS = 4  # of each address that a host's name has: a dead server is told within 10 s
_IMPORTED = ("mlflow", "sqlalchemy", "alembic", "matplotlib", "sklearn")  # for logging; MLflow depends on all others
_REMEDY = f"pip install 'mlflow{TESTED}' brings what it needs"
_LOCK_SECONDS = 5.0  # how long opening a store waits for another process that is writing to it

# MLflow takes these from the environment and from nowhere else. It makes no retries of its own: on a server that is
# down these take four minutes, while opening a store has to fail at once, and the writer retries by itself.
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "8",
}


def default_store(root: Path) -> tuple[str, Path]:
    """The URI and the artifact folder of the local store under `root`, which is created.

    Raises
    ------
    StoreError
        If `root` can't be created or written to.
    """
    found = store_under(root)
    root = root.absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"can't create the folder {root} for the MLflow store: {one_line(error, ERROR_LENGTH)}"
        ) from error
    if not os.access(root, os.W_OK | os.X_OK):
        raise StoreError(f"can't write to the folder {root} of the MLflow store: choose another, or change its mode")
    return found


def store_under(root: Path) -> tuple[str, Path]:
    """The URI and the artifact folder of the local store under `root`, whether it is there or not.

    Raises
    ------
    StoreError
        If MLflow can keep none there, for a character in its path.
    """
    root = root.absolute()
    if found := re.search("[%#?\ud800-\udfff]", str(root)):  # these mean something else in an address, or nothing
        raise StoreError(f"MLflow can't keep its files in {root}: choose a folder without {found[0]!r} in its path")
    path = root / "mlflow.db"
    return f"{_SQLITE}{path}", _artifacts_beside(path)


def sqlite_file(uri: str) -> Path | None:
    """The file of a SQLite store; None for a store of another kind."""
    return Path(uri.removeprefix(_SQLITE)).absolute() if uri.startswith(_SQLITE) else None


def artifact_folder(uri: str) -> Path | None:
    """Where artifacts of a SQLite store go unless told otherwise; None for a store of another kind.

    MLflow's own choice is ``mlruns`` in the current folder of whoever writes first.
    """
    path = sqlite_file(uri)
    return None if path is None else _artifacts_beside(path)


def check_installed() -> None:
    """Look for the modules that logging needs, and import none of them.

    Raises
    ------
    StoreError
        If some are missing; it names them.
    """
    if missing := [name for name in _IMPORTED if not _is_there(name)]:
        raise StoreError(f"can't use MLflow: not installed: {', '.join(missing)}; {_REMEDY}")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # something refuses it; or it was imported in some way of its own
        return name in sys.modules


@contextmanager
def importing(kind: type[Exception] = Exception) -> Iterator[None]:
    """Turn what keeps MLflow, or what draws the plots, from being imported into a `StoreError` that says it.

    Parameters
    ----------
    kind
        The errors; a package that does not fit another one raises anything while it is imported.

    Raises
    ------
    StoreError
        If there is one.
    """
    try:
        yield
    except kind as error:
        raise StoreError(f"can't use MLflow, which can't be imported: {described(error)}; {_REMEDY}") from error


@contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Switch off MLflow's telemetry, its log messages and its retries while the context is open.

    Variables that the user has set in the environment stay. Open it in the main thread: it is not safe to change the
    environment while other threads read it.
    """
    with quiet_environment(), _quiet_loggers():
        yield


@contextmanager
def quiet_environment() -> Iterator[None]:
    """Set what MLflow reads from the environment, and that it reads while it is imported, for `quiet_mlflow`."""
    ours = {name: value for name, value in _QUIET.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)


@contextmanager
def _quiet_loggers() -> Iterator[None]:
    with importing():  # after telemetry is off, and before its log levels are set
        import mlflow.exceptions  # noqa: F401
        import sqlalchemy.exc  # noqa: F401

    # Whatever matters is raised as an exception too, so that nothing is lost.
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


_SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter from another one while a store is opened, instead of Python's 5 ms.

A proposal asks for the interpreter some dozen times. With cores to spare, the thread that imports MLflow takes it each
time: on 16 cores proposals took 0.1 to 0.2 s until MLflow was open, and 0.02 s from then on (2026-11-22).
"""


class Opening:
    """Opens a store in a thread: importing MLflow and making a store take seconds.

    Use it as a context manager, in the main thread.

    Parameters
    ----------
    uri
        The store.

    Raises
    ------
    StoreError
        If MLflow, or what it needs, is not installed.
    """

    def __init__(self, uri: str) -> None:
        check_installed()
        self._uri = uri
        self._opened: Future[MlflowClient] = Future()
        self._thread = threading.Thread(target=self._open, name="mlflow-opening", daemon=True)
        self._environment = ExitStack()

    def begin(self) -> None:
        """Start to open it, unless that was done."""
        if self._thread.ident is None:
            self._thread.start()

    def client(self) -> "MlflowClient":
        """A client of the store, once it is open.

        Raises
        ------
        StoreError
            As `open_client` does.
        """
        self.begin()
        return self._opened.result()

    def _open(self) -> None:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(min(interval, _SWITCH_SECONDS))
        try:
            with _quiet_loggers():
                self._opened.set_result(open_client(self._uri))
        except BaseException as error:  # whoever asks for the client hears of it
            self._opened.set_exception(error)
        finally:
            sys.setswitchinterval(interval)

    def __enter__(self) -> Self:
        self._environment.enter_context(quiet_environment())
        return self

    def __exit__(self, *exception: object) -> None:
        # After Ctrl-C nobody waits for it who does not need it.
        if self._thread.ident is not None and not any(isinstance(each, KeyboardInterrupt) for each in exception):
            self._thread.join()
        self._environment.close()


def open_client(uri: str) -> "MlflowClient":
    """A client of the store at `uri`; a new SQLite store is created (1.2 s, for MLflow's migrations).

    Raises
    ------
    StoreError
        If there is no such store, it can't be written, or the address is empty.
    """
    from mlflow import MlflowClient

    allowed = "; allowed are a file (sqlite:////path/mlflow.db) or a running server (http://host:port)"
    if not uri:  # MLflow would make a store in the working directory
        raise StoreError(f"the address of the MLflow store is empty{allowed}")
    with translated(uri, allowed):
        path = sqlite_file(uri)
        if path is not None:
            # MLflow would try for some 100 s before it reports that a file can't be opened.
            if path.exists():
                _check_sqlite(path)
            else:
                _create_sqlite(path)
        _check_database(uri)
        try:
            client = MlflowClient(tracking_uri=uri)
            client.search_experiments(max_results=1)  # the constructor does not contact the server
        except ValueError as error:  # of an address that can't be
            raise StoreError(f"can't use the MLflow store {uri}: {one_line(error, ERROR_LENGTH)}{allowed}") from error
    return client


def find_experiment(client: "MlflowClient", name: str, artifacts: Path | None, view: View | None = None) -> str:
    """The experiment of this name, made if there is none, with its files in `artifacts` and MLflow's table of it so.

    Raises
    ------
    StoreError
        If it was deleted, or what answers is no MLflow.
    """
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        tags = {VIEW_TAG: view.tag()} if view is not None else None
        try:
            return str(client.create_experiment(name, artifacts.absolute().as_uri() if artifacts else None, tags))
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another process was faster
            if experiment is None:
                raise
    if not experiment.experiment_id:
        raise StoreError(
            f"can't use the MLflow store: what answers knows no number of its experiment {name}; is it MLflow?"
        )
    if experiment.lifecycle_stage != "active":
        raise StoreError(
            f"the MLflow experiment {name} was deleted: restore it with "
            f"`mlflow experiments restore -x {experiment.experiment_id}`, or use another store"
        )
    if view is not None and view.replaces(experiment.tags.get(VIEW_TAG)):
        client.set_experiment_tag(experiment.experiment_id, VIEW_TAG, view.tag())
    return str(experiment.experiment_id)


@contextmanager
def opened_experiment(
    uri: str, name: str, artifacts: Path | None = None, view: View | None = None
) -> Iterator[tuple["MlflowClient", str]]:
    """Open a store and yield its client with the id of the experiment of this name; errors become `StoreError`.

    Parameters
    ----------
    uri
        The store.
    name
        The experiment; it is made if there is none.
    artifacts
        Where a new experiment keeps its files; None takes the folder beside a store that is a file.
    view
        What MLflow's table of its runs shows.

    Raises
    ------
    StoreError
        If the store can't be opened or written, or the experiment was deleted.
    """
    with quiet_mlflow():
        client = open_client(uri)
        with translated(uri):
            yield client, find_experiment(client, name, artifacts or artifact_folder(uri), view)


@contextmanager
def translated(uri: str, hint: str = "") -> Iterator[None]:
    """Turn any error of the store at `uri` into a `StoreError` whose message ends with `hint`."""
    from google.protobuf.json_format import ParseError
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except ParseError as error:
        raise StoreError(
            f"can't use the MLflow store {uri}: no MLflow answers there ({one_line(error)}){hint}"
        ) from error
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:  # a database's driver may be missing
        said = one_line(_STATEMENT.sub("", str(error)), ERROR_LENGTH) or one_line(error, ERROR_LENGTH)
        raise StoreError(f"can't use the MLflow store {uri}: {said}{hint}") from error


def is_passing(error: Exception) -> bool:
    """Whether an error of writing to a store may be temporary, so that it makes sense to try again."""
    from mlflow.exceptions import MlflowException

    if isinstance(error, MlflowException):
        return error.error_code not in {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST"}
    return isinstance(error, OSError)  # includes every error of `requests`


def _check_database(uri: str) -> None:
    """Connect to a PostgreSQL server: MLflow would try for some 100 s before it reports that there is none."""
    import sqlalchemy

    if not uri.startswith("postgresql"):
        return
    engine = sqlalchemy.create_engine(uri, connect_args={"connect_timeout": _CONNECT_SECONDS})
    with engine.connect():
        pass
    engine.dispose()


def _artifacts_beside(path: Path) -> Path:
    return path.parent / "mlartifacts"


def _create_sqlite(path: Path) -> None:
    """Make a store under a temporary name, and rename it when it is complete.

    A process that is killed while MLflow makes its some 60 tables would leave a file that MLflow can neither use nor
    complete.
    """
    made = path.with_name(f".{path.name}.{token_hex(8)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent, f".{path.name}.{DIGITS}*")
        check_beside(path)
        _check_sqlite(made)
        with translated(f"{_SQLITE}{path}"):
            make_sqlite_store(f"{_SQLITE}{made}", _artifacts_beside(path))
        with suppress(FileExistsError):  # another process was faster
            os.link(made, path)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"can't create the MLflow store {path}: {one_line(error, ERROR_LENGTH)}; it has to be in a folder that can "
            "be written, on a file system with hard links"
        ) from error
    finally:
        with suppress(OSError):
            made.unlink(missing_ok=True)


def _check_sqlite(path: Path) -> None:
    try:
        check_beside(path)
        with closing(sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")  # takes the lock for writing
            connection.execute("ROLLBACK")
            check_stored(connection)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"can't write the MLflow store {path}: {one_line(error, ERROR_LENGTH)}; "
            "it has to be a SQLite file, or a new one in a folder that can be written"
        ) from error
