"""Work that is spread over all cores, a process each."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from tilescout.experiments.progress import progress_bar
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.processes import context_for

if TYPE_CHECKING:
    from pebble import ProcessPool

Result = TypeVar("Result")


class ProcessesError(TilescoutError):
    """Processes that share work can't be started, or one of them ended before its work was done."""


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

    Raises
    ------
    ProcessesError
        If a process can't be started, or ends before its call does, as where the system kills it for its memory.
    """
    from pebble import ProcessExpired, ProcessPool

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
                futures = [scheduled(pool, function, one) for one in arguments]
                for future in as_completed(futures):
                    yield future.result()
                    bar.advance(task)
            except BaseException as error:
                pool.stop()
                if isinstance(error, ProcessExpired):
                    raise ProcessesError(
                        f"a process ended with exit code {error.exitcode} before its work was done: if memory is "
                        "short, run fewer at a time"
                    ) from error
                if isinstance(error, BrokenProcessPool):
                    raise no_room(error) from error
                raise


def scheduled(
    pool: "ProcessPool", function: Callable[..., Result], arguments: Sequence[Any], timeout: float | None = None
) -> "Future[Result]":
    """Have a process of a pool call a function, for so many seconds at most.

    Raises
    ------
    ProcessesError
        If the processes can't be started.
    """
    try:
        return pool.schedule(function, args=arguments, timeout=timeout)
    except (RuntimeError, OSError) as error:  # `BrokenProcessPool` is a RuntimeError
        raise no_room(error) from error


def no_room(error: Exception) -> ProcessesError:
    """The error of a pool whose processes, or one in place of one that ended, can't be started."""
    why = error.__cause__ or error
    told = (why.strerror if isinstance(why, OSError) else None) or one_line(why)
    return ProcessesError(f"can't start the processes that share the work: {told}; run fewer at a time")


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
