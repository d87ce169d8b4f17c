"""The races at the end of a campaign, on measurements that are made up."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tilescout.search.campaigns.finals import Final, race_final
from tilescout.search.engines.engine import CannotMeasureError
from tilescout.search.measure.library_best import BESIDE, LibraryBest
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.measure.race import Estimate, RaceOptions
from tilescout.spaces.knobs import Configuration

OPTIONS = RaceOptions(candidates=2, within=0.03, look=4, looks=1)


def measured(ratios: Mapping[int, float]) -> dict[int, Measurement]:
    """Measurements with these ratios to the library, within 1 %."""
    return {
        number: Measurement(Status.OK, timing=Timing(ratio, ratio * 0.99, ratio * 1.01, ratio, ratio, 10.0, 7))
        for number, ratio in ratios.items()
    }


class Track:
    """Kernels whose true ratios are known; it notes who ran."""

    def __init__(self, true: Mapping[int, float]) -> None:
        self.true = true
        self.races: list[tuple[list[int], int]] = []

    def measure(self, racing: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        self.races.append((sorted(racing), seed))
        noise = np.random.default_rng(seed).uniform(0.9999, 1.0001, (rounds, len(racing)))
        return noise * np.array([self.true[number] for number in racing])


def test_they_go_on_until_the_fastest_row_is_one_that_raced() -> None:
    # 1 and 2 were lucky when they were timed: once they have raced, 3 and 4 are the fastest rows.
    timed = measured({0: 1.5, 1: 0.90, 2: 0.91, 3: 0.95, 4: 0.96})
    track = Track({0: 1.5, 1: 1.0, 2: 1.1, 3: 0.95, 4: 0.97})

    final = race_final(timed, 0, track.measure, replace(OPTIONS, pairs=3), attempts=4, seed=7)

    assert track.races == [([0, 1, 2], 7), ([0, 3, 4], 8)]
    assert set(final.ratios) == {0, 1, 2, 3, 4}
    assert final.winner == 3
    assert not final.error
    assert final.timing(1, timed[1]).ratio == pytest.approx(1.0, rel=1e-3)
    assert final.timing(3, timed[3]).pairs == OPTIONS.look * 3


def test_there_are_no_more_than_is_allowed() -> None:
    timed = measured({0: 1.5, 1: 0.90, 2: 0.91, 3: 0.95, 4: 0.96})
    track = Track({0: 1.5, 1: 1.0, 2: 1.1, 3: 0.95, 4: 0.97})

    assert race_final(timed, 0, track.measure, OPTIONS, attempts=0, seed=0) == Final()
    assert not track.races

    final = race_final(timed, 0, track.measure, OPTIONS, attempts=1, seed=0)

    assert len(track.races) == 1
    assert set(final.ratios) == {0, 1, 2}


@pytest.mark.parametrize("default", [None, 9])
def test_the_fastest_takes_the_place_of_a_default_that_was_not_timed(default: int | None) -> None:
    track = Track({1: 0.9, 2: 0.91})

    final = race_final(measured({1: 0.9, 2: 0.91}), default, track.measure, OPTIONS, attempts=4, seed=0)

    assert track.races == [([1, 2], 0)]
    assert final.winner == 1


def test_what_can_not_be_measured_anew_is_said_beside_what_was_found() -> None:
    def refuse(racing: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        raise CannotMeasureError("the GPU is gone")

    assert race_final(measured({0: 1.0}), 0, refuse, OPTIONS, attempts=4, seed=0) == Final(error="the GPU is gone")


BEST = LibraryBest("cuBLASLt", "13.1.0", "cublaslt", Configuration.of({"guess": 2}), 8, Estimate(0.8, 0.7, 0.9))


def test_the_librarys_best_runs_in_every_race_and_wins_none() -> None:
    timed = measured({0: 1.5, 1: 0.90, 2: 0.91, 3: 0.95, 4: 0.96})
    track = Track({0: 1.5, 1: 1.0, 2: 1.1, 3: 0.95, 4: 0.97, BESIDE: 0.5})

    final = race_final(timed, 0, track.measure, OPTIONS, attempts=4, seed=7, library_best=BEST)

    assert track.races == [([BESIDE, 0, 1, 2], 7), ([BESIDE, 0, 3, 4], 8)]
    assert final.winner == 3
    assert set(final.ratios) == {0, 1, 2, 3, 4}
    assert final.library_best is not None
    assert final.library_best.ratio.value == pytest.approx(0.5, rel=1e-3)
    assert final.library_best.over is not None
    assert final.library_best.over.value == pytest.approx(0.95 / 0.5, rel=1e-3)


def test_a_candidate_of_the_library_that_fails_costs_no_race() -> None:
    track = Track({0: 1.0, 1: 0.9})

    def measure(racing: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        if BESIDE in racing:
            raise CannotMeasureError("the library's kernel took the process down")
        return track.measure(racing, rounds, pairs, seed)

    final = race_final(measured({0: 1.0, 1: 0.9}), 0, measure, OPTIONS, attempts=4, seed=0, library_best=BEST)

    assert final.winner == 1
    assert not final.error
    assert final.library_best == BEST
