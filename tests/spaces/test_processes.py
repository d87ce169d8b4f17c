"""Processes that are started belong to the one that starts them."""

import signal
from concurrent.futures import ProcessPoolExecutor

from tilescout.spaces.processes import spawn_context


def test_a_process_that_is_spawned_never_sees_ctrl_c_and_so_prints_no_traceback_while_it_imports() -> None:
    here = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with ProcessPoolExecutor(1, mp_context=spawn_context()) as pool:
        there = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
    assert signal.SIGINT in there
    assert signal.SIGINT not in here
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == here
