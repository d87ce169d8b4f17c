"""The intervals of races, held against what was measured again on GPUs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tilescout.experiments.research.studies.race_coverage import main

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[int]]]:
    out = tmp_path_factory.mktemp("coverage") / "coverage.json"
    files = [str(RESULTS / "race-2026-11-22" / f"heats-{number}.json.gz") for number in (1, 2, 3)]
    host = str(RESULTS / "tunings-2026-11-22" / "races.json.gz")
    done = CliRunner().invoke(main, [*files, "--host", host, "--races", "12", "--out", str(out)])
    assert done.exit_code == 0, done.output
    found: dict[str, dict[str, list[int]]] = json.loads(out.read_text())["result"]["problems"]["all"]
    return found


@pytest.mark.parametrize(
    ("of_the_time", "measured_by"),
    [
        ("to the library", "same process"),
        ("to the library", "other process"),
        ("over the default", "same process"),
        ("over the default", "other process"),
        ("over the default", "other host"),
    ],
)
def test_the_intervals_of_races_hold_in_93_percent_and_more(
    held: dict[str, dict[str, list[int]]], of_the_time: str, measured_by: str
) -> None:
    intervals, held_ones = held[of_the_time][measured_by]

    assert intervals > 150
    assert held_ones / intervals >= 0.93


def test_the_interval_of_one_host_does_not_promise_the_librarys_time_on_another(
    held: dict[str, dict[str, list[int]]],
) -> None:
    """A known limit: on skinny problems the library's own kernel is up to 3.6 % slower on one host than on another."""
    intervals, held_ones = held["to the library"]["other host"]

    assert held_ones / intervals < 0.93


def test_the_wider_interval_of_the_librarys_time_holds_on_another_host(held: dict[str, dict[str, list[int]]]) -> None:
    """Its width was found on problems of other shapes (`hosts`)."""
    intervals, held_ones = held["to the library, any host"]["other host"]

    assert intervals > 1000
    assert held_ones / intervals >= 0.93
