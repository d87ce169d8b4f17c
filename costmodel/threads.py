"""Linear algebra on one thread: matrices of a search are small, and the cores are the compilers'.

On a machine whose cores are all busy, threads of one multiplication wait for one another. 48 proposals over a space of
106,880 configurations took 0.7 s with one thread and 3.8 s with two, on two cores with a load of 5 (2026-11-22).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


@cache
def algebra() -> "ThreadpoolController":
    """The libraries of linear algebra. The first call imports them, which takes a third of a second."""
    import scipy.linalg  # noqa: F401  (it brings a library of its own, which is found only once it is loaded)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


@dataclass
class _Limit:
    """How many are inside now, from whichever threads, and what the last of them takes back."""

    inside: int = 0
    taken_back: Any = None


_LIMIT, _COUNTING = _Limit(), Lock()


@contextmanager
def one_thread() -> Iterator[None]:
    """Have NumPy and SciPy multiply and solve on one thread, in the whole process, until nobody is inside any more.

    Searches of several threads come and go: one that took back its own limit would leave another without, and that one
    would leave the limit behind.
    """
    controller = algebra()
    with _COUNTING:
        if _LIMIT.inside == 0:
            _LIMIT.taken_back = controller.limit(limits=1)
        _LIMIT.inside += 1
    try:
        yield
    finally:
        with _COUNTING:
            _LIMIT.inside -= 1
            if _LIMIT.inside == 0:
                _disown(controller)  # another thread may have limited it
                _LIMIT.taken_back.restore_original_limits()
                _disown(controller)


def _disown(controller: "ThreadpoolController") -> None:
    """Let any thread set the limit again: from 3.8 on, threadpoolctl lets the first one alone."""
    for library in controller.lib_controllers:
        if hasattr(library, "clear_controlling_thread"):
            library.clear_controlling_thread(force=True)
