"""The properties of any search space: checked against brute force on random ones, and on the real one."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

PROBLEM = GemmProblem(1000, 104, 72)
H200 = find_device("h200")


@dataclass(frozen=True)
class Rule:
    """A made-up constraint: the weighted positions of the values, modulo something, are not a remainder."""

    knobs: tuple[Knob, ...]
    weights: tuple[int, ...]
    modulus: int
    remainder: int

    def allows(self, codes: tuple[int, ...]) -> bool:
        total = sum(weight * code for weight, code in zip(self.weights, codes, strict=True))
        return total % self.modulus != self.remainder

    def holds(self, columns: Columns, problem: GemmProblem, device: Device) -> Mask:
        assert (problem, device) == (PROBLEM, H200)
        total = np.zeros(len(next(iter(columns.values()))), dtype=np.int64)
        for knob, weight in zip(self.knobs, self.weights, strict=True):
            if weight:  # it is asked before the columns of the other knobs exist
                total += weight * np.array([knob.values.index(value) for value in columns[knob.name]])
        return np.asarray(total % self.modulus != self.remainder)

    def constraint(self, number: int) -> Constraint[GemmProblem]:
        looks_at = tuple(knob.name for knob, weight in zip(self.knobs, self.weights, strict=True) if weight)
        return Constraint(f"rule {number}", f"because of {number}", looks_at, self.holds)


@dataclass(frozen=True)
class Case:
    """A space and, found by brute force, the codes of its legal configurations."""

    space: SearchSpace
    rules: tuple[Rule, ...]
    legal: tuple[tuple[int, ...], ...]

    @property
    def grid(self) -> list[tuple[int, ...]]:
        return list(itertools.product(*(range(size) for size in self.space.shape)))

    def configuration(self, codes: tuple[int, ...]) -> dict[str, Value]:
        return {knob.name: knob.values[code] for knob, code in zip(self.space.knobs, codes, strict=True)}


@st.composite
def knob_sets(draw: st.DrawFn) -> tuple[Knob, ...]:
    integers = st.lists(st.integers(-8, 300), min_size=1, max_size=5, unique=True)
    words = st.lists(st.text("mnk", min_size=1, max_size=3), min_size=1, max_size=4, unique=True)
    values = draw(st.lists(integers | words, min_size=1, max_size=4))
    return tuple(Knob(f"knob_{axis}", tuple(values), "") for axis, values in enumerate(values))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    knobs = draw(knob_sets())
    weights = st.tuples(*(st.integers(0, 6) for _ in knobs))
    rules = tuple(
        Rule(knobs, draw(weights), modulus := draw(st.integers(2, 7)), draw(st.integers(0, modulus - 1)))
        for _ in range(draw(st.integers(0, 3)))
    )
    grid = itertools.product(*(range(len(knob.values)) for knob in knobs))
    legal = tuple(codes for codes in grid if all(rule.allows(codes) for rule in rules))
    assume(legal)
    constraints: list[Any] = [rule.constraint(number) for number, rule in enumerate(rules)]
    return Case(SearchSpace("invented", knobs, constraints, PROBLEM, H200), rules, legal)


@given(cases())
def test_each_legal_configuration_is_there_once_in_order_and_no_other(case: Case) -> None:
    space = case.space

    assert len(space) == len(case.legal)
    assert [tuple(codes) for codes in space.codes.tolist()] == list(case.legal)
    assert [dict(space[index]) for index in range(len(space))] == list(map(case.configuration, case.legal))
    for name, column in space.columns.items():
        assert column.tolist() == [space[index][name] for index in range(len(space))]


def test_a_rule_is_asked_once_for_each_combination_of_its_knobs_or_of_all_where_it_names_too_few() -> None:
    knobs = tuple(Knob(name, tuple(range(10)), "") for name in "abcd")
    asked: list[int] = []

    def differ(columns: Columns, problem: GemmProblem, device: Device) -> Mask:
        asked.append(len(columns["b"]))
        return np.asarray(columns["b"] != columns["d"])

    named, unnamed = (Constraint("differ", "they differ", looks_at, differ) for looks_at in (("b", "d"), ("d",)))
    one = SearchSpace("invented", knobs, [named], PROBLEM, H200)
    assert asked == [100]
    other = SearchSpace("invented", knobs, [unnamed], PROBLEM, H200)
    assert asked[1:] == [10_000]
    assert np.array_equal(one.codes, other.codes)
    assert len(one) == 9_000


@pytest.mark.slow
@given(cases())
def test_an_index_and_its_configuration_find_each_other(case: Case) -> None:
    space = case.space
    for index, codes in enumerate(case.legal):
        assert space.index(space[index]) == index
        assert space.find(codes) == index
        assert space.code(space[index]).tolist() == list(codes)
        assert space[index] in space


@pytest.mark.slow
@given(cases(), st.data())
def test_codes_that_are_not_in_the_space_are_not_found(case: Case, data: st.DataObject) -> None:
    space = case.space
    around = st.tuples(*(st.integers(-2, size + 2) for size in space.shape))
    asked = data.draw(st.lists(around, min_size=1, max_size=20))

    found = space.find(asked)

    assert found.tolist() == [case.legal.index(codes) if codes in case.legal else -1 for codes in asked]
    assert [space.find(codes) for codes in asked] == found.tolist()


@pytest.mark.slow
@given(cases())
def test_an_illegal_configuration_is_refused_with_the_rules_it_breaks(case: Case) -> None:
    for codes in set(case.grid) - set(case.legal):
        configuration = case.configuration(codes)
        broken = [n for n, rule in enumerate(case.rules) if not rule.allows(codes)]
        assert configuration not in case.space
        assert [rule.name for rule in case.space.violations(configuration)] == [f"rule {n}" for n in broken]
        with pytest.raises(SpaceError, match="not a legal configuration") as refusal:
            case.space.index(configuration)
        for n in range(len(case.rules)):
            assert (f"rule {n}: because of {n}" in str(refusal.value)) == (n in broken)


@given(cases(), st.data())
def test_neighbours_are_the_legal_configurations_one_step_away_in_one_knob(case: Case, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(case.space) - 1))
    differences = np.abs(np.array(case.legal) - case.legal[index])
    expected = np.flatnonzero(differences.sum(axis=1) == 1).tolist()

    assert case.space.neighbours(index).tolist() == expected
    assert all(index in case.space.neighbours(other) for other in expected)


@given(cases(), st.data())
def test_the_nearest_is_nearest(case: Case, data: st.DataObject) -> None:
    space = case.space
    codes = data.draw(st.tuples(*(st.integers(0, size - 1) for size in space.shape)))
    among = data.draw(st.lists(st.integers(0, len(space) - 1), min_size=1, max_size=10))

    def distance(index: int) -> float:
        scales = (max(size - 1, 1) for size in space.shape)
        steps = zip(codes, case.legal[index], scales, strict=True)
        return math.fsum(abs(a - b) / scale for a, b, scale in steps)

    nearest = space.nearest(codes, np.array(among))

    assert nearest in among
    assert distance(nearest) == pytest.approx(min(map(distance, among)))
    if codes in case.legal:
        assert space.nearest(codes, np.arange(len(space))) == space.find(codes)


@pytest.mark.slow
@given(cases())
def test_features_fill_the_unit_cube(case: Case) -> None:
    features = case.space.features

    assert features.shape == (len(case.space), len(case.space.knobs))
    assert features.min() >= 0
    assert features.max() <= 1
    extremes = case.space.scale([[0] * len(case.space.shape), [size - 1 for size in case.space.shape]])
    assert extremes[0].tolist() == [0] * len(case.space.shape)
    assert extremes[1].tolist() == [float(size > 1) for size in case.space.shape]


@pytest.mark.slow
@given(cases(), st.data())
def test_a_subset_is_a_space_of_its_own(case: Case, data: st.DataObject) -> None:
    space = case.space
    assert space.features is not None  # kept by the whole space, it must not leak into the part
    assert space.columns is not None
    chosen = data.draw(st.lists(st.integers(0, len(space) - 1), min_size=1, max_size=10))
    kept = sorted(set(chosen))

    part = space.subset(chosen)

    assert [part[index] for index in range(len(part))] == [space[index] for index in kept]
    assert part.features.tolist() == space.features[kept].tolist()
    assert {name: column.tolist() for name, column in part.columns.items()} == {
        name: column[kept].tolist() for name, column in space.columns.items()
    }
    for index in range(len(space)):
        assert (space[index] in part) == (index in kept)
        if index in kept:
            assert part.index(space[index]) == kept.index(index)
        else:
            with pytest.raises(SpaceError, match="left out of this subset"):
                part.index(space[index])
    assert len(space) == len(case.legal)  # the whole is unchanged


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ([True, False, True], r"takes indices, integers, not bool; `numpy.flatnonzero\(mask\)` gives those of a mask"),
        ([0.5], "takes indices, integers, not float64"),
        ([0, -1], "no configuration has the index -1, allowed are 0 to 2"),
        ([3], "no configuration has the index 3, allowed are 0 to 2"),
        ([], "no legal configuration is left"),
    ],
)
def test_a_subset_of_what_is_no_index_is_refused(given: list[float], why: str) -> None:
    knobs = (Knob("a", (1, 2, 3), ""),)
    space = SearchSpace.of_codes("toy", knobs, [[0], [1], [2]], PROBLEM, H200)
    with pytest.raises(SpaceError, match=why):
        space.subset(given)


@given(cases(), st.integers(0, 20), st.integers(0, 2**32))
def test_a_sample_holds_different_configurations_and_depends_on_the_generator_alone(
    case: Case, count: int, seed: int
) -> None:
    sample = case.space.sample(count, np.random.default_rng(seed)).tolist()

    assert len(sample) == min(count, len(case.space))
    assert len(set(sample)) == len(sample)
    assert set(sample) <= set(range(len(case.space)))
    assert case.space.sample(count, np.random.default_rng(seed)).tolist() == sample


@given(knob_sets())
def test_a_space_without_a_legal_configuration_is_refused(knobs: tuple[Knob, ...]) -> None:
    never = Constraint(
        "never", "nothing fits", ("knob_0",), lambda columns, problem, device: columns["knob_0"] != columns["knob_0"]
    )

    with pytest.raises(SpaceError, match=r"no legal configuration is left for 1000x104x72:bf16 on h200"):
        SearchSpace("invented", knobs, [never], PROBLEM, H200)


def test_what_is_too_much_to_enumerate_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def knobs(count: int) -> list[Knob]:
        return [Knob(f"knob{at}", (0, 1, 2, 3), "for tests") for at in range(count)]

    with pytest.raises(SpaceError, match=r"many: the values of its 32 knobs have 2\*\*63 combinations or more"):
        SearchSpace.of_codes("many", knobs(32), np.zeros((1, 32)), PROBLEM, H200)
    monkeypatch.setattr("tilescout.spaces.space._MOST", 256)
    assert len(SearchSpace("few", knobs(4), [], PROBLEM, H200)) == 256
    with pytest.raises(SpaceError, match=r"too many configurations to enumerate, 1,024 of the first 5 knobs: 256"):
        SearchSpace("many", knobs(6), [], PROBLEM, H200)


@given(knob_sets())
def test_a_rule_about_a_knob_that_there_is_not_is_refused(knobs: tuple[Knob, ...]) -> None:
    rule = Constraint("ghost", "", ("knob_0", "tile"), lambda columns, problem, device: columns["tile"] > 0)

    with pytest.raises(SpaceError, match=r"rule ghost looks at knobs that there are not: \['tile'\]"):
        SearchSpace("invented", knobs, [rule], PROBLEM, H200)


@pytest.fixture(scope="module")
def gemm() -> SearchSpace:
    return find_template("gemm_sm90").space(GemmProblem(256, 4096, 1024), H200)


def test_the_real_space_is_large_and_enumerated_at_once(gemm: SearchSpace) -> None:
    started = time.process_time()
    again = find_template("gemm_sm90").space(gemm.problem, gemm.device)

    assert time.process_time() - started < 1
    assert len(again) == len(gemm) > 50_000
    assert np.array_equal(again.codes, gemm.codes)


def test_every_configuration_of_the_real_space_satisfies_every_rule_and_is_there_once(gemm: SearchSpace) -> None:
    for rule in gemm.constraints:
        assert rule.holds(gemm.columns, gemm.problem, gemm.device).all()
        assert rule.reason
    assert len(np.unique(gemm.codes, axis=0)) == len(gemm)
    assert np.array_equal(gemm.find(gemm.codes), np.arange(len(gemm)))


def _unit(c: dict[str, Any]) -> int:
    return max(width for width in (16, 32, 64) if c["tile_n"] % width == 0)


def _groups(c: dict[str, Any]) -> int:
    return 1 if c["schedule"] == "pingpong" else int(c["warp_groups"])


def _bytes(c: dict[str, Any]) -> int:
    units = c["tile_m"] // (64 * _groups(c)) * (c["tile_n"] // _unit(c))
    owners = max(count for count in (1, 2, 4, 8) if units % count == 0 and count <= c["split_k"])
    shares = c["split_k"] * (units // owners) * 64 * _unit(c) * c["warp_groups"] if c["split_k"] > 1 else 0
    ring = c["stages"] * c["tile_k"] * (c["tile_m"] + c["tile_n"])
    return int(1024 + 2 * ring + 2 * 2 * 64 * c["warp_groups"] * _unit(c) + 4 * shares)


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


# The rules once more, in plain arithmetic on one configuration of the problem 256 x 4096 x 1024.
REAL: tuple[tuple[str, Callable[[dict[str, Any]], bool]], ...] = (
    ("turns", lambda c: c["schedule"] == "cooperative" or c["warp_groups"] == 2),
    ("swap", lambda c: not c["swap_ab"]),
    ("rows", lambda c: c["tile_m"] / 64 / _groups(c) in (1, 2, 3, 4)),
    ("narrow", lambda c: c["tile_n"] >= 32 or c["swap_ab"] == 1),
    ("registers", lambda c: c["tile_m"] * c["tile_n"] / 128 / _groups(c)
     <= {1: 208 if c["split_k"] == 1 else 144, 2: 192, 3: 96, 4: 64}[c["warp_groups"]]),
    ("aligned", lambda c: c["tile_n"] * c["tile_k"] % 512 == 0),
    ("filled", lambda c: not c["swap_ab"] or c["tile_n"] < 512),
    ("split", lambda c: c["split_k"] == 1 or (
        c["split_k"] * c["tile_k"] <= 512 and c["schedule"] == "cooperative" and c["split_k"] * (
            _tiles(256, c["tile_n"]) * _tiles(4096, c["tile_m"]) if c["swap_ab"]
            else _tiles(256, c["tile_m"]) * _tiles(4096, c["tile_n"])) <= 264)),
    ("cluster", lambda c: c["cluster_m"] * c["cluster_n"] * c["split_k"] <= 8),
    ("idle", lambda c: c["cluster_n"] < 2 * _tiles(256, c["tile_n"]) if c["swap_ab"]
     else c["cluster_m"] < 2 * _tiles(256, c["tile_m"])),
    ("shared_memory", lambda c: _bytes(c) <= 227 * 1024),
)  # fmt: skip


@given(st.data())
def test_the_real_space_holds_what_its_rules_allow_and_says_which_forbids(
    gemm: SearchSpace, data: st.DataObject
) -> None:
    configuration = {knob.name: data.draw(st.sampled_from(knob.values)) for knob in gemm.knobs}

    broken = [name for name, allows in REAL if not allows(configuration)]

    assert [rule.name for rule in gemm.violations(configuration)] == broken
    assert (configuration in gemm) == (not broken)
    if broken:
        with pytest.raises(SpaceError) as refusal:
            gemm.index(configuration)
        assert all(f"{name}: " in str(refusal.value) for name in broken)
    else:
        assert gemm[gemm.index(configuration)] == configuration


@given(st.data())
def test_steps_through_the_real_space_can_be_taken_back(gemm: SearchSpace, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(gemm) - 1))
    for neighbour in gemm.neighbours(index):
        assert np.abs(gemm.codes[neighbour] - gemm.codes[index]).sum() == 1
        assert index in gemm.neighbours(int(neighbour))


def test_the_real_defaults_are_legal(gemm: SearchSpace) -> None:
    template = find_template("gemm_sm90")
    for m, n, k in [(1, 8, 8), (16, 4096, 4096), (512, 512, 512), (8192, 8192, 8192), (128, 14336, 4096)]:
        for dtype in ("bf16", "fp16"):
            for device in (H200, find_device("h100")):
                space = template.space(GemmProblem(m, n, k, dtype=dtype), device)
                assert template.default(space.problem, device) in space


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tile": 64}, "unknown knob 'tile', the knobs are schedule, warp_groups, swap_ab, tile_m, tile_n"),
        ({"tile_m": 96}, "knob tile_m can't be 96, allowed are 64, 128, 192, 256"),
        ({"raster": "k"}, "knob raster can't be k, allowed are m, n"),
        ({"stages": None}, "knob stages has no value"),
    ],
)
def test_a_malformed_configuration_is_refused_with_what_is_allowed(
    gemm: SearchSpace, change: dict[str, Value | None], reason: str
) -> None:
    values = {**gemm[0], **change}
    configuration = Configuration.of({name: value for name, value in values.items() if value is not None})

    assert configuration not in gemm
    with pytest.raises(SpaceError, match=reason):
        gemm.index(configuration)


def test_a_space_of_given_codes_holds_just_those() -> None:
    whole = find_template("gemm_sm90").space(PROBLEM, H200)
    chosen = np.random.default_rng(0).choice(len(whole), 50, replace=False)
    listed = SearchSpace.of_codes("part", whole.knobs, whole.codes[np.repeat(chosen, 2)], PROBLEM, H200)
    part = whole.subset(chosen)
    np.testing.assert_array_equal(listed.codes, part.codes)
    assert [listed.index(part[index]) for index in range(50)] == list(range(50))
    outside = next(index for index in range(len(whole)) if index not in chosen)
    assert whole[outside] not in listed


@pytest.mark.slow
@given(cases(), st.data())
def test_rows_of_values_become_codes_and_a_value_that_a_knob_lacks_is_refused(case: Case, data: st.DataObject) -> None:
    knobs = case.space.knobs
    rows = data.draw(st.lists(st.tuples(*(st.sampled_from(knob.values) for knob in knobs)), min_size=1, max_size=5))
    codes = SearchSpace.codes_of(knobs, rows)
    assert [tuple(knob.values[code] for knob, code in zip(knobs, row, strict=True)) for row in codes] == rows
    numbers = [at for at, knob in enumerate(knobs) if all(type(value) is int for value in knob.values)]
    assume(numbers)
    at = data.draw(st.sampled_from(numbers))
    other = data.draw(st.integers(-1000, 1000).filter(lambda value: value not in knobs[at].values))
    with pytest.raises(SpaceError, match=f"can't be {other}, allowed are"):
        SearchSpace.codes_of(knobs, [*rows, (*rows[0][:at], other, *rows[0][at + 1 :])])
