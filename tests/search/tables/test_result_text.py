"""The text of a tuner's results, read entry by entry, is what a JSON parser makes of it as a whole."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.search.tables import result_text
from tilescout.search.tables.result_text import CACHE, KTT, LIST, T4, ResultText

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = st.dictionaries(st.text().filter(lambda key: key not in (CACHE, T4, KTT)), VALUES, max_size=4)


def read(text: str) -> tuple[dict[str, Any], list[Any]]:
    found = ResultText(text)
    entries = [value for _, value in found.entries()]
    found.finish()
    return found.header, entries


@pytest.mark.slow
@given(
    before=MEMBERS,
    after=MEMBERS,
    entries=st.dictionaries(st.text(), VALUES, max_size=5),
    form=st.sampled_from([CACHE, T4, KTT]),
    ascii_=st.booleans(),
    indent=st.sampled_from([None, 0, 2]),
)
def test_all_members_and_entries_are_read(
    before: dict[str, Any], after: dict[str, Any], entries: dict[str, Any], form: str, ascii_: bool, indent: int | None
) -> None:
    whole = {**before, form: entries if form == CACHE else list(entries.values()), **after}
    text = json.dumps(whole, ensure_ascii=ascii_, indent=indent)
    found, each = read(text)
    assert each == list(entries.values())
    assert ResultText(text).form == form
    keys = {json.dumps(key, ensure_ascii=ascii_)[1:-1]: value for key, value in whole.items() if key != form}
    assert found == keys
    listed = json.dumps(list(entries.values()), ensure_ascii=ascii_, indent=indent)
    assert ResultText(listed).form == LIST
    assert read(listed) == ({}, list(entries.values()))


def test_entries_are_read_twice_where_that_is_asked_for() -> None:
    found = ResultText('{"a": 1, "cache": {"1": {"t": 1}, "2": {"t": 2}}, "b": 2}')
    assert found.header == {"a": 1}
    assert list(found.entries()) == list(found.entries()) == [("1", {"t": 1}), ("2", {"t": 2})]
    found.finish()
    assert found.header == {"a": 1, "b": 2}


def test_an_unfinished_text_is_read_as_far_as_it_goes() -> None:
    for end in ("", ",", " ,\n", "}", "}}", "}}\n"):
        assert read('{"tune_params_keys": [], "cache": {"1": {"a": 1},\n"2": {"a": 2}' + end)[1] == [{"a": 1}, {"a": 2}]
    for end in ("", ",", "]", "]\n"):
        assert read('[{"a": 1},\n{"a": 2}' + end)[1] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    "text",
    [
        "", "{", '{"a"', '{"a":', '{"a": 1', '{"cache": [1]}', '{"cache": {"1": {"a": 1', '{"cache": {}} x',
        '{"cache": {"1": {"a" 1}}}', '{"cache": {"1" {}}}', '{"cache": {"1": {} "2": {}}}', '{"cache": {1: {}}}',
        '{"results": {}}', '{"Results": 1}', "[1 2]", "[1] x", "[", "[1, {", '{"a": 1}', "7",
    ],
)  # fmt: skip
def test_what_is_no_result_or_torn_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"results|entries|expected|Expecting|follows|early"):
        read(text)


def test_a_key_that_never_ends_takes_no_memory_for_each_of_its_escapes() -> None:
    text = '{"a": 1, "' + "\\a" * 300_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="expected a key"):
            ResultText(text)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2 * len(text)


@given(key=st.text(max_size=50))
def test_a_key_is_as_long_as_it_may_be_and_no_longer(key: str) -> None:
    key = json.dumps(key)[1:-1]
    start = '{"cache": {"' + "x" * (1 << 16)
    assert read(f'{start[: -len(key) or None]}{key}": 1}}}}') == ({}, [1])
    with pytest.raises(ValueError, match="expected a key"):
        read(f'{start}x{key}": 1}}}}')


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are decoded in parts of 160 characters, of which 40 make the longest value."""
    monkeypatch.setattr(result_text, "LONGEST", 40)
    monkeypatch.setattr(result_text, "_PART", 160)


@pytest.mark.usefixtures("short_parts")
def test_a_long_text_is_decoded_part_by_part() -> None:
    entries = [{"s": "x" * (at % 9), "t": at / 8} for at in range(200)]
    found = ResultText(json.dumps({"a": 1, "results": entries, "b": [2]}))
    assert [value for _, value in found.entries()] == [value for _, value in found.entries()] == entries
    found.finish()
    assert found.header == {"a": 1, "b": [2]}


@pytest.mark.usefixtures("short_parts")
@pytest.mark.parametrize("lead", [0, 30, 100, 150])
@pytest.mark.parametrize("entry", [[1] * 100, [1] * 20, "x" * 100, "x" * 1000, [[["y" * 900]]]])
def test_a_value_that_takes_much_memory_is_refused_wherever_it_stands(entry: Any, lead: int) -> None:
    with pytest.raises(ValueError, match=r"character \d+: a value of more than 40 characters"):
        read(json.dumps([1] * (lead // 3) + [entry] + [1] * 500))
    with pytest.raises(ValueError, match="more than 40 characters"):
        read(json.dumps({f"{at}": 1234567 for at in range(9)} | {"cache": {}}))
    with pytest.raises(ValueError, match="character 4: Expecting value"):
        read("[1, }" + " " * 900)
