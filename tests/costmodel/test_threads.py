"""Linear algebra on one thread."""

import subprocess
import sys
from threading import Event, Thread

import pytest
from threadpoolctl import ThreadpoolController, threadpool_limits

from tilescout.costmodel.threads import one_thread


def counts() -> set[int]:
    return {library["num_threads"] for library in ThreadpoolController().select(user_api="blas").info()}


def test_the_number_of_threads_is_one_inside_and_what_it_was_behind_it() -> None:
    with one_thread():  # the first loads what brings a library of its own
        pass
    with threadpool_limits(2, user_api="blas"):
        with one_thread():
            with one_thread():
                assert counts() == {1}
            assert counts() == {1}
        assert counts() == {2}


def test_an_error_inside_leaves_the_number_as_it_was() -> None:
    with one_thread():
        pass
    with threadpool_limits(2, user_api="blas"):
        with pytest.raises(ValueError, match="inside"), one_thread():
            raise ValueError("inside")
        assert counts() == {2}


def test_threads_that_come_and_go_leave_the_number_as_it_was() -> None:
    is_in, other_is_out = Event(), Event()
    meanwhile: list[set[int]] = []

    def last() -> None:
        with one_thread():
            is_in.set()
            other_is_out.wait(9)
            meanwhile.append(counts())

    with one_thread():
        pass
    with threadpool_limits(2, user_api="blas"):
        other = Thread(target=last)
        with one_thread():
            other.start()
            is_in.wait(9)
        other_is_out.set()
        other.join()
        assert (meanwhile, counts()) == ([{1}], {2})


def test_a_library_that_is_imported_inside_computes_on_one_thread_too() -> None:
    code = """
from threadpoolctl import ThreadpoolController
from tilescout.costmodel.threads import one_thread
def counts():
    return [each["num_threads"] for each in ThreadpoolController().select(user_api="blas").info()]
with one_thread():
    before = counts()
    import scipy.linalg
    with one_thread():
        inside = counts()
assert len(inside) > len(before) and set(inside) == {1}, (before, inside)
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True)
