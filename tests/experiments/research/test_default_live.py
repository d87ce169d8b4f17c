"""The live judge of defaults, as far as it needs no GPU."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel.boosting import BoostingOptions
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.default_kernels import DEVICE
from tilescout.experiments.research.studies.default_live import FP8, KEPT_OUT, asked, figures
from tilescout.experiments.research.studies.default_rule import (
    FitOptions,
    in_sandwiches,
    left_out,
    off_in_sandwiches,
    read,
)
from tilescout.experiments.research.studies.default_rule import figures as rule_figures
from tilescout.spaces.errors import ProblemError, TableError
from tilescout.spaces.gemm_sm90.template import ALWAYS
from tilescout.spaces.gemm_sm90.unmeasured import tiles_of
from tilescout.spaces.suite import find_suite

KERNELS = Path(__file__).resolve().parents[3] / "experiments" / "results" / "defaults-2026-11-23" / "kernels.json"


def test_problems_are_drawn_anew_of_all_kinds_and_some_in_8_bits() -> None:
    found = [str(each) for each in asked(71, 10, 4, "published")]
    assert len(set(found)) == 10
    assert sum(text.endswith(FP8) for text in found) == 4
    narrow = [text for text in found if int(text.split("x")[1]) < 16]
    assert narrow  # which the library computes in 16 bits alone
    assert not any(text.endswith(FP8) for text in narrow)
    assert not set(found) & set(find_suite(KEPT_OUT).problems)
    assert any(int(text.split("x")[2].partition(":")[0]) >= 16 * int(text.split("x")[1]) for text in found)  # deep k


def test_the_problems_of_the_suite_that_nothing_is_chosen_on_are_not_looked_at() -> None:
    with pytest.raises(ProblemError, match="draw by another seed"):
        asked(0, 5, 0, "published")


def test_where_the_library_is_the_answer_its_speed_counts() -> None:
    told = figures(np.array([2.0, 0.5, 0.96]), np.array([2.0, 1.0, 0.9]))
    assert told["default"] == pytest.approx(0.96 ** (1 / 3))
    assert (told["default_least"], told["default_slow"]) == (0.5, 1)
    assert told["answered"] == pytest.approx(1.8 ** (1 / 3))
    assert (told["runs"], told["answered_least"], told["answered_slow"]) == (2, 0.9, 1)
    assert "default" not in figures(np.array([np.nan]), np.array([1.0]))


def a_sweep(path: Path, problems: Iterable[str]) -> Path:
    """A record of a sweep in which one kernel takes 0.8 of the library's time, and another 1.3, on all problems."""
    kernels = json.loads(KERNELS.read_text())["result"]["kernels"]
    legal = dict(ALWAYS[1])  # for every problem of more than 128 columns
    listed = [[legal, *kernels["gemm_sm90"][:30]], kernels["gemm_streamk_sm90"][:2]]
    told = [
        {"problem": text, "library_us": 20.0, "guess": None, "ratios": [{"0": [0.8], "4": [1.3, 1.3]}, {}]}
        for text in problems
    ]
    Record.of("default-sweep", "", {"signature": "bf16", "kernels": listed, "problems": told}).write(path)
    return path


def test_the_rule_learns_which_kernel_is_faster_than_the_library(tmp_path: Path) -> None:
    problems = [f"{m}x{n}x4096:bf16" for m in (16, 64, 128) for n in (1024, 4096, 8192, 16384)]
    kernels, seen = read([a_sweep(tmp_path / "sweep.json", problems)])
    options = FitOptions(kernels=4, boosting=BoostingOptions(trees=40, levels=3, rate=0.3))
    judged = left_out(kernels, tiles_of(kernels, "bf16", DEVICE), seen, (0.0, 0.0), options, 0)
    assert len(judged) == len(problems)
    told = rule_figures(judged)
    assert told["chosen"] == pytest.approx(1.25)
    assert (told["runs"], told["slow"]) == (len(problems), 0)


def test_a_sandwich_takes_a_kernel_longer(tmp_path: Path) -> None:
    kernels, seen = read([a_sweep(tmp_path / "sweep.json", ["64x1024x4096:bf16"])])
    live = {"problem": "64x1024x4096:bf16", "configuration": dict(kernels[0][1]), "speed": 1 / 0.9}
    off = off_in_sandwiches(kernels, seen, [live], 20.0)
    assert off[0] == pytest.approx(2.0)
    assert off[1] == 0.0
    assert np.exp(in_sandwiches(seen[0], off).logs).tolist() == pytest.approx([0.9, 1.4])
    assert off_in_sandwiches(kernels, seen, [live], 19.0) == (0.0, 0.0), "a longer product tells nothing"


def test_nothing_is_fitted_to_the_suite_that_judges(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="nothing is fitted to it"):
        read([a_sweep(tmp_path / "sweep.json", find_suite(KEPT_OUT).problems[:1])])
