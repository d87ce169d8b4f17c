"""Processes that stand by: sessions are forked from them, in the environment of who asks, and end with who asked."""

import errno
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tilescout.search.build import standby, standing
from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool, standby_of
from tilescout.search.build.standby import Session, Standby, StandbyError, open_session, running, wake
from tilescout.spaces.devices import find_device
from tilescout.spaces.grouped_pair_sm90 import TEMPLATE as PAIRS
from tilescout.spaces.processes import module_command, safe_environment
from tilescout.spaces.templates import find_template

pytestmark = pytest.mark.skipif(not standby.can_stand_by(), reason="needs Linux")

HERE = str(Path(__file__).parents[__name__.count(".")])  # where this module is found
ENTRY = Standby(f"{__name__}:ready", ("one", "two"))
MORE = Standby(f"{__name__}:ready_for_more")
MORE_SECONDS = 3.0


def ready(*arguments: str) -> Callable[[Connection, Mapping[str, Any]], None]:
    """Get ready to stand by for sessions that answer with all that they know."""

    def session(connection: Connection, request: Mapping[str, Any]) -> None:
        print("hello", flush=True)
        known = {
            "arguments": arguments,
            "request": request,
            "folder": os.getcwd(),
            "standing": os.getppid(),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "cores": sorted(os.sched_getaffinity(0)),
            "state": standby._state(ENTRY),
        }
        connection.send_bytes(json.dumps(known).encode())
        asked = connection.recv_bytes().decode()
        if asked == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        sys.exit(int(asked)) if asked else None

    return session


def ready_for_more() -> standby.Ready:
    """Get ready for sessions that answer with how often what makes later ones faster had been done by then."""
    done: list[float] = []

    def session(connection: Connection, request: Mapping[str, Any]) -> None:
        connection.send_bytes(json.dumps(done).encode())
        connection.recv_bytes()

    def more() -> None:
        time.sleep(MORE_SECONDS)
        done.append(time.monotonic())
        raise OSError("no space is left for a temporary file")

    return session, more


@pytest.fixture
def place(own_standing: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the sockets, for processes of this test alone, which find this module."""
    monkeypatch.syspath_prepend(HERE)
    return own_standing


def told(session: Session) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(session.connection.recv_bytes())
    return found


def test_a_session_runs_where_and_with_what_its_caller_does(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = tmp_path / "printed"
    with printed.open("wb") as output:
        first = open_session(ENTRY, {"x": 1}, output.fileno())
    known = told(first)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.chdir(tmp_path)
    again = told(open_session(ENTRY, {}))

    assert known["arguments"] == ["one", "two"]
    assert known["request"] == {"x": 1, "host": os.getpid()}
    assert known["cores"] == sorted(os.sched_getaffinity(0))
    assert printed.read_text() == "hello\n"
    assert again["standing"] == known["standing"] == running()[0].pid
    assert again["gpus"] == "7"
    assert again["folder"] == str(tmp_path)


@pytest.mark.parametrize(("asked", "code"), [("", 0), ("3", 3), ("crash", -signal.SIGSEGV)])
def test_a_session_tells_how_it_ended(place: Path, asked: str, code: int) -> None:
    session = open_session(ENTRY, {})
    told(session)

    assert session.poll() is None
    session.connection.send_bytes(asked.encode())

    assert session.wait() == session.poll() == code


def test_what_was_woken_is_what_the_first_session_is_forked_from(place: Path) -> None:
    wake(ENTRY)
    assert len(list(place.glob("*.socket"))) == 1
    standing = told(open_session(ENTRY, {}))["standing"]
    assert [each.pid for each in running()] == [standing]


def test_a_session_is_served_by_the_processes_that_its_caller_is_served_by(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)  # which every session has
    assert told(open_session(ENTRY, {}))["state"] == standby._state(ENTRY)


def test_whoever_has_many_files_open_can_ask_whether_a_session_runs() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    ours, theirs = socket.socketpair()
    connection, other = Pipe()
    try:
        os.dup2(ours.fileno(), 1500)
        session = Session(connection, socket.socket(fileno=1500))
        assert session.poll() is None
        theirs.sendall(standby.ENDED.pack(3))
        assert session.poll() == 3
    finally:
        for each in (ours, theirs, connection, other):
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_session_that_hangs_can_be_killed(place: Path) -> None:
    session = open_session(ENTRY, {})
    told(session)

    session.kill()

    assert session.wait() == -signal.SIGKILL


def test_a_session_ends_with_the_process_that_asked_for_it(place: Path) -> None:
    code = f"""
import os
from tilescout.search.build.standby import Standby, open_session
session = open_session(Standby({ENTRY.entry!r}, {ENTRY.arguments!r}), {{}})
print(session.connection.recv_bytes().decode(), flush=True)
os.kill(os.getpid(), 9)
"""
    environment = {**safe_environment(), "PYTHONPATH": HERE}
    subprocess.run([*module_command("x")[:2], "-c", code], env=environment, stdout=subprocess.PIPE, check=False)
    [standing] = [each.pid for each in running()]
    children = Path(f"/proc/{standing}/task/{standing}/children")

    deadline = time.monotonic() + 60
    while children.read_text().strip() and time.monotonic() < deadline:
        time.sleep(0.01)

    assert not children.read_text().strip()


def test_where_the_process_that_stood_by_was_killed_another_is_started(place: Path) -> None:
    first = open_session(ENTRY, {})
    standing = told(first)["standing"]
    os.kill(standing, signal.SIGKILL)

    assert first.wait() == -signal.SIGKILL
    assert told(open_session(ENTRY, {}))["standing"] != standing
    assert len(list(place.iterdir())) == 2  # its socket and its log


def test_what_one_that_was_killed_left_is_removed_and_what_lies_in_the_place_of_its_files_is_no_hindrance(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_session(ENTRY, {})
    os.kill(told(session)["standing"], signal.SIGKILL)
    session.wait()
    [left] = place.glob("*.socket")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    os.mkfifo(place / f"{standby._state(ENTRY)}.log")

    open_session(ENTRY, {})

    [there] = place.glob("*.socket")
    assert there != left
    assert set(place.iterdir()) == {there, there.with_suffix(".log")}


def test_what_is_read_by_imports_and_what_they_import_decides_which_process_stands_by(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = told(open_session(ENTRY, {}))["standing"]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    second = told(open_session(ENTRY, {}))["standing"]
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    third = told(open_session(ENTRY, {}))["standing"]

    assert len({first, second, third}) == 3


def test_who_may_do_less_is_served_by_another_process(place: Path) -> None:
    asked = (
        "import ctypes\n"
        "from tilescout.search.build.standby import MEASURING, place_of\n"
        "print(place_of(MEASURING))\n"
        "ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS\n"
        "print(place_of(MEASURING))\n"
    )
    command = [sys.executable, "-P", "-c", asked]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env=safe_environment()).stdout
    assert len(set(printed.split())) == 2


def test_what_stands_by_is_found_again_where_results_were_written_beside_modules(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "results").mkdir()
    first = told(open_session(ENTRY, {}))["standing"]
    (tmp_path / "results.json").write_text("{}")
    (tmp_path / "results" / "more.json").write_text("{}")
    assert told(open_session(ENTRY, {}))["standing"] == first
    (tmp_path / "numbers_of_mine.py").write_text("")
    assert told(open_session(ENTRY, {}))["standing"] != first


def test_it_keeps_no_secret_of_the_environment_that_it_was_started_in(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PGPASSWORD", "NVIDIA_API_KEY", "LANGSMITH_API_KEY", "HOMEBREW_GITHUB_API_TOKEN"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    standing = told(open_session(ENTRY, {}))["standing"]

    kept = Path(f"/proc/{standing}/environ").read_bytes().split(b"\0")

    assert b"OMP_NUM_THREADS=3" in kept
    assert b"hunter2" not in b"".join(kept)


def test_whoever_connects_when_there_are_too_many_waits(place: Path) -> None:
    _, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    silent: list[socket.socket] = []
    try:
        standing = told(open_session(ENTRY, {}))["standing"]
        [address] = place.glob("*.socket")
        for _ in range(80):
            silent.append(socket.socket(socket.AF_UNIX))
            silent[-1].connect(str(address))
        waiting = open_session(ENTRY, {})
        listing, deadline = Path(f"/proc/{standing}/task/{standing}/children"), time.monotonic() + 60
        while len(listing.read_text().split()) < 64 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)
        children = listing.read_text().split()
    finally:
        for each in silent:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert len(children) <= 64
    assert told(waiting)["standing"] == standing


@pytest.mark.parametrize("fails", ["fork", "pidfd_open"])
def test_whoever_asks_for_a_session_that_can_not_be_started_hears_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, fails, refuse)
    address = tmp_path / "a.socket"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as asking:
        listener.bind(str(address))
        listener.listen()
        asking.settimeout(20)
        asking.connect(str(address))
        answering = threading.Thread(
            target=standing.stand_by, args=(listener, address, lambda *_: None, 0.1), daemon=True
        )
        answering.start()
        assert asking.recv(1) == b""
        answering.join()


@pytest.mark.parametrize(
    ("does", "code", "told"),
    [
        ("pass", 0, ""),
        ("raise ValueError", 1, "ValueError"),
        ("sys.stdout = Broken()", 0, ""),
        ("sys.stderr = Broken(); raise ValueError", 1, ""),
        ("sys.exit(3)", 3, ""),
    ],
)
def test_a_child_never_goes_on_as_its_parent(does: str, code: int, told: str) -> None:
    program = f"""
import os, sys
from tilescout.search.build.standing import fork_group
class Broken:
    def flush(self):
        raise BrokenPipeError
    def write(self, text):
        raise BrokenPipeError
def do():
    {does}
_, status = os.waitpid(fork_group(do), 0)
print(os.waitstatus_to_exitcode(status))
"""
    command = [*module_command("x")[:2], "-c", program]
    ended = subprocess.run(command, env=dict(safe_environment()), timeout=120, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, f"{code}\n")
    assert ended.stderr.splitlines()[-1:] == ([told] if told else [])


def test_a_process_that_stands_by_ends_when_it_is_not_asked_for(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"""
import socket
from pathlib import Path
from tilescout.search.build.standing import stand_by
listener = socket.socket(socket.AF_UNIX)
listener.bind({str(tmp_path / "a.socket")!r})
listener.listen()
stand_by(listener, Path({str(tmp_path / "a.socket")!r}), lambda *_: None, idle=0.1)
"""
    (tmp_path / "a.log").touch()
    subprocess.run([*module_command("x")[:2], "-c", code], env=dict(safe_environment()), timeout=120, check=True)

    assert not list(tmp_path.iterdir())


def test_what_makes_later_sessions_faster_is_done_once_when_the_first_has_ended_whoever_looked_before(
    place: Path,
) -> None:
    wake(MORE)
    address = next(each for each in place.glob("*.socket"))
    for _ in range(3):
        assert standby.answers(address)
    found, ended = [], []
    for _ in range(3):
        session = open_session(MORE, {})
        found.append(len(json.loads(session.connection.recv_bytes())))
        session.connection.send_bytes(b"")
        begun = time.monotonic()
        assert session.wait() == 0
        ended.append(time.monotonic() - begun)
    assert found == [0, 1, 1]
    assert ended[0] < MORE_SECONDS


def test_one_whose_socket_was_removed_leaves_that_of_the_next_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, begun, file_at = tmp_path / "a.socket", threading.Event(), standing._file_at

    def note(place: Path) -> tuple[int, int] | None:
        found = file_at(place)
        begun.set()
        return found

    monkeypatch.setattr(standing, "_file_at", note)
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.bind(str(address))
        first.listen()
        ending = threading.Thread(target=standing.stand_by, args=(first, address, lambda *_: None, 0.1))
        ending.start()
        assert begun.wait(20)
        address.unlink()
        second.bind(str(address))
        ending.join()
    assert address.exists()


def test_a_process_that_others_look_at_ends_when_it_is_not_asked_for(place: Path, tmp_path: Path) -> None:
    address = tmp_path / "a.socket"
    code = f"""
import socket
from pathlib import Path
from tilescout.search.build.standing import stand_by
listener = socket.socket(socket.AF_UNIX)
listener.bind({str(address)!r})
listener.listen()
stand_by(listener, Path({str(address)!r}), lambda *_: None, idle=1)
"""
    looks = 0
    with subprocess.Popen([*module_command("x")[:2], "-c", code], env=dict(safe_environment())) as standing:
        try:
            deadline = time.monotonic() + 60
            while standing.poll() is None and time.monotonic() < deadline:
                looks += address.exists() and standby.answers(address)
                time.sleep(0.02)
            ended = standing.poll()
        finally:
            standing.kill()

    assert ended == 0
    assert looks > 3
    assert not address.exists()


def test_kernels_of_both_spaces_of_a_product_are_compiled_by_forks_of_one_process(place: Path, tmp_path: Path) -> None:
    options, store = CompileOptions(processes=1), ArtifactStore(tmp_path)
    problem, pools = "256x4096x4096:bf16", list[CompilePool]()
    try:
        for name in ("gemm_sm90", "gemm_streamk_sm90"):
            template = find_template(name)
            parsed = template.parse(problem)
            pools.append(CompilePool(template, parsed.signature, "sm_90a", store, options))
            built = pools[-1].submit(template.default(parsed, find_device("h200"))).result()
            assert isinstance(built, Artifact)
        assert [each.what for each in running()] == ["compile gemm_sm90 sm_90a"]
    finally:
        for pool in pools:
            pool.close()


def test_pairs_of_kernels_are_compiled_by_a_process_that_stands_by_too() -> None:
    pairs = find_template("grouped_pair_sm90")
    ready = standby_of(pairs, "sm_90a")
    assert pairs is PAIRS
    assert ready is not None
    assert ready.arguments == ("grouped_pair_sm90", "sm_90a")


def test_a_folder_that_others_could_open_is_refused(place: Path) -> None:
    place.mkdir(mode=0o755)

    with pytest.raises(StandbyError, match="its user alone"):
        open_session(ENTRY, {})
    assert running() == []


def test_a_link_in_the_place_of_the_folder_is_refused(place: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    place.symlink_to(tmp_path / "elsewhere")

    with pytest.raises(StandbyError, match="its user alone"):
        open_session(ENTRY, {})
    assert not list((tmp_path / "elsewhere").iterdir())


def test_only_its_user_can_open_a_socket(place: Path) -> None:
    told(open_session(ENTRY, {}))

    assert place.stat().st_mode & 0o777 == 0o700
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(str(next(place.glob("*.socket"))))
        assert standby.peer_of(asked)[1] == os.geteuid()


def test_a_relative_runtime_folder_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", ".")
    assert standby._folder() == Path(f"/tmp/tilescout-{os.geteuid()}")
    assert not list(tmp_path.iterdir())
