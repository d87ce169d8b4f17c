"""The plan of a campaign: samples that show every value, restrictions, and where each configuration is legal."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.search.campaigns.plan import Plan, make_plan
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.subspace import parse_restrictions
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")
DEVICE = DEVICES["h200"]
PROBLEMS = (GemmProblem(1000, 1000, 1000), GemmProblem(16, 4096, 4096))
SPACES = [TEMPLATE.space(problem, DEVICE) for problem in PROBLEMS]
DEFAULTS = [TEMPLATE.default(problem, DEVICE) for problem in PROBLEMS]


def values_of(spaces: Sequence[SearchSpace], axis: int) -> set[object]:
    return {spaces[0].knobs[axis].values[code] for space in spaces for code in np.unique(space.codes[:, axis])}


def plan_of(sample: int | None, seed: int = 0, *only: str) -> Plan:
    return make_plan(SPACES, DEFAULTS, sample, seed, parse_restrictions(only, TEMPLATE.knobs) if only else None)


@pytest.mark.slow
@settings(max_examples=15)
@given(sample=st.integers(1, 400), seed=st.integers(0, 2**32 - 1))
def test_a_sample_has_every_value_of_every_knob_and_every_default(sample: int, seed: int) -> None:
    plan = plan_of(sample, seed)
    for axis, knob in enumerate(SPACES[0].knobs):
        assert {configuration[knob.name] for configuration in plan.configurations} == values_of(SPACES, axis), knob.name
    assert set(DEFAULTS) <= set(plan.configurations)
    assert len(set(plan.configurations)) == len(plan.configurations)
    if sample >= 100:
        assert len(plan.configurations) == sample


def test_every_configuration_is_measured_where_it_is_legal_and_only_there() -> None:
    plan = plan_of(200)
    for space, legal in zip(SPACES, plan.legal, strict=True):
        assert [configuration in space for configuration in plan.configurations] == legal.tolist()
    assert plan.legal.any(axis=0).all()
    assert plan.rows == plan.legal.sum()


def test_a_seed_decides() -> None:
    assert plan_of(150, 1).digest == plan_of(150, 1).digest
    assert plan_of(150, 1).digest != plan_of(150, 2).digest


def test_an_exhaustive_plan_of_some_values_has_all_that_have_them_and_the_defaults() -> None:
    plan = plan_of(None, 0, "tile_m=128", "tile_k=64", "schedule=pingpong")
    for space, legal in zip(SPACES, plan.legal, strict=True):
        columns = space.columns
        wanted = (columns["tile_m"] == 128) & (columns["tile_k"] == 64) & (columns["schedule"] == "pingpong")
        outside = sum(not wanted[space.index(default)] for default in set(DEFAULTS) if default in space)
        assert legal.sum() == wanted.sum() + outside
    assert "tile_m 128" in plan.how


def test_given_configurations_are_among_the_sample_and_counted_in() -> None:
    given = [SPACES[0][index] for index in range(0, 40_000, 1_000)]
    plan = make_plan(SPACES, DEFAULTS, 150, 0, also=given)
    assert set(given) <= set(plan.configurations)
    assert len(plan.configurations) == 150
    assert "40 given ones" in plan.how


def test_a_plan_of_nothing_is_refused() -> None:
    with pytest.raises(SpaceError, match="no legal configuration is in schedule pingpong; warp_groups 1"):
        plan_of(10, 0, "schedule=pingpong", "warp_groups=1")


@pytest.mark.parametrize("sample", [5, None])
def test_a_space_without_its_default_has_a_plan_that_says_so(sample: int | None) -> None:
    space = SPACES[0].subset([at for at in range(0, len(SPACES[0]), 97) if SPACES[0][at] != DEFAULTS[0]])
    plan = make_plan([space], DEFAULTS[:1], sample, 0)
    assert DEFAULTS[0] not in plan.configurations
    assert 5 <= plan.rows == len(plan.configurations) <= len(space)
    assert plan.how.endswith("every legal default among them, each on every problem for which it is legal")


def test_what_is_given_for_single_problems_is_measured_on_these_alone() -> None:
    both = [each for each in (SPACES[0][at] for at in range(0, len(SPACES[0]), 1501)) if each in SPACES[1]]
    own = [
        both[:3],
        [*both[2:4], next(each for each in map(SPACES[0].__getitem__, range(len(SPACES[0]))) if each not in SPACES[1])],
    ]
    plan = make_plan(SPACES, DEFAULTS, 1, 0, parse_restrictions(("split_k=1",), TEMPLATE.knobs), own=own)
    without = make_plan(SPACES, DEFAULTS, 1, 0, parse_restrictions(("split_k=1",), TEMPLATE.knobs))
    others = set(both[:4]) - set(without.configurations)
    assert len(others) >= 3
    assert set(plan.configurations) == set(without.configurations) | others
    for problem, legal in enumerate(plan.legal):
        measured = {each for each, is_legal in zip(plan.configurations, legal, strict=True) if is_legal}
        of_all = {
            each for each, is_legal in zip(without.configurations, without.legal[problem], strict=True) if is_legal
        }
        assert measured == of_all | (set(own[problem]) & others)
    assert "6 given for single problems and" in plan.how
    assert plan.how.endswith(
        "those for single problems on these, each other one on every problem for which it is legal"
    )
