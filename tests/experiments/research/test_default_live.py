"""The live judge of defaults, as far as it needs no GPU."""

import json
from pathlib import Path

import numpy as np
import pytest

from tilescout.experiments.research.studies.default_gain import DEVICE, Timed, fit, read
from tilescout.experiments.research.studies.default_live import FP8, KEPT_OUT, asked, figures
from tilescout.spaces.errors import ProblemError, TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.gain import shipped_gains
from tilescout.spaces.suite import find_suite

LIVE = Path(__file__).resolve().parents[3] / "experiments" / "results" / "defaults-2026-11-23" / "live.json"


def test_problems_are_drawn_anew_of_all_kinds_and_some_in_8_bits() -> None:
    found = [str(each) for each in asked(71, 10, 4)]
    assert len(set(found)) == 10
    assert sum(text.endswith(FP8) for text in found) == 4
    narrow = [text for text in found if int(text.split("x")[1]) < 16]
    assert narrow  # which the library computes in 16 bits alone
    assert not any(text.endswith(FP8) for text in narrow)
    assert not set(found) & set(find_suite(KEPT_OUT).problems)
    assert any(int(text.split("x")[2].partition(":")[0]) >= 16 * int(text.split("x")[1]) for text in found)  # deep k


def test_the_problems_of_the_suite_that_nothing_is_chosen_on_are_not_looked_at() -> None:
    with pytest.raises(ProblemError, match="draw by another seed"):
        asked(0, 5, 0)


def test_where_no_gain_is_expected_the_library_runs() -> None:
    told = figures(np.array([2.0, 0.5, 0.96]), np.array([0.3, -0.1, 0.1]))
    assert told["default"] == pytest.approx(0.96 ** (1 / 3))
    assert (told["default_least"], told["default_slow"]) == (0.5, 1)
    assert told["chosen"] == pytest.approx((2 * 0.96) ** (1 / 3))
    assert (told["runs"], told["chosen_least"], told["chosen_slow"]) == (2, 0.96, 0)


def test_gains_are_alike_near_each_other_and_the_mean_elsewhere() -> None:
    texts = ("32x256x8192:bf16", "4096x4096x4096:bf16", "1024x8192x8192:bf16")
    timed = [Timed(GemmProblem.parse(text), log, True) for text, log in zip(texts, (0.4, 0.0, -0.1), strict=True)]
    timed.append(Timed(GemmProblem.parse("64x64x64:bf16"), 0.9, False))
    gains = fit(timed, {})
    assert gains.expected(GemmProblem.parse("40x256x8192:bf16"), DEVICE) > 0.2
    assert gains.expected(GemmProblem.parse("1024x8192x8192:bf16"), DEVICE) < 0
    assert gains.expected(GemmProblem.parse("1x8x1000000:bf16"), DEVICE) == pytest.approx(gains.mean, abs=0.05)


def test_nothing_is_fitted_to_the_suite_that_judges(tmp_path: Path) -> None:
    record = json.loads(LIVE.read_text())
    record["result"]["problems"][0]["problem"] = find_suite(KEPT_OUT).problems[0]
    (tmp_path / "live.json").write_text(json.dumps(record))
    with pytest.raises(TableError, match="nothing is fitted to it"):
        read([tmp_path / "live.json"])


def test_the_shipped_gains_are_those_of_the_published_records() -> None:
    records = [LIVE.parents[1] / "defaults-2026-11-22" / "defaults.json", LIVE, LIVE.with_name("live-again.json")]
    assert set(shipped_gains().source) == {record.name for record in records}
    again = fit(read(records), {})
    assert again.mean == pytest.approx(shipped_gains().mean)
    assert again.weights == pytest.approx(shipped_gains().weights)
