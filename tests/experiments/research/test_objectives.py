"""The study of chains and sandwiches: its predictions and its decision."""

from collections.abc import Callable
from typing import Any

import pytest

from tilescout.experiments.research.studies.objectives import predictions, ratio_of, saving_us, speeds, verdict
from tilescout.search.measure.protocol import Objective

CHAIN, SANDWICH = Objective.CHAIN, Objective.SANDWICH


def product(library_us: float, chain: float, sandwich: float) -> dict[str, Any]:
    """Measured three times by both, with 1 % to either side."""
    ratios = {
        str(each): [[value, 0.99 * value, 1.01 * value]] * 3 for each, value in ((CHAIN, chain), (SANDWICH, sandwich))
    }
    return {
        "library_us": {"chain": library_us, "sandwich": library_us + 1},
        "ratios": {"default": ratios},
        "errors": {},
    }


PRODUCTS = {"a": product(10.0, 0.8, 0.9), "b": product(20.0, 1.1, 1.05), "c": {"error": "no memory"}}
COUNTS = {"a": 2, "b": 1, "c": 3}


def test_what_a_block_saves_is_the_sum_over_its_products_and_one_that_failed_saves_nothing() -> None:
    assert saving_us(COUNTS, PRODUCTS, "default", CHAIN)[0] == pytest.approx(2 * 0.2 * 10 - 0.1 * 20)
    assert saving_us(COUNTS, PRODUCTS, "default", SANDWICH)[0] == pytest.approx(2 * 0.1 * 11 - 0.05 * 21)
    assert saving_us(COUNTS, PRODUCTS, "predicted", CHAIN) == (0, 0)


def test_a_configuration_counts_if_both_objectives_timed_it() -> None:
    found = ratio_of(PRODUCTS["a"], "default", CHAIN)
    assert found is not None
    assert found[0] == pytest.approx(0.8)
    assert 0 < found[2] - found[0] < 0.8 * 0.02
    crashed = PRODUCTS["a"] | {"errors": {"default": "crash: signal 11"}}
    once = {**PRODUCTS["a"], "ratios": {"default": {"chain": [[0.8, 0.79, 0.81]]}}}
    assert ratio_of(crashed, "default", CHAIN) is None
    assert ratio_of(once, "default", CHAIN) is None


def test_speeds_are_of_the_table_s_problems_that_both_objectives_timed() -> None:
    found = speeds({"recorded": ["a", "c", "late"], "products": PRODUCTS})

    assert list(found) == ["a"]
    assert found["a"]["default"]["chain"][0] == pytest.approx(1 / 0.8)
    value, low, high = found["a"]["default"]["sandwich"]
    assert value == pytest.approx(1 / 0.9)
    assert low < value < high


def block(ratio: float) -> dict[str, Any]:
    """A block of 100 µs whose default takes `ratio` of that."""
    rounds = [[ratio * (1 + 0.001 * (round - 1)) for round in range(3)] for _ in range(5)]
    return {"counts": COUNTS, "errors": {}, "library_us": 100.0, "ratios": {"default": rounds}}


def test_the_error_of_a_prediction_is_the_predicted_ratio_less_the_measured_one() -> None:
    [row] = predictions({"products": PRODUCTS, "blocks": {"one": block(0.99), "two": {"error": "no memory"}}})

    assert row["measured"] == pytest.approx(0.99)
    assert row["chain"]["predicted"] == pytest.approx(0.98)
    assert row["chain"]["error"] == pytest.approx(-0.01)
    assert row["sandwich"]["predicted"] == pytest.approx(1 - 1.15 / 100)
    assert row["sandwich"]["half"] >= row["half"]


@pytest.mark.parametrize(
    ("chain", "sandwich", "default"),
    [
        ([0.02, -0.03, 0.04], [0.001, -0.002, 0.001], "sandwich"),
        ([0.001, -0.002, 0.001], [0.02, -0.03, 0.04], "chain"),
        ([0.01, -0.01, 0.01], [0.01, 0.01, -0.01], "chain"),  # no worse, and not better either
        ([0.02, 0.001, 0.02], [0.001, 0.02, 0.001], "chain"),  # better on average, and not surely
    ],
)
def test_the_sandwich_becomes_the_default_only_if_it_is_surely_closer_to_the_blocks(
    chain: list[float], sandwich: list[float], default: str
) -> None:
    rows = [
        {"block": name, "way": "default", "chain": {"error": a}, "sandwich": {"error": b}}
        for name, a, b in zip("uvwxyz", 2 * chain, 2 * sandwich, strict=True)
    ]

    found = verdict(rows)

    assert found["default"] == default
    assert verdict(rows[:5])["default"] == "chain"  # too few blocks to decide
    for name, errors in (("chain", chain), ("sandwich", sandwich)):
        value, low, high = found[name]["absolute"]
        assert value == pytest.approx(sum(map(abs, errors)) / 3)
        assert low <= value <= high


def test_without_a_folder_to_write_to_the_study_says_so(study: Callable[..., None], capsys: Any) -> None:
    study("objectives", "--device", "cpu", code=2)
    assert "--out" in capsys.readouterr().err
