"""The study of glances without a pause."""

from io import StringIO

import pytest
from rich.console import Console

from tests.search.dispatch.invented_gpu import InventedGpu
from tilescout.experiments.research.studies.dispatch_glances import compared, print_figures
from tilescout.search.dispatch.measuring import Sweep


def test_glances_without_a_pause_are_set_beside_those_that_settled() -> None:
    gpu = InventedGpu(6144, 4096, 8, noise=0.01, seed=3)
    found = compared(Sweep(gpu, gpu.kernels), [17, 300, 700, 1900, 2000], 4)
    assert [len(points) for points in found["together"]] == [5, 5]
    assert {point["m"] for point in found["alone"]} == {17, 300, 700, 1900}
    for point in found["together"][0]:
        point["library_us"] *= 0.9
        point["ratios"] = {
            at: {name: 1.05 * value for name, value in ratio.items()} for at, ratio in point["ratios"].items()
        }
    text = StringIO()
    told = print_figures(Console(file=text, width=110), {**found, "problem": "1x6144x4096:bf16"})
    assert [row["sizes"] for row in told] == [2, 2, 0, 0, 0]
    assert told[0]["library"] == pytest.approx(-0.1, abs=0.04)
    assert told[1]["kernels"] == pytest.approx(0.05, abs=0.02)
    assert told[1]["twice"] == pytest.approx(0.05, abs=0.02)
    assert "ms a glance without a pause" in text.getvalue()
