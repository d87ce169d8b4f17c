"""The problems on which dispatchers of grouped products are judged, and what is said of them."""

import numpy as np

from tilescout.experiments.research.studies.grouped_judge import drawn, summary
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
    def problem(regret: float, speed: float) -> dict[str, object]:
        return {"regret": regret, "speedup_over_library": {"value": speed}}

    told = summary({"a": problem(0.0, 2.0), "b": problem(0.06, 0.5), "c": problem(0.03, 1.0)})
    assert (told["worst"], told["above_5_percent"], told["least_speed"]) == (0.06, 1, 0.5)
    assert abs(told["mean"] - 0.03) < 1e-12
    assert abs(told["geometric_mean_speed"] - 1.0) < 1e-12
