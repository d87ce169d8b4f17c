"""The studies of dispatchers: which products and m they take, and what they make of a race."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tilescout.experiments.research as research
from tests.search.dispatch.invented_gpu import InventedGpu
from tilescout.costmodel.analytic import AnalyticModel, shipped_calibration
from tilescout.experiments.research.dispatch_figures import MEASURED, figures, largest
from tilescout.experiments.research.dispatch_rivals import looks, worth_looking_at
from tilescout.experiments.research.studies.dispatch_judge import (
    CLEAR,
    Judge,
    drawn,
    number_of,
)
from tilescout.experiments.research.studies.dispatch_left_out import all_left_out, compared
from tilescout.experiments.research.studies.dispatch_sweep import product_of, sizes
from tilescout.experiments.research.studies.draw_spread import MOST_BYTES
from tilescout.search.dispatch.building import DispatchOptions, predict_dispatcher
from tilescout.search.dispatch.kernels import MOST_ROWS
from tilescout.search.dispatch.measuring import Sweep
from tilescout.search.dispatch.points import Known
from tilescout.search.dispatch.times import Times
from tilescout.spaces.errors import ProblemError, StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.suite import find_suite, suite_names

RESULTS = Path(research.__file__ or "").parents[1] / "results"
JUDGED = RESULTS / "dispatch-2026-11-22" / "judged-before-races.json.gz"


def test_glances_tell_nothing_of_a_kernel_that_is_not_known_there() -> None:
    sizes, both = np.arange(1, 5), np.log(np.array([[1.0, 0.8, 0.9, 1.0], [1.0, 1.0, 1.0, 1.0]]))
    times = Times(sizes, both, both, both)
    there = np.array([[True, True, False]])
    told = Known(sizes[:3], np.zeros(3), np.log(np.array([[0.9, 0.8, np.nan]])), there, ~there, ~there)
    found = compared(times, told)
    assert found.off == pytest.approx([-np.log(0.9), 0.0])
    assert found.regret == pytest.approx([1 / 0.9 - 1, 0.0, 0.0])  # none leads by enough at the first


def test_a_dispatcher_that_does_not_hold_what_the_library_names_is_refused() -> None:
    with pytest.raises(StoreError, match="does not hold what the library names"):
        all_left_out([JUDGED], 0)


def test_no_suite_holds_a_drawn_product_and_the_seed_decides_which() -> None:
    held = set()
    for name in suite_names():
        try:
            held |= {(each.n, each.k) for each in find_suite(name).parsed(GemmProblem.parse)}
        except ProblemError:
            continue
    found = [each for seed in range(5) for each in drawn(4, seed, "published")]
    assert not {(n, k) for _, n, k in found} & held
    assert len({(n, k) for _, n, k in found}) > 8
    assert all(GemmProblem(MOST_ROWS, n, k).bytes <= MOST_BYTES for _, n, k in found)
    assert drawn(2, 3, "further") == drawn(2, 3, "further") == drawn(4, 3, "further")[:2]


def test_any_first_part_of_the_sizes_is_small_and_large() -> None:
    found = sizes(40, MOST_ROWS, 1)
    assert len(set(found)) == 40
    assert {1 <= m <= MOST_ROWS for m in found} == {True}
    for count in (10, 20, 40):
        small = sum(m < 1000 for m in found[:count])
        assert count / 5 <= small <= count * 4 / 5


@pytest.mark.parametrize("text", ["6144", "x", "6144x4096x2", "axb"])
def test_a_product_is_n_and_k(text: str) -> None:
    assert str(product_of("6144x4096", "bf16")) == "1x6144x4096:bf16"
    with pytest.raises(ProblemError):
        product_of(text, "bf16:nothing" if text == "6144x4096x2" else "bf16")


def test_figures_count_what_is_known_and_say_where_the_worst_is() -> None:
    def point(m: int, ratio: float, least: float) -> dict[str, object]:
        return {"m": m, MEASURED: {"ratio": ratio, "regret": ratio / least - 1}}

    told = figures([point(10, 1.0, 1.0), point(20, 0.9, 0.8), point(30, math.nan, 0.5)], MEASURED)
    assert told["sizes"] == 2
    assert told["unknown"] == 1
    assert told["worst"] == pytest.approx(0.125)
    assert told["worst_at"] == 20
    assert told["mean"] == pytest.approx(0.0625)
    assert told["over_5"] == told["over_2"] == 0.5
    assert told["speed"] == pytest.approx((1 / 0.9) ** 0.5)


@pytest.mark.slow
def test_a_winner_by_luck_alone_costs_little_regret_for_it_races_again() -> None:
    calibration = shipped_calibration("h200")
    assert calibration is not None
    gpu = InventedGpu(6144, 4096, 8, noise=0.3, seed=3)
    gpu.logs[:] = 3.0  # none is faster than another
    models = {gpu.template.name: AnalyticModel(calibration)}
    made = predict_dispatcher(gpu.kernels, models, DispatchOptions(most_rows=256), "a model")
    judge, sweep = Judge(gpu, [], models, DispatchOptions()), Sweep(gpu, gpu.kernels)
    sizes = list(range(66, 256, 10))
    near = worth_looking_at(sweep.kernels, models, sizes)
    told = [judge.at(sweep, m, {MEASURED: made}, looks, seed=0) for m, looks in zip(sizes, near, strict=True)]
    found = [each[MEASURED] for each in told]
    first, second = (np.mean([each[key] for each in found]) for key in ("first_regret", "regret"))
    assert second < first / 2
    for each in told:  # a regret that is small enough at first is not looked at twice
        assert (each["races"] == 2) == (each[MEASURED]["first_regret"] > CLEAR)
        assert each["races"] == 2 or each[MEASURED]["regret"] == pytest.approx(each[MEASURED]["first_regret"])


@pytest.mark.slow
def test_the_largest_regrets_are_confirmed_by_more_races_with_what_won() -> None:
    calibration = shipped_calibration("h200")
    assert calibration is not None
    gpu = InventedGpu(6144, 4096, 8, noise=0.05, seed=3)
    models = {gpu.template.name: AnalyticModel(calibration)}
    made = predict_dispatcher(gpu.kernels, models, DispatchOptions(most_rows=256), "a model")
    judge, sweep = Judge(gpu, [], models, DispatchOptions()), Sweep(gpu, gpu.kernels)
    near = worth_looking_at(sweep.kernels, models, list(range(66, 256, 5)))
    told = [
        judge.at(sweep, m, {MEASURED: made}, looks, seed=0) for m, looks in zip(range(66, 256, 5), near, strict=True)
    ]
    first = largest(told, 4)
    regrets = [each[MEASURED]["regret"] for each in told]
    assert [each[MEASURED]["regret"] for each in first] == sorted(regrets, reverse=True)[:4]
    for each in first:
        again = judge.confirmed(sweep, each, made, seed=1)
        served, best = number_of(sweep.kernels, made, each["m"]), each["winner"]
        logs = gpu.logs[:, each["m"] - 1]
        fastest = (
            -1 if best is None else list(gpu.kernels.configurations).index(Configuration.of(best["configuration"]))
        )
        true = np.expm1(logs[-1 if served is None else served] - logs[fastest])
        assert again["low"] <= again["regret"] <= again["high"]
        assert math.log1p(again["regret"]) == pytest.approx(math.log1p(true), abs=0.02)
        assert again["judged"] == each[MEASURED]["regret"]


def test_what_is_worth_looking_at_is_found_in_parts_as_at_once_and_none_that_is_not_legal() -> None:
    calibration = shipped_calibration("h200")
    assert calibration is not None
    gpu = InventedGpu(6144, 4096, 24, noise=0.0, seed=3)
    models, sizes = {gpu.template.name: AnalyticModel(calibration)}, [7, 300, 16, 9000]
    with ThreadPoolExecutor(3) as pool:
        found = looks(gpu.kernels, models, sizes, pool)
    assert list(found.values()) == worth_looking_at(gpu.kernels, models, sizes)
    for m in sizes:
        assert gpu.kernels.legal(m)[found[m]].all()


def test_what_was_judged_is_printed_and_drawn_again(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study("dispatch-judge", "--again", str(JUDGED), "--plot", str(tmp_path / "judged.png"))
    printed = capsys.readouterr().out
    assert "3584x4096 (Gemma 2 9B)" in printed
    assert "10.57%" in printed
    assert (tmp_path / "judged.png").read_bytes().startswith(b"\x89PNG")
