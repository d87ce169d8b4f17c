"""The ways to start the command line besides the installed script."""

import subprocess
import sys
from importlib.metadata import version

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
