"""Work that is spread over all cores, a process each."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Any, TypeVar

from tilescout.experiments.progress import progress_bar
from tilescout.spaces.processes import context_for

Result = TypeVar("Result")


def each(
    function: Callable[..., Result], arguments: Sequence[tuple[Any, ...]], processes: int, title: str
) -> Iterator[Result]:
    """Call a function with each of these arguments, and yield the results as calls end, with a progress bar.

    Parameters
    ----------
    function
        A function of a module. It is called in other processes, unless one is enough.
    arguments
        Of each call; anything that can be sent to a process.
    processes
        Calls at a time, each on one core.
    title
        What the progress bar says.
    """
    from pebble import ProcessPool

    if not arguments:
        return
    workers = min(processes, len(arguments))
    with progress_bar() as bar:
        task = bar.add_task(f"{title}, {workers} at a time", total=len(arguments))
        if workers <= 1:
            for one in arguments:
                yield function(*one)
                bar.advance(task)
            return
        context = context_for((function, arguments))
        with ProcessPool(max_workers=workers, context=context, initializer=prepare_process) as pool:
            try:
                futures = [pool.schedule(function, args=one) for one in arguments]
                for future in as_completed(futures):
                    yield future.result()
                    bar.advance(task)
            except BaseException:
                pool.stop()
                raise


def prepare_process() -> None:
    """Give this process one core, and end it with the one that started it.

    Numerical libraries would take all cores, each; and a task may take minutes after nobody waits for it any more.
    """
    Thread(target=_leave_with_parent, daemon=True).start()
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)  # the libraries that are loaded; those that will be read the environment
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
