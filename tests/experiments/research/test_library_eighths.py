"""The study of what the library does where 8 divides m."""

from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies import library_eighths
from tilescout.experiments.research.studies.library_eighths import FEW_ROWS, drawn, main, print_figures, times_us
from tilescout.search.measure.machine import HostMachine


def test_sizes_divide_by_8_have_neighbours_and_half_of_them_are_small() -> None:
    sizes = drawn(41, seed=3)
    assert len(set(sizes)) == 41
    assert all(m % 8 == 0 for m in sizes)
    assert sum(m <= FEW_ROWS for m in sizes) == 20
    assert max(sizes) < 16_384
    assert drawn(41, seed=4) != sizes


def test_every_size_of_a_group_has_a_time() -> None:
    found = times_us(HostMachine(), [7, 8, 9], 16, 32)
    assert len(found) == 3
    assert min(found) > 0


def test_a_size_is_off_if_it_differs_from_the_mean_of_its_neighbours() -> None:
    named = [[1, 66, 10], [1, 66, 10], [1, 66, 10]]
    other = [[1, 66, 10], [1, 66, 11], [1, 66, 10]]
    groups = [
        {"m": [63, 64, 65], "library_us": [10.0, 10.4, 10.0], "first": named},
        {"m": [71, 72, 73], "library_us": [10.0, 10.6, 10.0], "first": other},
        {"m": [4799, 4800, 4801], "library_us": [10.0, 9.4, 10.0], "first": named},
        {"m": [5599, 5600, 5601], "library_us": [10.0, 10.5, 11.0], "first": other},
    ]
    text = StringIO()
    told = print_figures(Console(file=text, width=110), groups)
    assert told["off"] == 2
    assert told["share_off"] == pytest.approx(0.5)
    assert (told["few_off"], told["few_sizes"]) == (1, 2)
    assert (told["more_off"], told["more_neighbours_apart"]) == (1, 1)
    assert (told["same_off"], told["other_off"]) == (1, 1)
    assert "it does not" in text.getvalue()


def test_a_failure_leaves_the_groups_that_were_measured_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = {"m": [63, 64, 65], "library_us": [10.0, 10.6, 10.0], "first": [[1], [1], [1]]}

    def measured(*arguments: object) -> Iterator[dict[str, Any]]:
        yield group
        raise RuntimeError("the GPU is lost")

    monkeypatch.setattr(library_eighths, "measured", measured)
    path = tmp_path / "eighths.json"
    done = CliRunner().invoke(main, ["--device", "cpu", "--out", str(path)])
    assert "the GPU is lost" in str(done.exception)
    assert Record.read(path).result["groups"] == [group]
    again = CliRunner().invoke(main, ["--again", str(path)], catch_exceptions=False)
    assert "up to 2,048" in again.output
