"""Processes that work for a command."""

import operator
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tilescout.experiments.compare.play import Case, Run, run_all
from tilescout.experiments.compare.processes import ProcessesError, each

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


@contextmanager
def few_files(free: int) -> Iterator[None]:
    """Let this process open so many files more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
    opened = []
    try:
        with suppress(OSError):
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(free):
            os.close(opened.pop())
        yield
    finally:
        for number in opened:
            os.close(number)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


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


def test_a_process_that_ends_before_its_work_is_done_is_told_in_a_line() -> None:
    with pytest.raises(ProcessesError, match=r"^a process ended with exit code 9 before its work was done: "):
        list(each(os._exit, [(9,), (9,)], 2, "ending"))


@pytest.mark.parametrize("free", [0, 5])
def test_processes_that_can_not_be_started_are_told_in_a_line(free: int) -> None:
    runs = [Run("random", Case("t.parquet", "0" * 64, "1x1x1:bf16"), 1, seed) for seed in range(2)]
    told = r"^can't start the processes that share the work: Too many open files; run fewer at a time$"
    list(each(operator.add, [(1, 2), (3, 4)], 2, "adding"))  # what stays open once processes were started
    with few_files(free), pytest.raises(ProcessesError, match=told):
        list(each(operator.add, [(1, 2), (3, 4)], 2, "adding"))
    with few_files(free), pytest.raises(ProcessesError, match=told):
        list(run_all(runs, 2, 60.0))
