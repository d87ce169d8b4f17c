"""How soon kernels are compiled: each is compiled once for each number of compilers, and its seconds are kept."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tilescout.experiments.research.benchmarks.compile_rate import Compiled


def test_the_rate_is_that_of_all_kernels() -> None:
    assert Compiled(2, [1.0, 4.0, 2.0], [1.0, 1.0, 1.0]).rate == 3 / 4


@pytest.mark.slow
def test_kernels_of_both_spaces_are_compiled_at_once(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rate.json"
    study("compile-rate", "--processes", "2", "--kernels", "2", "--repeats", "1", "--out", str(out))

    (compiled,) = json.loads(out.read_text())["result"]["compiled"]
    assert compiled["processes"] == 2
    assert len(compiled["seconds"]) == len(compiled["core_seconds"]) == 2
    assert all(0 < core <= there for core, there in zip(compiled["core_seconds"], compiled["seconds"], strict=True))
    assert capsys.readouterr().out.splitlines()[-1].split()[0] == "2"
