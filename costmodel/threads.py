"""Linear algebra on one thread: matrices of a search are small, and the cores are the compilers'.

On a machine whose cores are all busy, threads of one multiplication wait for one another. 48 proposals over a space of
106,880 configurations took 0.7 s with one thread and 3.8 s with two, on two cores with a load of 5 (2026-11-22).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


@cache
def algebra() -> "ThreadpoolController":
    """The libraries of linear algebra. The first call imports them, which takes a third of a second."""
    import scipy.linalg  # noqa: F401  (it brings a library of its own, which is found only once it is loaded)
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


@contextmanager
def one_thread() -> Iterator[None]:
    """Have NumPy and SciPy multiply and solve on one thread, in the whole process."""
    with algebra().limit(limits=1):
        yield
