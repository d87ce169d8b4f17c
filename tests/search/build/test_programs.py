"""Programs that are run by a process that stands by: as if they had been started, and with what was imported."""

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tilescout.search.build import standby
from tilescout.search.build.programs import is_ordinary, program
from tilescout.search.build.standby import Do, running
from tilescout.spaces.processes import safe_environment

pytestmark = pytest.mark.skipif(not standby.can_stand_by(), reason="needs Linux")

HERE = str(Path(__file__).parents[__name__.count(".")])  # where this module is found

CALLER = f"""
import sys
from tilescout.search.build.programs import run_ready
from tilescout.search.build.standby import Standby, wake

PROGRAM = Standby("{__name__}:ready")
if sys.argv[1:] == ["wake"]:
    sys.exit(wake(PROGRAM))
code = run_ready(PROGRAM, sys.argv, heeds=True)
sys.exit("nothing was run" if code is None else code)
"""


def ready() -> Do:
    """Get ready to stand by for `main`."""
    return program(main)


def main() -> None:
    """The program: tell what it knows, wait for ever, hear of Ctrl-C at its end, or crash."""
    match sys.argv[1:]:
        case ["tell", *_]:
            atexit.register(print, "at its end")
            known = {"arguments": sys.argv, "said": sys.stdin.read(), "folder": os.getcwd()}
            print(json.dumps({**known, "variable": os.environ.get("OF_THE_CALLER")}))
            print("µ", file=sys.stderr)
            sys.exit(7)
        case ["wait"]:
            try:
                print(os.getpid(), flush=True)
                time.sleep(60)
            except KeyboardInterrupt:
                sys.exit("interrupted")
        case ["end"]:
            atexit.register(os.kill, os.getpid(), signal.SIGINT)
            sys.exit(7)
        case ["crash"]:
            os.kill(os.getpid(), signal.SIGSEGV)


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path, own_standing: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """A function: start the small program that calls the other, for which a process is ready unless nobody woke it."""
    script = tmp_path / "caller.py"
    script.write_text(CALLER)
    monkeypatch.setenv("PYTHONPATH", HERE)

    def start(*arguments: str, options: Sequence[str] = ("-P",), wakes: bool = True) -> "subprocess.Popen[str]":
        command = [sys.executable, *options, str(script)]
        if wakes and not running():
            subprocess.run([*command, "wake"], check=True, env=safe_environment())
            deadline = time.monotonic() + 60
            while not running() and time.monotonic() < deadline:
                time.sleep(0.05)
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*command, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=safe_environment()
        )

    return start


def waiting(process: "subprocess.Popen[str]") -> int:
    """The number of the session of a process that has begun to wait."""
    assert process.stdout is not None
    return int(process.stdout.readline())


def state_of(number: int) -> str:
    """The state of a process as the kernel tells it; empty where there is none."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def becomes(number: int, *states: str) -> bool:
    """Whether a process gets into one of some states soon."""
    deadline = time.monotonic() + 30
    while state_of(number) not in states and time.monotonic() < deadline:
        time.sleep(0.02)
    return state_of(number) in states


def test_a_program_has_the_arguments_streams_folder_and_environment_of_its_caller(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_CALLER", "its own")
    monkeypatch.chdir(tmp_path)
    called = start("tell", "me")
    printed, warned = called.communicate("from the standard input")

    told, at_end = printed.splitlines()
    assert json.loads(told) == {
        "arguments": [str(tmp_path / "caller.py"), "tell", "me"],
        "said": "from the standard input",
        "folder": str(tmp_path),
        "variable": "its own",
    }
    assert (at_end, warned, called.returncode) == ("at its end", "µ\n", 7)


def test_a_program_that_crashes_is_told_as_a_shell_tells_it(start: Start) -> None:
    called = start("crash")
    called.communicate()
    assert called.returncode == 128 + signal.SIGSEGV


def test_ctrl_c_reaches_the_program(start: Start) -> None:
    called = start("wait")
    waiting(called)
    called.send_signal(signal.SIGINT)
    assert called.communicate(timeout=30)[1] == "interrupted\n"
    assert called.returncode == 1


def test_a_program_stops_and_goes_on_with_its_caller(start: Start) -> None:
    called = start("wait")
    session = waiting(called)
    called.send_signal(signal.SIGTSTP)
    assert becomes(session, "T")
    assert becomes(called.pid, "T")
    called.send_signal(signal.SIGCONT)
    assert becomes(session, "S", "R")
    called.kill()
    called.communicate()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_program_ends_with_its_caller(start: Start, ending: signal.Signals) -> None:
    called = start("wait")
    session = waiting(called)
    called.send_signal(ending)
    called.communicate()
    assert becomes(session, "")


def test_nothing_is_run_and_nothing_started_where_no_process_is_ready(start: Start) -> None:
    called = start("tell", wakes=False)
    assert called.communicate() == ("", "nothing was run\n")
    assert running() == []


def test_nothing_is_run_for_a_caller_that_has_options_of_python(start: Start) -> None:
    called = start("tell", options=("-P", "-W", "error"))
    assert called.communicate() == ("", "nothing was run\n")


def test_nothing_is_run_without_a_standard_stream(start: Start, tmp_path: Path) -> None:
    start("crash").communicate()  # a process is ready
    command = [sys.executable, "-P", str(tmp_path / "caller.py"), "tell"]
    done = subprocess.run(
        ["bash", "-c", '"$@" <&-', "bash", *command], capture_output=True, text=True, env=safe_environment()
    )
    assert (done.stdout, done.stderr) == ("", "nothing was run\n")


def test_nothing_is_run_with_a_file_that_the_caller_alone_has_open(start: Start) -> None:
    called = start("tell", "/dev/fd/63")
    assert called.communicate() == ("", "nothing was run\n")


@pytest.mark.parametrize(
    ("command", "ordinary"),
    [
        ("python /bin/tilescout tune x", True),
        ("python -P -m tilescout.experiments tune x", True),
        ("python -m tilescout.experiments tune x", True),
        ("python -O -m tilescout.experiments tune x", False),
        ("python -m pdb /bin/tilescout tune x", False),
        ("python /bin/coverage run /bin/tilescout tune x", False),
        ("python -m coverage run -m tilescout.experiments tune x", False),
        ("python -c code tune x", False),
    ],
)
def test_a_command_is_ordinary_if_python_runs_nothing_around_it(command: str, ordinary: bool) -> None:
    assert is_ordinary(command.split(), 3) is ordinary


def test_ctrl_c_at_the_end_of_a_program_shows_no_traceback(start: Start) -> None:
    called = start("end")
    assert called.communicate() == ("", "")
    assert called.returncode == 128 + signal.SIGINT
