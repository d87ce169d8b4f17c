"""The problems on which dispatchers of grouped products are judged, and what is said of them."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from tilescout.experiments.research.studies.grouped_judge import drawn, rounds_of, summary
from tilescout.spaces.grouped import GroupedProblem

PRODUCT = GroupedProblem.parse("8x1x28672x4096")


def test_drawn_problems_lie_between_the_measured_numbers_and_have_draws_of_no_table() -> None:
    sizes = (8, 64, 512, 4096, 32768)
    found = drawn(PRODUCT, sizes, 60, np.random.default_rng(1))
    assert found == drawn(PRODUCT, sizes, 60, np.random.default_rng(1))
    assert all(8 <= each.tokens <= 32768 and each.tokens not in sizes for each in found)
    assert all(each.first_draw == 1000 for each in found)
    assert {each.routing.kind for each in found} == {"balanced", "zipf"}
    long = max(found, key=lambda each: each.tokens)
    assert len(long.draws) == 1 < len(min(found, key=lambda each: each.tokens).draws)


def test_the_summary_has_the_worst_regret_and_the_least_speed() -> None:
    def problem(regret: float, speed: float, verdict: str) -> dict[str, object]:
        return {"regret": regret, "speedup_over_library": {"value": speed}, "verdict": verdict}

    told = summary(
        {"a": problem(0.0, 2.0, "within"), "b": problem(0.06, 0.5, "not told"), "c": problem(0.03, 1.0, "within")}
    )
    assert (told["worst"], told["above_5_percent"], told["least_speed"]) == (0.06, 1, 0.5)
    assert (told["within"], told["missed"], told["not told"]) == (2, 0, 1)
    assert abs(told["mean"] - 0.03) < 1e-12
    assert abs(told["geometric_mean_speed"] - 1.0) < 1e-12


def test_the_library_takes_as_long_as_itself_in_rounds_with_kernels() -> None:
    def race(launches: list[Any], rounds: int, pairs: int, seed: int) -> Any:
        return np.tile([float(each()) for each in launches], (rounds, 1))

    measure = rounds_of(cast(Any, SimpleNamespace(race=race)), [cast(Any, lambda: 0.5), None, cast(Any, lambda: 0.7)])
    assert measure([2, 1, 0], 3, 1, 0).tolist() == [[0.7, 1.0, 0.5]] * 3
    assert measure([1, 2], 1, 1, 0).tolist() == [[1.0, 0.7]]
