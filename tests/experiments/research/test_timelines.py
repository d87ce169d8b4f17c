"""The script that keeps the time of every block of a measurement."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilescout.experiments.research.studies.timelines import Recorder, divided, follows, settling
from tilescout.search.measure.machine import HostMachine

ROUNDS, KERNELS, PAIRS, SKIPPED = 12, 4, 12, 2
LIBRARY_US = 300.0


def records(drift: float, noise: float) -> list[dict[str, Any]]:
    """Measurements of two queues as the script keeps them, whose first pair is 10 % off; the clock wanders between."""
    rng = np.random.default_rng(0)
    made = []
    for turn in range(ROUNDS):
        for kernel in rng.permutation(KERNELS).tolist():
            clock = 1 + drift * rng.standard_normal()
            queues = []
            for pairs in (2, PAIRS):
                blocks = LIBRARY_US * clock * np.exp(noise * rng.standard_normal(2 * pairs + 1 + SKIPPED))
                blocks[1::2] *= 1 + 0.1 * kernel
                blocks[1] *= 1.1
                queues.append({"skip": SKIPPED, "times_us": [None, *blocks[1:].tolist()]})
            clocks = {"sm_mhz": 1500.0 + turn, "throttle": "power cap" if drift else ""}
            found = {"round": turn, "kernel": kernel, "ratio": 1 + 0.1 * kernel, "clocks": clocks}
            made.append(found | {"queues": queues})
    return made


def spread(ratios: np.ndarray[Any, Any]) -> float:
    return float(np.log(ratios).std(axis=0).mean())


def test_what_blocks_are_divided_by_is_told_apart() -> None:
    drifting = divided(records(drift=0.02, noise=0.001), LIBRARY_US)
    quiet = divided(records(drift=0.0, noise=0.004), LIBRARY_US)

    assert all(each.shape == (ROUNDS, KERNELS) for each in drifting.values())
    assert np.median(drifting["protocol"], axis=0) == pytest.approx([1, 1.1, 1.2, 1.3], rel=0.002)
    assert spread(drifting["neighbours"]) < spread(drifting["level"]) / 10
    assert spread(drifting["protocol"]) < spread(drifting["level"]) / 10
    assert spread(quiet["level"]) < spread(quiet["neighbours"])


def test_how_far_kernels_follow_the_library_is_told() -> None:
    assert follows(records(drift=0.02, noise=0.001)) == pytest.approx(1, abs=0.02)


def test_what_settles_is_shown_pair_by_pair() -> None:
    ratios, library = settling(records(drift=0.01, noise=0.001), queue=1)

    assert len(ratios) == len(library) == 9  # the first has no library before it that was not late; ten are shown
    assert ratios == pytest.approx(np.ones(9), rel=0.002)


def test_figures_are_printed_anew_from_a_file(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"launches": 1, "library_us": LIBRARY_US, "records": records(drift=0.01, noise=0.001)}
    path = tmp_path / "timelines.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"problems": {"8x8x8:bf16": {"dense": found}}}).encode()))

    study("timelines", "--again", str(path))

    printed = capsys.readouterr().out
    assert "8x8x8:bf16, dense: spread by neighbours 0." in printed
    assert "kernels follow the library by 1.0" in printed
    assert "1500 to 1511 MHz" in printed
    assert "queue 2, library over its last:" in printed


def test_every_block_of_a_queue_is_kept_also_those_that_do_not_count() -> None:
    machine = HostMachine()
    recorder = Recorder(machine)
    ran: list[int] = []
    blocks = [machine.block([[lambda number=number: ran.append(number)]]) for number in range(5)]  # type: ignore[misc]

    times = machine.times_us(blocks, skip=2)

    assert ran == list(range(5))
    assert len(times) == 3
    (queue,) = recorder.queues
    assert queue["skip"] == 2
    assert queue["times_us"][2:] == pytest.approx(times, abs=0.01)
    assert len(queue["times_us"]) == 5


def test_without_a_table_or_a_file_it_says_what_it_wants(
    study: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    study("timelines", code=2)

    assert "--again" in capsys.readouterr().err


def test_a_last_queue_that_is_too_short_to_tell_the_noise_is_passed_over() -> None:
    made = records(drift=0.0, noise=0.001)
    for each in made:
        each["queues"].append({"skip": 2, "times_us": [None, 330.0, 300.0, 330.0, 300.0]})

    found = divided(made, LIBRARY_US)

    assert all(np.isfinite(ratios).all() for ratios in found.values())
