"""Work that several wait for: each may give it up, and it ends when all have."""

from concurrent.futures import Future

import pytest

from tilescout.search.build.waiting import Shared


def shared(waiting: int) -> "tuple[Future[int], Shared[int], list[Future[int]]]":
    work: Future[int] = Future()
    both = Shared(work)
    futures = [both.wait() for _ in range(waiting)]
    return work, both, [future for future in futures if future is not None]


def test_all_that_wait_get_the_result_and_one_that_gives_up_takes_it_from_nobody() -> None:
    work, both, (first, second) = shared(2)

    assert first.cancel()
    assert not work.cancelled()
    work.set_result(3)

    assert second.result(0) == 3
    late = both.wait()
    assert late is not None
    assert late.result(0) == 3


def test_an_error_reaches_all() -> None:
    work, _, futures = shared(2)
    work.set_exception(ValueError("no"))

    for future in futures:
        with pytest.raises(ValueError, match="no"):
            future.result(0)


def test_work_that_nobody_waits_for_is_cancelled_and_can_not_be_joined() -> None:
    work, both, futures = shared(2)
    for future in futures:
        future.cancel()

    assert work.cancelled()
    assert both.wait() is None


def test_work_that_is_cancelled_cancels_all() -> None:
    work, _, futures = shared(2)
    work.cancel()

    assert all(future.cancelled() for future in futures)
