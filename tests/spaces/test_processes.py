"""Processes that are started belong to the one that starts them."""

import signal
from concurrent.futures import ProcessPoolExecutor

import pytest

from tilescout.spaces.processes import context_for, spawn_context


def test_a_process_that_is_spawned_never_sees_ctrl_c_and_so_prints_no_traceback_while_it_imports() -> None:
    here = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with ProcessPoolExecutor(1, mp_context=spawn_context()) as pool:
        there = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
    assert signal.SIGINT in there
    assert signal.SIGINT not in here
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == here


@pytest.mark.parametrize(("work", "imports"), [(len, False), (["text", 1.5], False), (lambda: None, True)])
def test_processes_import_the_script_that_runs_only_for_work_that_may_be_of_it(work: object, imports: bool) -> None:
    assert vars(context_for(work).Process)["imports_main"] is imports
