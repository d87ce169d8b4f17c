"""Knobs and configurations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.errors import SpaceError
from tilescout.spaces.knobs import Configuration, Knob, Value

values = st.integers(-100, 100) | st.text("abcdef", min_size=1, max_size=4)
mappings = st.dictionaries(st.text("klmn_", min_size=1, max_size=5), values, max_size=5)


@given(st.lists(values, min_size=1, max_size=6, unique_by=str))
def test_every_value_is_read_back_from_its_print_and_has_its_position(allowed: list[Value]) -> None:
    knob = Knob("knob", tuple(allowed), "")

    for position, value in enumerate(allowed):
        assert knob.code(value) == position
        assert knob.parse(str(value)) == value


@given(st.lists(values, min_size=1, max_size=6), values)
def test_any_other_value_is_refused_with_those_allowed(allowed: list[Value], value: Value) -> None:
    knob = Knob("knob", tuple(allowed), "")
    if value not in allowed:
        with pytest.raises(SpaceError, match=r"knob knob can't be .*, allowed are ") as refusal:
            knob.code(value)
        assert str(refusal.value).endswith(", ".join(map(str, allowed)))
    if str(value) not in map(str, allowed):
        with pytest.raises(SpaceError, match="knob knob can't be"):
            knob.parse(str(value))


def test_a_text_that_prints_as_a_number_that_is_allowed_is_told_apart_from_it() -> None:
    with pytest.raises(SpaceError, match=r"^knob warps can't be '4', allowed are 1, 2, 4$"):
        Knob("warps", (1, 2, 4), "").code("4")


def test_what_no_value_can_be_is_refused_like_any_other() -> None:
    with pytest.raises(SpaceError, match=r"^knob warps can't be \[4\], allowed are 1, 2, 4$"):
        Knob("warps", (1, 2, 4), "").code([4])  # type: ignore[arg-type]


def test_many_consecutive_numbers_are_told_by_their_ends() -> None:
    assert Knob("knob", tuple(range(1, 65)), "").allowed == "1 to 64"
    assert Knob("knob", tuple(range(4)), "").allowed == "0, 1, 2, 3"
    gap = (*range(20), 64)
    assert Knob("knob", gap, "").allowed == ", ".join(map(str, gap))
    assert Knob("knob", (*range(20), "n"), "").allowed.endswith("19, n")


@given(mappings)
def test_a_configuration_is_the_mapping_it_was_made_of(mapping: dict[str, Value]) -> None:
    configuration = Configuration.of(mapping)

    assert configuration == mapping
    assert dict(configuration) == mapping
    assert list(configuration) == list(mapping)
    assert len(configuration) == len(mapping)
    assert "no such knob" not in configuration
    with pytest.raises(KeyError):
        configuration["no such knob"]


@given(mappings)
def test_the_order_of_knobs_makes_no_other_configuration(mapping: dict[str, Value]) -> None:
    forwards = Configuration.of(mapping)
    backwards = Configuration(tuple(reversed(forwards.pairs)))

    assert forwards == backwards
    assert hash(forwards) == hash(backwards)


@given(mappings, mappings)
def test_configurations_differ_when_a_value_differs(one: dict[str, Value], other: dict[str, Value]) -> None:
    assert (Configuration.of(one) == Configuration.of(other)) == (one == other)


def test_a_configuration_prints_in_its_order() -> None:
    assert str(Configuration.of({"tile_m": 128, "raster": "m"})) == "tile_m=128 raster=m"


@pytest.mark.parametrize("text", ["n" * 201, "n" * 5_000_000])
def test_a_text_so_long_that_arrays_of_it_would_fill_the_memory_is_refused(text: str) -> None:
    for name, allowed in ((text, (1,)), ("knob", ("a", text))):
        with pytest.raises(SpaceError, match=r"a text of [0-9]+ characters, 'n+'…: 200 at most"):
            Knob(name, allowed, "")
    assert Knob("knob", (text[:200],), "").values == (text[:200],)


def test_no_text_of_a_configuration_begins_another_line_where_it_is_printed() -> None:
    configuration = Configuration.of({"flags": "-O3\nbest: forged", "raster": "m\u2028\x1b[2J"})
    assert str(configuration) == r"flags=-O3\nbest: forged raster=m\u2028\x1b[2J"
    with pytest.raises(SpaceError, match=r"a knob is called 'a\\nb': a name is on one line"):
        Knob("a\nb", (1,), "")
