"""Around the runs of MLflow: opening a store, the UI's server, the writer thread, the description and the picture."""

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.provenance import Provenance
from tilescout.search.studies.records import StudyInfo, StudyResult, TrialRecord
from tilescout.search.tracking import FRONT_PAGE, MlflowTracker, TrackingError, default_store, serve
from tilescout.search.tracking.description import Place, describe
from tilescout.search.tracking.experiment import log_experiment
from tilescout.search.tracking.fields import TAG_LENGTH, Progress
from tilescout.search.tracking.plots import draw, to_png
from tilescout.search.tracking.server import _check_free, opened_on_machine_learning
from tilescout.search.tracking.store import open_client, quiet_mlflow, translated
from tilescout.search.tracking.views import importance
from tilescout.search.tracking.writer import Writer
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

KNOBS = [Configuration.of({"stages": stages}) for stages in range(1000)]
REPLAY = Provenance("replay", "a recorded table")
INFO = StudyInfo(
    "study", "space", "ab12", GemmProblem(512, 512, 512), "h200", "gp", 1, REPLAY, KNOBS[0], "torch.mm", 8.0
)


def study(*ratios: float | None) -> StudyResult:
    """A study whose trials took these times, of the library's; None is one that crashed. Trial 0 is the default."""
    trials = []
    for number, ratio in enumerate(ratios):
        timing = None if ratio is None else Timing(ratio, ratio, ratio, ratio, ratio, INFO.library_us, 9)
        status = Status.CRASH if ratio is None else Status.OK
        measurement = Measurement(status, timing=timing, gpu_seconds=0.5)
        trials.append(TrialRecord(number, number, KNOBS[number], measurement, 1e9 + number, 1e9 + number + 1))
    return StudyResult(INFO, trials, 3.0)


def log_all(uri: str, result: StudyResult) -> MlflowTracker:
    with MlflowTracker(uri, None, INFO) as tracker:
        tracker.finish(result)
    return tracker


MAKE = """
import os, sys
sys.path.insert(0, {here!r})
from test_tracking_store import log_all, study
def ours():
    return {{name: value for name, value in os.environ.items() if not name.startswith("KMP_")}}  # scikit-learn's
before = ours()
log_all({uri!r}, study(1.5, None, 1.0))
assert ours() == before, set(ours()) ^ set(before)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, "subprocess.CompletedProcess[str]"]:
    """A store that a process of its own has made and logged a study to, and what that process had to say."""
    uri, _ = default_store(tmp_path_factory.mktemp("made"))
    code = MAKE.format(here=str(Path(__file__).parent), uri=uri)
    # Another test may have imported MLflow by itself, which then leaves its session in the environment.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("_MLFLOW")}
    command = [sys.executable, "-c", code]
    return uri, subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
def test_a_new_store_is_made_in_silence_and_the_environment_is_left_as_it_was(
    made: tuple[str, "subprocess.CompletedProcess[str]"],
) -> None:
    uri, done = made
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    root = Path(uri.removeprefix("sqlite:///")).parent
    assert len(list(root.glob("mlartifacts/*/artifacts/convergence.png"))) == 1


@pytest.mark.slow
def test_a_process_that_is_killed_while_it_makes_a_store_leaves_none_and_the_next_one_makes_it(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/store/mlflow.db"
    code = f"from tilescout.search.tracking.store import open_client; open_client({uri!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while not any(file.stat().st_size for file in tmp_path.glob("store/.mlflow.db.*[!l]")):  # no -journal: they go
            assert process.poll() is None
            time.sleep(0.001)
        process.kill()
    assert not (tmp_path / "store" / "mlflow.db").exists()
    with quiet_mlflow():
        assert open_client(uri).search_experiments()


@pytest.mark.parametrize("uri", ["sqlite:///{}", "sqlite:///{}/text", "sqlite:///{}/text/mlflow.db", "{}", "odd://{}"])
def test_a_store_that_can_not_be_written_is_one_clear_line(uri: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, and it is longer than the header of one" * 3)
    with pytest.raises(StoreError) as failure:
        MlflowTracker(uri.format(tmp_path), None, INFO)
    assert str(tmp_path) in str(failure.value)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("uri", [f"sqlite:////tmp/{'a' * 300}.db", "http://[::"])
def test_an_address_that_can_not_be_is_one_clear_line(uri: str) -> None:
    with quiet_mlflow(), pytest.raises(StoreError, match="can't use the MLflow store"):
        open_client(uri)


def test_an_empty_address_is_not_a_store_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="the address of the MLflow store is empty"):
        log_experiment("", "any", {}, {}, [])
    assert not list(tmp_path.iterdir())


def test_a_store_with_a_view_of_somebody_else_is_refused_before_it_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE runs (a); CREATE VIEW experiments AS "
            "WITH RECURSIVE n(a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM n) SELECT * FROM n"
        )
    with pytest.raises(StoreError, match="experiments has or is a view"):
        open_client(f"sqlite:///{path}")
    with pytest.raises(StoreError, match="experiments has or is a view"):
        serve(f"sqlite:///{path}", None, "127.0.0.1", 0)


@pytest.mark.parametrize("there", [True, False])
def test_a_pipe_in_the_place_of_a_file_of_sqlites_own_is_refused(tmp_path: Path, there: bool) -> None:
    path = tmp_path / "mlflow.db"
    if there:
        sqlite3.connect(path).close()
    os.mkfifo(tmp_path / "mlflow.db-journal")
    with pytest.raises(StoreError, match=r"mlflow\.db-journal beside it is no regular file"):
        open_client(f"sqlite:///{path}")
    assert path.exists() == there


def test_an_error_of_the_database_is_told_without_its_statement() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    reason = r"^can't use the MLflow store sqlite://: \(sqlite3\.OperationalError\) no such table: runs; make room$"
    with (
        pytest.raises(StoreError, match=reason),
        translated("sqlite://", "; make room"),
        engine.connect() as connection,
    ):
        connection.execute(sqlalchemy.text("SELECT * FROM runs"))


def test_the_default_store_needs_a_folder_that_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="can't create the folder"):
        default_store(tmp_path / "file" / "store")
    uri, artifacts = default_store(tmp_path / "new" / "store")
    assert (uri, artifacts) == (f"sqlite:///{tmp_path}/new/store/mlflow.db", tmp_path / "new/store/mlartifacts")
    assert (tmp_path / "new" / "store").is_dir()


def test_a_server_that_is_not_there_or_never_answers_fails_quickly(
    monkeypatch: pytest.MonkeyPatch, held_port: Callable[[], AbstractContextManager[int]]
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # the user's own settings go first
    before = dict(os.environ)
    with held_port() as closed, socket.create_server(("127.0.0.1", 0)) as mute:
        for port, reason in ((closed, "refused"), (mute.getsockname()[1], "(read timeout=1)")):
            start = time.perf_counter()
            with pytest.raises(StoreError, match=f"can't use the MLflow store http://127.0.0.1:{port}") as failure:
                MlflowTracker(f"http://127.0.0.1:{port}", None, INFO)
            assert time.perf_counter() - start < 60  # MLflow's own retries would take four minutes
            assert reason in str(failure.value.__cause__)
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b'{"experiments": [{"name": 3}], "experiment": {"name": 3}}', "no MLflow answers there \\(Failed to parse"),
        (b"{}", "what answers knows no number of its experiment tilescout/"),
    ],
)
def test_a_server_of_something_else_is_told_to_be_none_of_mlflow(answer: bytes, said: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        uri = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(StoreError, match=said):
            MlflowTracker(uri, None, INFO)
        server.shutdown()


def answers(address: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(address, timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


@pytest.fixture
def server(
    made: tuple[str, "subprocess.CompletedProcess[str]"], held_port: Callable[[], AbstractContextManager[int]]
) -> Iterator[tuple[str, int, "subprocess.Popen[bytes]"]]:
    """A store, the port at which its UI listens, and the process that runs it."""
    uri, call = made[0], "from tilescout.search.tracking import serve; raise SystemExit(serve({!r}, None, {!r}, {}))"
    with (
        held_port() as port,
        subprocess.Popen([sys.executable, "-c", call.format(uri, "127.0.0.1", port)]) as process,
    ):
        deadline = time.monotonic() + 200
        while not answers(f"http://127.0.0.1:{port}") and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        yield uri, port, process
        process.terminate()


@pytest.mark.parametrize(
    ("path", "status", "body", "sent"),
    [
        ("/", 200, b"<html><head><title>", b"<html><head><script>"),
        ("/", 404, b"<head>", b"<head>"),
        ("/graphql", 200, b"<head>", b"<head>"),
    ],
)
def test_the_front_page_alone_begins_with_a_script_of_ours(path: str, status: int, body: bytes, sent: bytes) -> None:
    got: list[MutableMapping[str, Any]] = []
    asked: list[MutableMapping[str, Any]] = []

    async def theirs(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        asked.append(scope)
        headers = [(b"content-length", str(len(body)).encode()), (b"etag", b"x"), (b"content-type", b"text/html")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body[:5], "more_body": True})
        await send({"type": "http.response.body", "body": body[5:]})

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request"}

    async def send(message: MutableMapping[str, Any]) -> None:
        got.append(message)

    scope = {"type": "http", "path": path, "headers": [(b"if-none-match", b"x"), (b"accept", b"*/*")]}
    asyncio.run(opened_on_machine_learning(theirs)(scope, receive, send))

    whole = b"".join(message.get("body", b"") for message in got)
    assert whole.startswith(sent)
    headers = dict(got[0]["headers"])
    assert headers[b"content-length"] == str(len(whole)).encode()
    ours = whole != body
    assert (b"etag" in headers) != ours
    assert ((b"if-none-match", b"x") in asked[0]["headers"]) == (path != "/")


@pytest.mark.slow
def test_the_ui_serves_a_store_takes_studies_from_elsewhere_and_stops_when_told(
    server: tuple[str, int, "subprocess.Popen[bytes]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # a busy machine is no failure
    uri, port, process = server
    address = f"http://127.0.0.1:{port}"
    assert answers(f"{address}/{FRONT_PAGE}")
    with pytest.raises(StoreError, match=f"can't listen on 127.0.0.1:{port}"):
        serve(uri, None, "127.0.0.1", port)

    tracker = log_all(address, study(1.5, None, 0.75))
    picture = f"{address}/get-artifact?path=convergence.png&run_uuid={tracker.run_id}"
    assert answers(picture)  # the address that the description shows it by
    orphan = MlflowTracker(address, None, INFO, patience=0.6)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 0
    assert not answers(address)
    with pytest.raises(TrackingError, match="trial 0, the summary"):
        orphan.finish(study(1.5))


def test_the_ui_refuses_a_store_that_is_not_there_and_a_server(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="`tilescout tune` makes one"):
        serve(default_store(tmp_path)[0], None, "127.0.0.1", 0)
    with pytest.raises(StoreError, match="is a server already"):
        serve("http://127.0.0.1:1", None, "127.0.0.1", 0)
    with pytest.raises(StoreError, match="can't read the MLflow store"):
        serve(f"sqlite:////tmp/{'a' * 300}.db", None, "127.0.0.1", 0)
    for uri in (str(tmp_path), "odd://name"):  # MLflow's server would print tracebacks
        with pytest.raises(StoreError, match=f"can't use the MLflow store {uri}: "):
            serve(uri, None, "127.0.0.1", 0)
    with pytest.raises(StoreError, match=r"can't listen on a\.\.b:0"):
        _check_free("a..b", 0)


def test_importing_the_room_loads_neither_mlflow_nor_matplotlib() -> None:
    code = "import sys, tilescout.search.tracking; print({'mlflow', 'matplotlib', 'sqlalchemy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_the_writer_keeps_the_order_over_errors_that_pass() -> None:
    done: list[str] = []
    failures = [OSError("later"), OSError("later")]

    def job(name: str) -> Callable[[], None]:
        def action() -> None:
            if name == "b" and failures:
                raise failures.pop()
            done.append(name)

        return action

    writer = Writer(lambda error: isinstance(error, OSError))
    for name in "abc":
        writer.put(name, job(name))
    writer.drain(60)
    writer.stop()
    assert done == ["a", "b", "c"]


def test_the_writer_gives_up_on_a_call_that_never_returns_and_keeps_working_until_then() -> None:
    begun, forever = Event(), Event()

    def hang() -> None:
        begun.set()
        forever.wait()

    writer = Writer(lambda error: True)
    writer.put("first", lambda: None)
    writer.put("stuck", hang)
    assert begun.wait(60)
    with pytest.raises(TrackingError, match="stuck") as failure:
        writer.drain(0.2)
    assert failure.value.undelivered == ("stuck",)
    writer.stop()
    forever.set()


@given(st.lists(st.none() | st.floats(0.01, 200.0), max_size=60))
def test_progress_agrees_with_the_result_of_the_whole_study(ratios: list[float | None]) -> None:
    result = study(*ratios)
    progress = Progress()
    for trial in result.trials:
        progress = progress.after(trial, INFO)
    assert progress.best == result.best
    assert (progress.trials, progress.failed) == (len(ratios), ratios.count(None))
    assert progress.gpu_seconds == pytest.approx(result.gpu_seconds)
    metrics = progress.metrics(INFO)
    assert ("best_speedup_over_default" in metrics) == bool(ratios and ratios[0] is not None)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 900), st.integers(0, 3000))
def test_a_description_fits_into_mlflows_limit_and_links_the_fastest_trials(size: int, length: int) -> None:
    info = replace(INFO, provenance=Provenance("replay", "d" * length))
    result = replace(study(*(2 - n / 1000 for n in range(size))), info=info)
    text = describe(result, Place("f" * 32, "1", "2"), {n: f"{n:032d}" for n in range(size)})
    assert len(text) <= TAG_LENGTH
    linked = [n for n in range(size) if f"%22{n:032d}%22" in text]
    assert linked == list(range(size - len(linked), size))
    assert len(linked) == size or f"the {len(linked)} fastest trials" in text


@pytest.mark.slow
def test_the_pictures_take_any_study() -> None:
    from PIL import Image

    for ratios in ((), (None,), (1.0,), (None, 0.5, 170.0), [2 - n / 500 for n in range(300)]):
        result = study(*ratios)
        figures = draw(result, importance(result))
        assert "convergence" in figures
        for figure in figures.values():
            with Image.open(BytesIO(to_png(figure))) as picture:
                picture.load()
                assert picture.format == "PNG"
