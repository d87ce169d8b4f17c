"""The ways to start the command line besides the installed script."""

import signal
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest


@pytest.mark.parametrize("module", ["tilescout.experiments", "tilescout.experiments.commands.cli"])
def test_the_module_runs_as_the_command_line(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"tilescout, version {version('tilescout')}\n"


def test_the_module_refuses_what_it_does_not_know() -> None:
    command = [sys.executable, "-m", "tilescout.experiments", "tuen"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    said = "no such command 'tuen', did you mean 'tune'?"
    assert done.stderr == f"tilescout: {said}; see `python -m tilescout.experiments --help`\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_shell_closed_leads_nowhere(closed: str) -> None:
    command = [sys.executable, "-m", "tilescout.experiments", "samplers"]
    done = subprocess.run(["bash", "-c", f'"$@" {closed}', "bash", *command], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert ("guided" in done.stdout) == (closed == "2>&-")


@pytest.mark.parametrize("arguments", ["tune gemm_sm90 --problem 512x512x512:bf16", "spaces own:Kernel"])
def test_a_working_directory_that_was_deleted_is_told(tmp_path: Path, arguments: str) -> None:
    script = f'rmdir "{tmp_path}" && exec "{sys.executable}" -P -m tilescout.experiments {arguments}'
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tilescout: the working directory was deleted: run this in another\n"


INTERRUPTED = """
import os, signal, sys
from tilescout.experiments.__main__ import main

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.{handler})
sys.meta_path.insert(0, Interrupting())
sys.argv[1:] = ["--version"]
main()
"""


@pytest.mark.parametrize(("handler", "code"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)])
def test_ctrl_c_while_the_program_is_imported_ends_in_no_traceback(handler: str, code: int) -> None:
    script = INTERRUPTED.format(handler=handler)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")


def test_the_installed_script_starts_there() -> None:
    declared = tomllib.loads((Path(__file__).resolve().parents[3] / "pyproject.toml").read_text())
    assert declared["project"]["scripts"] == {"tilescout": "tilescout.experiments.__main__:main"}


ENDING = """
import atexit, os, signal, sys
from tilescout.experiments.__main__ import main

atexit.register(os.kill, os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.{handler})
sys.argv[1:] = ["--version"]
main()
"""


@pytest.mark.parametrize(("handler", "code"), [("default_int_handler", -signal.SIGINT), ("SIG_IGN", 0)])
def test_ctrl_c_at_the_end_shows_no_traceback(handler: str, code: int) -> None:
    script = ENDING.format(handler=handler)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
