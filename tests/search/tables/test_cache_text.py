"""The text of a cache, read entry by entry, is what a JSON parser makes of it as a whole."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.search.tables.cache_text import read_cache_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = st.dictionaries(st.text().filter(lambda key: key != "cache"), VALUES, max_size=4)


def read(text: str) -> tuple[dict[str, Any], list[Any]]:
    entries: list[Any] = []
    return read_cache_text(text, lambda members: entries.append), entries


@given(
    before=MEMBERS,
    after=MEMBERS,
    entries=st.dictionaries(st.text(), VALUES, max_size=5),
    ascii_=st.booleans(),
    indent=st.sampled_from([None, 0, 2]),
)
def test_all_members_and_entries_are_read(
    before: dict[str, Any], after: dict[str, Any], entries: dict[str, Any], ascii_: bool, indent: int | None
) -> None:
    whole = {**before, "cache": entries, **after}
    found, each = read(json.dumps(whole, ensure_ascii=ascii_, indent=indent))
    assert each == list(entries.values())
    keys = {json.dumps(key, ensure_ascii=ascii_)[1:-1]: value for key, value in whole.items() if key != "cache"}
    assert found == keys


def test_an_unfinished_text_is_read_as_far_as_it_goes() -> None:
    for end in ("", ",", " ,\n", "}", "}}", "}}\n"):
        assert read('{"tune_params_keys": [], "cache": {"1": {"a": 1},\n"2": {"a": 2}' + end)[1] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", '{"a"', '{"a":', '{"a": 1', '{"cache": [1]}', '{"cache": {"1": {"a": 1', '{"cache": {}} x',
        '{"cache": {"1": {"a" 1}}}', '{"cache": {"1" {}}}', '{"cache": {"1": {} "2": {}}}', '{"cache": {1: {}}}',
    ],
)  # fmt: skip
def test_what_is_no_cache_or_torn_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"cache|expected|Expecting|follows|early"):
        read(text)
