"""Processes that work for a command."""

import operator
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilescout.experiments.compare.processes import each

ROOT = Path(__file__).parents[3]
LONG = """
import sys
from tilescout.experiments.compare.processes import each
from tests.experiments.compare.test_processes import note_and_sleep

if __name__ == "__main__":
    list(each(note_and_sleep, [(sys.argv[1], 0), (sys.argv[1], 1)], 2, "sleeping"))
"""


def note_and_sleep(folder: str, number: int) -> None:
    Path(folder, f"pid-{number}").write_text(str(os.getpid()))
    time.sleep(600)


def add_and_count_threads(one: int, other: int) -> tuple[int, set[int]]:
    import scipy.optimize  # noqa: F401  (as samplers do, after the process has begun)
    import torch
    from threadpoolctl import threadpool_info

    return one + other, {torch.get_num_threads(), *(library["num_threads"] for library in threadpool_info())}


@pytest.mark.slow
def test_every_call_is_answered_by_one_process_or_several_of_a_core_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)  # as users have it
    monkeypatch.syspath_prepend(str(ROOT))  # the processes import this file
    calls = [(1, 2), (3, 4), (5, 6)]
    assert sorted(each(operator.add, calls, 1, "adding")) == [3, 7, 11]
    answers = list(each(add_and_count_threads, calls, 2, "adding"))
    assert sorted(answer for answer, _ in answers) == [3, 7, 11]
    assert all(threads == {1} for _, threads in answers)


@pytest.mark.slow
def test_processes_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "long.py"
    script.write_text(LONG)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = subprocess.Popen([sys.executable, str(script), str(tmp_path)], env=environment)
    notes = [tmp_path / "pid-0", tmp_path / "pid-1"]
    deadline = time.monotonic() + 120
    while not all(note.exists() and note.read_text() for note in notes):
        assert command.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)

    command.send_signal(signal.SIGKILL)
    command.wait()

    while any(Path("/proc", note.read_text()).exists() for note in notes):
        assert time.monotonic() < deadline, "a process lives on"
        time.sleep(0.1)
