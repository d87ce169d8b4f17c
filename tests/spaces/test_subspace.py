"""Sub-spaces: what is in their parts, and files that are none."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Knob
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.subspace import parse_restrictions, read_subspace
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")
SPACE = TEMPLATE.space(GemmProblem(16, 4096, 4096), DEVICES["h200"])


@settings(max_examples=20)
@given(st.data())
def test_a_part_has_what_has_its_values(data: st.DataObject) -> None:
    knobs = data.draw(st.lists(st.sampled_from(SPACE.knobs), unique=True, max_size=4))
    values = {knob.name: data.draw(st.lists(st.sampled_from(knob.values), min_size=1, unique=True)) for knob in knobs}
    part = parse_restrictions([f"{name}={','.join(map(str, wanted))}" for name, wanted in values.items()], SPACE.knobs)
    columns = SPACE.columns
    expected = np.ones(len(SPACE), dtype=bool)
    for name, wanted in values.items():
        expected &= np.isin(columns[name], wanted)
    assert (part.holds(SPACE) == expected).all()


def test_the_largest_legal_value_is_the_last_that_the_rules_allow() -> None:
    deepest = parse_restrictions(["stages=max"], SPACE.knobs).holds(SPACE)
    axis = [knob.name for knob in SPACE.knobs].index("stages")
    one_more = np.eye(len(SPACE.knobs), dtype=np.int64)[axis]
    more_is_legal = np.any([SPACE.find(SPACE.codes + steps * one_more) >= 0 for steps in range(1, 7)], axis=0)
    assert (deepest == ~more_is_legal).all()


def test_a_file_is_the_union_of_its_parts(tmp_path: Path) -> None:
    file = tmp_path / "some.toml"
    file.write_text(
        'about = "some"\n[[part]]\nabout = "few stages"\nstages = [2, 3]\nraster = "m"\n'
        '[[part]]\ntile_k = 64\nstages = "max"\n'
    )
    both = read_subspace(file, SPACE.knobs)
    parts = [
        parse_restrictions(texts, SPACE.knobs) for texts in (["stages=2,3", "raster=m"], ["tile_k=64", "stages=max"])
    ]
    assert (both.holds(SPACE) == (parts[0].holds(SPACE) | parts[1].holds(SPACE))).all()
    assert str(both) == "(stages 2, 3; raster m) or (tile_k 64; stages the largest legal)"


def test_a_part_that_restricts_nothing_is_the_space(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text('[[part]]\nabout = "all"\n')
    assert read_subspace(file, SPACE.knobs).holds(SPACE).all()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("part = [", "can't read"),
        ("[part]\ntile_m = 64", "can't read"),
        ("part = []", "nothing is in it"),
        ("about = 'x'", "one table \\[\\[part\\]\\] or more: 'part' is missing"),
        ("[[parts]]\ntile_m = 64", "unknown key 'parts'"),
        ("[[part]]\ntile = 64", "no knob 'tile'"),
        ("[[part]]\ntile_m = 65", "tile_m can't be 65"),
        ("[[part]]\nraster = 'max'", "raster can't be max"),
        ("[[part]]\nstages = 'max'\ntile_n = 'max'", "only one knob"),
    ],
)
def test_a_file_that_is_no_sub_space_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(SpaceError, match=reason):
        read_subspace(file, SPACE.knobs)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(SpaceError, match=r"nowhere\.toml"):
        read_subspace(Path("nowhere.toml"), SPACE.knobs)


@pytest.mark.parametrize(
    ("text", "reason"), [("tile=1", "no knob 'tile'"), ("tile_m=7", "tile_m can't be 7"), ("tile_m", "not KNOB=VALUE")]
)
def test_a_restriction_to_what_there_is_not_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SpaceError, match=reason):
        parse_restrictions([text], [Knob("tile_m", (64, 128), "rows")])


def test_a_knob_that_is_restricted_twice_is_refused() -> None:
    with pytest.raises(SpaceError, match=r"tile_m is restricted twice: give all its values at once"):
        parse_restrictions(["tile_m=64", "tile_m=128"], [Knob("tile_m", (64, 128), "rows")])


def test_the_largest_value_of_the_only_knob_is_one_configuration() -> None:
    knob = Knob("warps", (1, 4, 2), "rows a block")
    space = SearchSpace("one", (knob,), (), SPACE.problem, SPACE.device)
    assert list(parse_restrictions(["warps=max"], [knob]).holds(space)) == [False, True, False]
