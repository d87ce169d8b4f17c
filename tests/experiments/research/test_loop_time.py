"""The processor time of a search: it ends by itself, from an empty store and from a full one."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_problem_is_searched_from_both_stores_in_both_spaces(study: Callable[..., None], tmp_path: Path) -> None:
    out = tmp_path / "loop.json"
    study("loop-time", "--problem", "64x256x512:bf16", "--repeats", "1", "--out", str(out))
    found = json.loads(out.read_text())["result"]["searches"]
    assert [each["stocked"] for each in found] == [False, True]
    assert all(each["trials"] >= 10 and each["cpu_seconds"] > 0 for each in found)
