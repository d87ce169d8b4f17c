"""Which study a search goes on with."""

import logging

import pytest

from tilescout.search.studies.study_store import resumed


def test_a_search_that_has_nothing_to_go_on_with_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tilescout"):
        assert resumed(["search-s0", "search-s0-2"], "search-s0", resume=True) == "search-s0-2"
        assert not caplog.messages
        assert resumed(["search-s0"], "search-s1", resume=True) == "search-s1"
    assert caplog.messages == ["there is no study search-s1 to go on with: it begins"]
