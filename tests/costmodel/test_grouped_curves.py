"""Times of grouped kernels at problems that were not measured."""

import numpy as np
import pytest

from tilescout.costmodel.grouped_curves import fit_curves
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm_sm90 import TEMPLATE as GEMM
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.template import TEMPLATE

H200 = DEVICES["h200"]
KERNELS = [
    TEMPLATE.default(GroupedProblem.parse(text), H200) for text in ("8x64x4096x4096", "8x8192x4096x4096:bf16:zipf-1")
]
PROBLEMS = [
    GroupedProblem.parse(f"8x{tokens}x4096x4096:bf16:{way}")
    for tokens in (64, 512, 4096, 32768)
    for way in ("balanced", "zipf-1")
]
TIMES = np.array([[90.0, 80, 150, 160, 900, 950, 7000, 7100], [120.0, 110, 130, 140, 500, 520, 3600, 3700]])
EXACT = np.zeros(TIMES.shape, dtype=bool)


def test_what_was_measured_is_told_again_and_steps_lie_between() -> None:
    curves = fit_curves(TEMPLATE, H200, KERNELS, PROBLEMS, TIMES, EXACT)
    told = np.exp(np.stack([curves.predict(problem) for problem in PROBLEMS], axis=1))
    np.testing.assert_allclose(told, TIMES, rtol=0.15)
    # Groups of 128 fill the 128 rows of the second kernel's tiles; one token more asks for twice as many.
    full, over = (curves.predict(GroupedProblem.parse(f"8x{tokens}x4096x4096"))[1] for tokens in (1024, 1032))
    assert over - full > 0.3


def test_a_time_that_is_missing_or_rough_is_told_by_the_others() -> None:
    missing, rough = TIMES.copy(), EXACT.copy()
    missing[0, 3], missing[1, 5], rough[1, 5] = np.inf, 5000.0, True
    curves = fit_curves(TEMPLATE, H200, KERNELS, PROBLEMS, missing, rough)
    assert np.exp(curves.predict(PROBLEMS[3])[0]) == pytest.approx(160, rel=0.4)
    sure = fit_curves(TEMPLATE, H200, KERNELS, PROBLEMS, missing, EXACT)
    assert curves.predict(PROBLEMS[5])[1] < sure.predict(PROBLEMS[5])[1]


def test_kernels_that_do_not_say_how_they_divide_the_work_are_refused() -> None:
    with pytest.raises(SpaceError, match="does not say how its kernels divide"):
        fit_curves(GEMM, H200, KERNELS, PROBLEMS, TIMES, EXACT)
