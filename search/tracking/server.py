"""The MLflow UI on a store, opened on its pages for machine learning.

MLflow 3.17 opens every experiment on its pages for traces of language models, which have nothing of a search, unless
the address or the browser's storage says otherwise. Its experiments' tag for that (``mlflow.experimentKind``) is not
read any more. So `create_app`, which ``mlflow server --app-name tilescout`` runs, has the front page set the storage,
once: who chose the other pages there keeps them.
"""

import logging
import os
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from contextlib import ExitStack, closing, suppress
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Any

from tilescout.search.tracking.fields import UI_MODE
from tilescout.search.tracking.mlflow_hooks import VIEW_TAG
from tilescout.search.tracking.store import artifact_folder, check_installed, open_client, quiet_mlflow, sqlite_file
from tilescout.spaces.errors import StoreError
from tilescout.spaces.processes import module_command, safe_environment
from tilescout.spaces.sqlite_files import check_stored, open_to_read

_MOMENT = 0.1  # seconds between two looks whether the server listens
_APP = "tilescout"  # among MLflow's plugins, which pyproject.toml registers
_SCRIPT = """<script>
function first(key, value) { localStorage.getItem(key) === null && localStorage.setItem(key, value) }
first("mlflow.workflowType_v1", '"machine_learning"')
first("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true")
fetch("ajax-api/2.0/mlflow/experiments/search?max_results=1000").then(answer => answer.json()).then(found => {
  for (const each of found.experiments ?? [])
    for (const tag of each.tags ?? [])
      if (tag.key === "VIEW_TAG") first(
        `MLflowLocalStorage-1.1-ExperimentPage-["${each.experiment_id}"]-ReactComponentState`,
        JSON.parse(tag.value).state)
}).catch(() => {})
</script>""".replace("VIEW_TAG", VIEW_TAG)
"""Sets what a browser has not chosen yet: the pages for machine learning, no assistant, the columns of experiments."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Coroutine[Any, Any, None]]

_LOG = logging.getLogger(__name__)

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # The server's jobs evaluate language models, in a dozen processes.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PYTHONWARNINGS": "ignore",  # the user can't act on deprecations within the server
}


HOST, PORT = "127.0.0.1", 5000
"""Where the UI listens unless told otherwise."""

FRONT_PAGE = f"#/experiments?{UI_MODE}"
"""The page of all experiments, as `StudyResult.page` is that of a study."""


def address(page: str, host: str = HOST, port: int = PORT) -> str:
    """The address of a page of the UI."""
    return f"http://{host}:{port}/{page}"


def serve(
    uri: str,
    artifact_root: Path | None,
    host: str,
    port: int,
    begin: Callable[[], None] = lambda: None,
    ready: Callable[[], None] = lambda: None,
) -> int:
    """Run the MLflow UI on a store until it is stopped; call it from the main thread.

    Parameters
    ----------
    uri
        The store, as `MlflowTracker` takes it.
    artifact_root
        Where files of runs that others log through this server go; None for the tracker's choice.
    host, port
        Where to listen.
    begin
        Called before the server starts, once nothing is in its way.
    ready
        Called once the server listens, which takes seconds: a link that is opened sooner would be refused.

    Returns
    -------
    int
        0 if it was stopped by SIGINT (Ctrl-C) or SIGTERM to this process, else the server's exit code; 128 plus the
        signal if another one ended it.

    Raises
    ------
    StoreError
        If there is no such store, nothing can listen there, or MLflow is not installed.
    """
    if uri.startswith(("http://", "https://")):
        raise StoreError(f"{uri} is a server already: open it in a browser")
    check_installed()
    uri = _checked_store(uri)
    _check_free(host, port)
    command = _command(uri, artifact_root, host, port)
    begin()
    # A process group of its own: the server has several processes, and each has to get one signal on Ctrl-C. They run
    # in the root folder: uvicorn looks for modules in the working directory, before all other places.
    # The address may have a password: everybody on this machine sees what a process is started with, and only its owner
    # the environment.
    environment = {**safe_environment(), **_ENVIRONMENT, "MLFLOW_BACKEND_STORE_URI": uri}
    begun: list[subprocess.Popen[bytes]] = []
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        for each in begun:
            with suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGTERM)  # on SIGINT it prints a traceback

    with ExitStack() as stack:
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, stop))
        server = subprocess.Popen(command, env=environment, start_new_session=True, cwd="/")
        begun.append(server)
        stack.callback(stop, signal.SIGTERM, None)  # no process is left behind, however this function ends
        if stopped:  # while it was started
            stop(signal.SIGTERM, None)
        while server.poll() is None and not _listens(host, port):
            time.sleep(_MOMENT)
        if server.poll() is None and not stopped:
            ready()
        code = server.wait()
        if stopped:
            return 0
    return code if code >= 0 else 128 - code


def _checked_store(uri: str) -> str:
    """The address of a store as it holds in every folder; a file is there, and is MLflow's."""
    path = sqlite_file(uri)
    if path is None:
        with quiet_mlflow():
            open_client(uri)  # of an address that is none, the server prints tracebacks
        return uri
    try:
        if not path.is_file():
            raise StoreError(f"no MLflow store at {path}: `tilescout tune` makes one")
    except OSError as error:  # a folder on the way may not be entered, or a name is too long
        raise StoreError(f"can't read the MLflow store {path}: {error.strerror}") from error
    _check_is_mlflow(path)
    return uri if path.is_absolute() else uri.replace(str(path), str(path.absolute()), 1)


def _command(uri: str, artifact_root: Path | None, host: str, port: int) -> list[str]:
    """The command that starts MLflow's server; the store's address, which may be secret, is not in it."""
    artifacts = artifact_root or artifact_folder(uri) or Path("mlartifacts")  # which is MLflow's own choice
    command = module_command("mlflow", "server")
    command += ["--artifacts-destination", str(artifacts.absolute())]
    if any(point.name == _APP for point in entry_points(group="mlflow.app")):
        command += ["--app-name", _APP]
    else:
        _LOG.warning(
            "this installation of tilescout does not register its MLflow app, so that MLflow opens experiments on its "
            "pages for language models; install tilescout again"
        )
    # One worker: SQLite has one writer, and more workers would only wait for each other. No log line for each request.
    command += ["--host", host, "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level warning"]
    return command


def _check_is_mlflow(path: Path) -> None:
    """Refuse a database that is not MLflow's: the server would make its tables in it."""
    try:
        with closing(open_to_read(path, sqlite3.Connection)) as connection:
            check_stored(connection)
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
    except (OSError, OverflowError, UnicodeError) as error:  # the last: of a name that no host can have
        raise StoreError(f"can't listen on {host}:{port} ({error}): choose another host or port") from error


def _listens(host: str, port: int) -> bool:
    with suppress(OSError), socket.create_connection((host, port), timeout=_MOMENT):
        return True
    return False


def create_app() -> App:
    """MLflow's own app behind one that adds a line to the front page."""
    from mlflow.server.fastapi_app import app

    return opened_on_machine_learning(app)


def opened_on_machine_learning(app: App) -> App:
    """An ASGI app whose front page, where it is HTML, sets MLflow's kind of pages before MLflow's own scripts run."""

    async def answer(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ("/", "/index.html"):
            await app(scope, receive, send)
            return
        started: Message = {}
        parts: list[bytes] = []

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
                return
            parts.append(message.get("body", b""))
            if message.get("more_body"):
                return
            body = b"".join(parts)
            kept = [(name, value) for name, value in started["headers"] if name.lower() != b"content-length"]
            if started["status"] == 200 and body:
                body = body.replace(b"<head>", b"<head>" + _SCRIPT.encode(), 1)
                # A page that the browser kept from before would lack the line.
                kept = [(name, value) for name, value in kept if name.lower() not in (b"etag", b"last-modified")]
            await send({**started, "headers": [*kept, (b"content-length", str(len(body)).encode())]})
            await send({"type": "http.response.body", "body": body})

        # Without the conditions, MLflow sends the page and not that it is unchanged.
        plain = [pair for pair in scope["headers"] if not pair[0].lower().startswith(b"if-")]
        await app({**scope, "headers": plain}, receive, collect)

    return answer
