"""The cost of fixed repeats, worked out from what a study recorded."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.fixed_launches import repeats_of

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "results" / "measurement-2026-11-22-paired-8"


def test_a_replay_of_a_long_kernel_is_one_launch_and_of_a_short_one_many() -> None:
    def repeats(name: str) -> tuple[int, float, float]:
        (problem,) = Record.read(FOLDER / f"study-{name}.json").result["problems"].values()
        found = repeats_of(problem)
        return found.launches, found.by_replays, found.by_launches

    launches, by_replays, by_launches = repeats("4096")
    assert launches == 1
    assert by_launches == pytest.approx(by_replays, rel=0.1)  # one was measured, the other is worked out
    launches, by_replays, by_launches = repeats("1024")
    assert launches == 33
    assert 1 < by_launches < by_replays / 10


def test_the_study_writes_every_problem(study: Callable[..., None], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    study("fixed-launches", str(FOLDER / "study-16.json"), str(FOLDER / "study-64.json"), "--out", str(out))
    assert set(Record.read(out).result["problems"]) == {"16x4096x4096:bf16", "64x8192x8192:bf16"}
