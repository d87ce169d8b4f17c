"""Lists of configurations: how they are mapped to what a space holds, and measured from the top."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.experiments.compare import flashinfer, portfolio
from tilescout.experiments.compare.contenders import parse_contender
from tilescout.experiments.compare.quack import ranking
from tilescout.experiments.compare.rankings import find_ranking, places
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.tables.shipped import shipped_tables, template_of
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SamplerError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")
PROBLEM = GemmProblem(4096, 4096, 4096)
SPACE = TEMPLATE.space(PROBLEM, DEVICES["h200"])
DEFAULT = TEMPLATE.default(PROBLEM, DEVICES["h200"])


@settings(max_examples=30)  # of some tens of milliseconds each
@given(indices=st.lists(st.integers(0, len(SPACE) - 1), max_size=5))
def test_what_is_in_the_space_stands_for_itself_once(indices: list[int]) -> None:
    assert places(SPACE, DEFAULT, [SPACE[index] for index in indices]).tolist() == list(dict.fromkeys(indices))


def test_open_knobs_are_those_of_the_default() -> None:
    (place,) = places(SPACE, DEFAULT, [{"raster": DEFAULT["raster"]}])
    assert SPACE[place] == DEFAULT
    (place,) = places(SPACE, DEFAULT, [{"tile_n": 128, "cluster_m": 1}])
    assert SPACE[place] == dict(DEFAULT) | {"tile_n": 128, "cluster_m": 1}


def test_a_number_between_two_values_goes_to_the_nearer() -> None:
    for wanted, nearest in ((198, 192), (204, 208), (1000, 256)):
        (place,) = places(SPACE, DEFAULT, [{"tile_n": wanted}])
        assert SPACE[place]["tile_n"] == nearest


def test_named_knobs_weigh_more_than_all_open_ones_together() -> None:
    # 256x256 with one warp group breaks the rule of registers whatever the other knobs are: one named knob must give.
    wish = {"tile_m": 256, "tile_n": 256, "warp_groups": 1}
    (place,) = places(SPACE, DEFAULT, [wish])
    at = [axis for axis, knob in enumerate(SPACE.knobs) if knob.name in wish]
    target = SPACE.scale(SPACE.code(dict(DEFAULT) | wish))
    named = np.abs(SPACE.features - target)[:, at].sum(axis=1)
    assert named[place] == pytest.approx(named.min())


def test_an_unknown_knob_is_refused() -> None:
    with pytest.raises(SamplerError, match="names the knob 'warps', gemm_sm90 has schedule, warp_groups"):
        places(SPACE, DEFAULT, [{"warps": 4}])


def test_quack_lists_44_different_configurations() -> None:
    wishes = ranking(SPACE, DEFAULT)
    assert len({tuple(sorted(wish.items())) for wish in wishes}) == len(wishes) == 44
    assert wishes[0] == {
        "schedule": "cooperative", "warp_groups": 2, "swap_ab": 0, "tile_m": 256, "tile_n": 128, "split_k": 1,
        "cluster_m": 1, "cluster_n": 2, "swizzle": 8,
    }  # fmt: skip
    assert wishes[1] == {**wishes[0], "swap_ab": 1}
    assert 10 < len(places(SPACE, DEFAULT, wishes)) <= 44


def test_a_file_is_a_ranking_and_its_top_is_measured_in_order(tmp_path: Path) -> None:
    table = Table.read(shipped_tables()[0])
    engine = ReplayEngine(table, template_of(table))
    space = engine.space(PROBLEM)
    wanted = [7, 3, 3, 900, 12]
    path = tmp_path / "list.json"
    path.write_text(json.dumps([dict(space[index]) for index in wanted]))
    for top, expected in ((":top=3", [7, 3, 900]), ("", [7, 3, 900, 12])):
        contender = parse_contender(f"ranking.{path}{top}")
        contender.check()
        assert list(contender.play(engine, PROBLEM, 100, seed=0)) == expected
    assert list(contender.play(engine, PROBLEM, 2, seed=5)) == [7, 3]


@pytest.mark.parametrize(
    ("text", "answer"),
    [("{}", "not a list"), ("[1]", "not a list"), ('[{"a": 0.5}]', "not a list"), ("[", "can't read")],
)
def test_a_file_that_is_no_ranking_is_refused(tmp_path: Path, text: str, answer: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(text)
    with pytest.raises(SamplerError, match=answer):
        find_ranking(str(path))


@given(size=st.integers(1, 10**6))
def test_flashinfer_profiles_at_the_next_of_its_buckets(size: int) -> None:
    found = flashinfer.bucket(size)
    assert size <= found < 2 * size
    assert found - size < 512 or size > 4096
    assert flashinfer.bucket(found) == found
    assert flashinfer.bucket(size + 1) >= found


def test_flashinfer_shares_the_loads_of_large_tiles_alone() -> None:
    wishes = flashinfer.ranking(SPACE, DEFAULT)
    assert 16 < len(places(SPACE, DEFAULT, wishes)) <= len(wishes) == 21
    assert {wish["tile_m"] for wish in wishes if wish["cluster_m"] == 2} == {128}
    assert {wish["tile_n"] for wish in wishes if wish["cluster_n"] == 2} == {128, 256}


def test_the_portfolio_begins_with_the_default_and_names_none_twice() -> None:
    wishes = portfolio.ranking(SPACE, DEFAULT)
    assert wishes[0] == DEFAULT
    assert len({tuple(sorted(wish.items())) for wish in wishes}) == len(wishes) > 100
