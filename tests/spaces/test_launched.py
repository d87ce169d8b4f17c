"""Knobs that only a launch knows, alone or together: which configurations are compiled as one."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.declarations import check_declarations
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.knobs import Configuration, Knob, Value, configurations_of
from tilescout.spaces.launched import Launched, codes_known, compiled_as, kernels_of, served_by
from tilescout.spaces.templates import find_template

KNOBS = (Knob("tile", (64, 128), ""), Knob("band", (1, 2, 4), ""), Knob("raster", ("m", "n", "pairs"), ""))
LAUNCHED: Launched = {"band": (2, 4), "raster": ("n", "m")}
TOGETHER: Launched = {("band", "raster"): ((2, "n"), (4, "m"), (1, "n"))}
GRID = (
    np.array(np.meshgrid(*(np.arange(len(knob.values)) for knob in KNOBS), indexing="ij"))
    .reshape(3, -1)
    .T.astype(np.int16)
)
ALL = configurations_of(KNOBS, {knob.name: np.array(knob.values)[GRID[:, at]] for at, knob in enumerate(KNOBS)})


def test_what_is_compiled_has_the_first_of_the_values_that_only_a_launch_knows() -> None:
    given = Configuration.of({"tile": 128, "band": 4, "raster": "m"})
    assert compiled_as(LAUNCHED, given) == Configuration.of({"tile": 128, "band": 2, "raster": "n"})
    other = Configuration.of({"tile": 64, "band": 1, "raster": "pairs"})  # two values that are compiled in
    assert compiled_as(LAUNCHED, other) == other
    assert all(compiled_as(LAUNCHED, compiled_as(LAUNCHED, each)) == compiled_as(LAUNCHED, each) for each in ALL)
    assert [compiled_as({}, each) for each in ALL] == ALL


def test_kernels_have_the_same_number_if_and_only_if_they_are_compiled_as_one() -> None:
    numbers = kernels_of(LAUNCHED, KNOBS, GRID).tolist()
    compiled = [compiled_as(LAUNCHED, each) for each in ALL]
    alike = {(number, one) for number, one in zip(numbers, compiled, strict=True)}
    assert len(alike) == len(set(numbers)) == len(set(compiled)) == 2 * 2 * 2
    assert sorted(kernels_of({}, KNOBS, GRID)) == list(range(len(ALL)))


@pytest.mark.parametrize(
    ("given", "compiled"),
    [
        ((64, 4, "m"), (64, 2, "n")),
        ((128, 1, "n"), (128, 2, "n")),
        ((64, 2, "n"), (64, 2, "n")),
        ((64, 4, "n"), (64, 4, "n")),  # no launch knows this combination
    ],
)
def test_what_is_launched_together_is_compiled_as_its_first_combination(
    given: Sequence[Value], compiled: Sequence[Value]
) -> None:
    names = [knob.name for knob in KNOBS]
    found = compiled_as(TOGETHER, Configuration(tuple(zip(names, given, strict=True))))
    assert list(found.items()) == list(zip(names, compiled, strict=True))


@pytest.mark.parametrize("launched", [LAUNCHED, TOGETHER, {}])
def test_the_number_of_a_kernel_has_the_codes_of_what_is_compiled_as_its_digits(launched: Launched) -> None:
    compiled = codes_known(KNOBS, [compiled_as(launched, each) for each in ALL])
    digits = np.unravel_index(kernels_of(launched, KNOBS, GRID), [len(knob.values) for knob in KNOBS])
    assert np.array_equal(np.transpose(digits), compiled)


@given(st.sets(st.integers(0, 30)), st.lists(st.integers(0, 30), max_size=40))
def test_some_kernels_serve_just_what_is_compiled_as_they_are(some: set[int], of: list[int]) -> None:
    found = served_by(np.array(sorted(some), dtype=np.int64), np.array(of, dtype=np.int64))
    assert found.tolist() == [at for at, number in enumerate(of) if number in some]


def test_a_configuration_of_other_knobs_or_values_has_no_codes() -> None:
    known = Configuration.of({"raster": "n", "band": 4, "tile": 64})
    others: list[dict[str, Value]] = [
        {"tile": 64},
        {"tile": 64, "band": 3, "raster": "n"},
        {"tile": 64, "band": 1, "raster": "n", "more": 1},
    ]
    assert codes_known(KNOBS, [*map(Configuration.of, others), known]).tolist() == [[0, 2, 1]]
    assert codes_known(KNOBS, []).shape == (0, len(KNOBS))


@pytest.mark.parametrize(
    ("launched", "told"),
    [
        ({"bands": (1, 2)}, "'bands'"),
        ({"band": (1, 3)}, "3"),
        ({"band": ()}, "band"),
        ({("band", "tile"): ((1, 3),)}, r"band and tile is \(1, 3\)"),
        ({("band", "tile"): ((1,),)}, r"band and tile is \(1,\)"),
        ({("band", "gone"): ((1, 3),)}, "'gone'"),
        ({(): ()}, r"\(\)"),
        (("band",), "launched"),
    ],
)
def test_a_template_that_says_it_of_what_it_does_not_have_is_refused(launched: object, told: str) -> None:
    declared = {"name": "wrong", "workload": "module:Class", "archs": ("sm_90a",), "knobs": KNOBS, "constraints": ()}
    with pytest.raises(SpaceError, match=told):
        check_declarations(SimpleNamespace(**declared, launched=launched), "here")


def test_a_stock_of_numbers_of_numpys_own_is_compiled_as_any_other() -> None:
    template = find_template("softmax_sm90")
    space = template.space(template.parse("8192x4096:bf16"), DEVICES["h200"])
    default = template.default_in(space)
    numbers = Configuration.of({name: np.array([value])[0] for name, value in default.items()})

    class Stocked(type(template)):  # type: ignore[misc]
        def stock(self, problem: object, device: object) -> list[Configuration]:
            return [numbers]

    assert [{type(value) for value in each.values()} for each in Stocked().stock_in(space)] == [{int, str}]
