"""The MLflow UI on a store."""

import os
import signal
import socket
import sqlite3
import subprocess
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import FrameType

from tilescout.search.tracking.fields import UI_MODE
from tilescout.search.tracking.store import artifact_folder, sqlite_file
from tilescout.spaces.errors import StoreError
from tilescout.spaces.processes import module_command, safe_environment

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # The server's jobs evaluate language models, in a dozen processes.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PYTHONWARNINGS": "ignore",  # the user can't act on deprecations within the server
}


def front_page(host: str, port: int) -> str:
    """The address at which the UI shows its experiments."""
    return f"http://{host}:{port}/#/experiments?{UI_MODE}"


def serve(uri: str, artifact_root: Path | None, host: str, port: int) -> int:
    """Run the MLflow UI on a store until it is stopped; call it from the main thread.

    Parameters
    ----------
    uri
        The store, as `MlflowTracker` takes it.
    artifact_root
        Where files of runs that others log through this server go; None for the tracker's choice.
    host, port
        Where to listen.

    Returns
    -------
    int
        0 if it was stopped by SIGINT (Ctrl-C) or SIGTERM to this process, else the server's exit code; 128 plus the
        signal if another one ended it.

    Raises
    ------
    StoreError
        If there is no such store, or nothing can listen there.
    """
    if uri.startswith(("http://", "https://")):
        raise StoreError(f"{uri} is a server already: open it in a browser")
    path = sqlite_file(uri)
    if path is not None and not path.is_file():
        raise StoreError(f"no MLflow store at {path}: `tilescout tune` makes one")
    _check_free(host, port)
    if path is not None:
        _check_is_mlflow(path)
        uri = uri.replace(str(path), str(path.absolute()), 1) if not path.is_absolute() else uri
    artifacts = artifact_root or artifact_folder(uri) or Path("mlartifacts")  # which is MLflow's own choice
    command = module_command("mlflow", "server", "--backend-store-uri", uri)
    command += ["--artifacts-destination", str(artifacts.absolute())]
    # One worker: SQLite has one writer, and more workers would only wait for each other. No log line for each request.
    command += ["--host", host, "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level warning"]
    # A process group of its own: the server has several processes, and each has to get one signal on Ctrl-C. They run
    # in the root folder: uvicorn looks for modules in the working directory, before all other places.
    server = subprocess.Popen(command, env={**safe_environment(), **_ENVIRONMENT}, start_new_session=True, cwd="/")
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)  # on SIGINT it prints a traceback

    with ExitStack() as stack:
        stack.callback(stop, signal.SIGTERM, None)  # no process is left behind, however this function ends
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, stop))
        code = server.wait()
        if stopped:
            return 0
    return code if code >= 0 else 128 - code


def _check_is_mlflow(path: Path) -> None:
    """Refuse a database that is not MLflow's: the server would make its tables in it."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error as error:
        raise StoreError(f"can't read the MLflow store {path}: {error}") from error
    if not {"experiments", "runs"} <= tables:
        raise StoreError(f"{path} is no MLflow store: its tables are {', '.join(sorted(tables)) or 'none'}")


def _check_free(host: str, port: int) -> None:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        raise StoreError(f"can't listen on {host}:{port} ({error}): choose another host or port") from error
