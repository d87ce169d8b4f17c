"""The script that replays designs of the race over recorded rounds."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tilescout.experiments.research.studies.race_designs import DESIGNS, Recorded, replay
from tilescout.search.measure.race import RaceOptions

HEATS, ROUNDS = 6, 60
TRUE = np.array([1.0, 1.002, 1.004, 1.01, 1.01, 1.02, 1.03, 1.03, 1.2, 1.015])  # the last: the default
SHORT, LONG = RaceOptions(), RaceOptions(look=6, pairs=5)


def heats(noise: float) -> NDArray[np.float64]:
    """Logarithms of rounds whose drift all kernels share."""
    rng = np.random.default_rng(0)
    drift = 0.02 * rng.standard_normal((HEATS, ROUNDS, 1))
    return np.asarray(np.log(TRUE) + drift + noise * rng.standard_normal((HEATS, ROUNDS, len(TRUE))))


def test_rounds_are_drawn_as_they_were_recorded() -> None:
    logs = heats(noise=0.0)
    recorded = Recorded(logs, seed=1)

    ratios = recorded.measure([2, 0], rounds=4, pairs=3, seed=0)

    assert ratios.shape == (4, 2)
    assert recorded.pairs == 24
    assert ratios[:, 0] / ratios[:, 1] == pytest.approx(np.full(4, 1.004))


def test_a_design_is_told_by_its_pairs_and_by_how_far_its_answers_are_behind() -> None:
    quiet, loud = (replay(heats(noise), SHORT, races=50, seed=0) for noise in (0.0005, 0.04))

    assert quiet["behind"] < 0.0005 < loud["behind"] < loud["behind_most"]
    assert quiet["pairs"] < loud["pairs"]
    assert quiet["slower_than_the_default"] == 0


def test_short_rounds_decide_with_fewer_pairs_than_long_ones() -> None:
    short, long = (replay(heats(0.003), design, races=100, seed=0) for design in (SHORT, LONG))

    assert short["pairs"] < 0.7 * long["pairs"]
    assert short["behind"] < 0.001


def test_figures_are_printed_anew_from_a_file(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "races.json.gz"
    found = {"ratios": np.exp(heats(0.002)).tolist()}
    path.write_bytes(gzip.compress(json.dumps({"problems": {"8x8x8:bf16": found}}).encode()))

    study("race-designs", "--again", str(path), "--races", "5")

    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "8x8x8:bf16: 10 kernels, 6 heats of 60 rounds"
    assert [line.split(",")[0].strip() for line in rest] == [name.split(",")[0] for name in DESIGNS]


def test_without_a_table_or_a_file_it_says_what_it_wants(
    study: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    study("race-designs", code=2)

    assert "--again" in capsys.readouterr().err
