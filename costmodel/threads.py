"""The threads of computing: one for linear algebra, several where NumPy goes over all configurations of a space.

Matrices of a search are small, and the cores are the compilers'. On a machine whose cores are all busy, threads of one
multiplication wait for one another. 48 proposals over a space of 106,880 configurations took 0.7 s with one thread and
3.8 s with two, on two cores with a load of 5 (2026-11-22).
"""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


def algebra() -> "ThreadpoolController":
    """The libraries of linear algebra that are loaded: SciPy, whose import takes 0.4 s, brings one of its own."""
    # While another thread imports it, it is among the modules before its library is loaded.
    return _found(hasattr(sys.modules.get("scipy.linalg"), "solve_triangular"))


@cache
def _found(with_scipy: bool) -> "ThreadpoolController":
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


@dataclass
class _Limits:
    """How many are inside now, from whichever threads, and what the last of them takes back, of which libraries."""

    inside: int = 0
    taken_back: dict["ThreadpoolController", Any] = field(default_factory=dict)


_LIMITS, _COUNTING = _Limits(), Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Have NumPy and SciPy multiply and solve on one thread, in the whole process, until nobody is inside any more.

    Searches of several threads come and go: one that took back its own limit would leave another without, and that one
    would leave the limit behind. Who has imported SciPy inside enters once more.
    """
    controller = algebra()
    with _COUNTING:
        if controller not in _LIMITS.taken_back:
            _LIMITS.taken_back[controller] = controller.limit(limits=1)
        _LIMITS.inside += 1
    try:
        yield
    finally:
        with _COUNTING:
            _LIMITS.inside -= 1
            while _LIMITS.taken_back and _LIMITS.inside == 0:
                limited, taken_back = _LIMITS.taken_back.popitem()  # the last first: it found what the others had set
                _disown(limited)  # another thread may have limited it
                taken_back.restore_original_limits()
                _disown(limited)


def _disown(controller: "ThreadpoolController") -> None:
    """Let any thread set the limit again: from 3.8 on, threadpoolctl lets the first one alone."""
    for library in controller.lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)


def in_parts(compute: Callable[[slice], None], rows: int, size: int, most: int | None = None) -> None:
    """Compute something for some rows after others, in several threads: NumPy lets go of the interpreter's lock.

    Parameters
    ----------
    compute
        Called with every part of the rows.
    rows
        How many there are.
    size
        Rows of a part.
    most
        Threads at most; by default one for each core.
    """
    starts = range(0, rows, size)
    threads = max(1, min(len(starts), len(os.sched_getaffinity(0)), most or len(starts)))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda start: compute(slice(start, start + size)), starts))  # raises what one of them raises
