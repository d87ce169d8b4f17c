"""A session that is asked for early: it is taken once, by whoever measures on that device."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilescout.search.build import early
from tilescout.search.build.standby import can_stand_by, running
from tilescout.search.measure.process import MeasuringProcess
from tilescout.spaces.processes import find_modules_in

pytestmark = pytest.mark.skipif(not can_stand_by(), reason="nothing stands by on this system")


@pytest.fixture(scope="module", autouse=True)
def own_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Processes that stand by for these tests alone, and end with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("standing")))
        yield
        early._places.clear()
        for each in running():
            os.kill(each.pid, signal.SIGTERM)


def test_what_measures_takes_over_the_session_that_was_asked_for_early():
    early.begin("cpu")
    begun = early._begun["cpu"]
    with MeasuringProcess("cpu", 60.0, standby=True) as process:
        assert process.describe()["name"]
        assert process._child is not None
        assert process._child.process is begun.session
        assert process.starts == 1


def test_a_session_is_given_to_one_alone():
    early.begin("cpu")
    session, log = early.taken("cpu") or pytest.fail("no session")
    assert early.taken("cpu") is None
    session.kill()
    assert session.wait() == -signal.SIGKILL
    session.connection.close()
    log.close()


def test_a_session_that_would_not_find_a_template_of_ones_own_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("sys.meta_path", [*sys.meta_path])
    early.begin("cpu")
    begun = early._begun["cpu"]
    begun.join()
    find_modules_in(str(tmp_path))
    assert early.taken("cpu") is None
    assert begun.session is not None
    assert begun.session.connection.closed
    assert begun.log is not None
    assert begun.log.closed
    # It is killed, or finds before that that nobody is there any more, as it reads or as it writes.
    assert begun.session.wait() in (-signal.SIGKILL, 0, 1)


def test_there_is_none_where_none_was_asked_for():
    assert early.taken("cpu") is None
