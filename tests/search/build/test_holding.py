"""A session that is held ahead: it has its device, goes to whoever needs just that, and is in nobody else's way."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from tilescout.search.build import early, holding, standby
from tilescout.search.build.holding import hold, hold_session, measuring_session
from tilescout.search.build.standby import Session, connection_to, place_here, running
from tilescout.search.build.standing import fork_group
from tilescout.search.measure.process import MeasuringProcess

pytestmark = pytest.mark.skipif(not standby.can_stand_by(), reason="needs Linux")

REQUEST = {"device": "a device"}


def held_processes() -> list[int]:
    return [each.pid for each in running() if each.what.startswith("measure on")]


def wait_until(found: Callable[[], object], seconds: float = 30.0) -> None:
    ends = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def state_of(pid: int) -> str:
    """The letter that Linux has for the state of a process; none of one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.fixture
def place(own_standing: Path) -> Path:
    """Where a session is held, for this test alone."""
    found = holding._place()
    assert found.is_relative_to(own_standing)
    return found


def echo() -> standby.Do:
    """Get ready for a session that tells its parent's number, and then does what it is told."""

    def session(connection: Connection, request: Mapping[str, Any]) -> None:
        connection.send_bytes(str(os.getppid()).encode())
        asked = connection.recv_bytes().decode()
        if asked == "crash":
            os.kill(os.getpid(), signal.SIGUSR2)
        os._exit(int(asked))

    return session


@pytest.fixture
def holder(place: Path) -> int:
    """A process that holds such a session for a minute."""
    pid = fork_group(partial(hold, place, mine(), echo))
    wait_until(lambda: place.exists() and standby.answers(place))
    return pid


def here() -> dict[str, Any]:
    """The circumstances of this process, without the variable that pytest sets anew for each part of a test."""
    found = place_here()
    del found["environment"]["PYTEST_CURRENT_TEST"]
    return found


def mine() -> str:
    """The circumstances that the session is made ready for."""
    return holding.circumstances(REQUEST["device"], here())


def taken() -> Session | None:
    """The session that is held, if it is given here."""
    with TemporaryFile() as log:
        return holding._held(REQUEST, log.fileno(), here())


def test_a_measuring_process_that_is_held_has_its_device_already_and_goes_to_one(own_standing: Path):
    hold_session("cpu", place_here())
    wait_until(held_processes)
    [pid] = held_processes()
    with MeasuringProcess("cpu", 60.0, standby=True) as process:
        assert process.describe()["name"]
        assert process._child is not None
        assert isinstance(process._child.process, Session)
        assert standby.peer_of(process._child.process._control)[0] == parent_of(pid)
        wait_until(lambda: not held_processes())
        with MeasuringProcess("cpu", 60.0, standby=True) as other:
            assert other.describe() == process.describe()
            assert os.path.exists(f"/proc/{pid}")
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))


def test_the_next_command_has_it_though_this_one_has_changed_its_environment(
    own_standing: Path, monkeypatch: pytest.MonkeyPatch
):
    early.begin("cpu")
    session, log = early.taken("cpu") or pytest.fail("no session")
    with monkeypatch.context() as patch:
        patch.setenv("SET_BY_AN_IMPORT", "1")
        early.hold_for_next()
    wait_until(held_processes)
    session.kill()
    session.connection.close()
    log.close()
    [pid] = held_processes()
    early.begin("cpu")
    session, log = early.taken("cpu") or pytest.fail("no session")
    assert standby.peer_of(session._control)[0] == parent_of(pid)
    session.kill()
    session.connection.close()
    log.close()
    early._places.clear()


def test_who_waits_knows_no_variable_but_what_imports_and_gpus_read(
    own_standing: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[Mapping[str, Any]] = []
    monkeypatch.setattr(holding, "open_session", lambda *_, place: asked.append(place))
    for name in ("A_TOKEN", "CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "NVIDIA_API_KEY", "TORCH_LOGS"):
        monkeypatch.setenv(name, "a text")
    with contextlib.suppress(AttributeError):  # what is asked for here is no session
        hold_session("cpu", place_here())
    [place] = asked
    told = {name for name, text in place["environment"].items() if text == "a text"}
    assert told == {"CUBLAS_WORKSPACE_CONFIG", "CUDA_VISIBLE_DEVICES", "TORCH_LOGS"}
    assert {**place, "environment": None} == {**place_here(), "environment": None}


def test_nothing_is_held_where_nothing_was_asked_for_early(own_standing: Path):
    early.hold_for_next()
    assert not own_standing.exists()


def test_one_is_held_at_most(own_standing: Path):
    for _ in range(3):
        hold_session("cpu", place_here())
        wait_until(held_processes)
    assert len(held_processes()) == 1


def test_one_for_another_device_ends_and_a_new_session_is_forked(own_standing: Path):
    hold_session("cpu", place_here())
    wait_until(held_processes)
    [pid] = held_processes()
    with TemporaryFile() as log:
        session = measuring_session("cpu:0", log.fileno(), place=place_here())
    assert session.connection.poll(30)
    assert b"imported" in session.connection.recv_bytes()  # by one that has no device yet
    wait_until(lambda: not os.path.exists(f"/proc/{pid}"))
    session.kill()
    session.connection.close()


def test_whoever_takes_it_hears_how_it_ended(holder: int):
    session = taken()
    assert session is not None
    assert int(session.connection.recv_bytes()) == holder
    assert session.poll() is None
    session.connection.send_bytes(b"7")
    assert session.wait() == 7
    assert os.waitpid(holder, 0)[1] == 0


def test_whoever_takes_it_hears_of_its_crash(holder: int):
    session = taken()
    assert session is not None
    session.connection.recv_bytes()
    session.connection.send_bytes(b"crash")
    assert session.wait() == -signal.SIGUSR2
    os.waitpid(holder, 0)


@pytest.mark.parametrize("gone", ["killed", "left"])
def test_it_ends_when_whoever_took_it_wants_that_or_is_gone(holder: int, gone: str):
    session = taken()
    assert session is not None
    session.connection.recv_bytes()
    if gone == "killed":
        session.kill()
        assert session.wait() == -signal.SIGKILL
    else:
        session._control.close()
    assert os.waitpid(holder, 0)[1] == 0


def test_whoever_only_looks_or_says_nothing_does_not_have_it(holder: int, place: Path):
    assert standby.answers(place)
    connection_to(place).close()
    session = taken()
    assert session is not None
    session.kill()
    os.waitpid(holder, 0)


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setenv("CUDA_VISIBLE_DEVICES", "7"),
        lambda patch: patch.setenv("CUBLASLT_WORKSPACE_SIZE", "0"),
        lambda patch: patch.setattr(holding, "ask", partial(ask_for, "another device")),
    ],
)
def test_one_that_was_made_ready_for_something_else_is_not_given_and_ends(
    holder: int, place: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[pytest.MonkeyPatch], None]
):
    change(monkeypatch)
    assert taken() is None
    assert os.waitpid(holder, 0)[1] == 0
    assert not place.exists()


def ask_for(device: str, control: socket.socket, request: Mapping[str, Any], *others: Any) -> Session:
    return standby.ask(control, {**request, "device": device}, *others)


def test_the_folder_and_the_shell_s_own_variables_may_differ(
    holder: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLDPWD", "/")
    monkeypatch.setenv("SHLVL", "9")
    session = taken()
    assert session is not None
    session.kill()
    os.waitpid(holder, 0)


def test_nobody_who_comes_has_it_end(place: Path):
    pid = fork_group(partial(hold, place, mine(), echo, seconds=0.3))
    assert os.waitpid(pid, 0)[1] == 0
    assert not place.exists()
    assert taken() is None


def test_nothing_is_held_where_the_device_is_not_to_be_had(place: Path):
    def refuse() -> None:
        return None

    pid = fork_group(partial(hold, place, mine(), refuse))
    assert os.waitpid(pid, 0)[1] == 0
    assert not place.exists()


def test_it_ends_with_the_one_that_holds_it(holder: int, place: Path):
    wait_until(held_processes)
    [pid] = held_processes()
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    wait_until(lambda: state_of(pid) in ("", "Z"))  # nobody may be there who hears of its end
    assert taken() is None
