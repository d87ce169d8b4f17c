"""The script that tells what a kernel's time is to be divided by, on block times of known drift."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilescout.experiments.research.records import Record

ROUNDS, KERNELS, PAIRS = 8, 4, 10
LIBRARY_US = 300.0


def drifting(throttled: bool) -> dict[str, Any]:
    """Raw times as the script writes them: the clock wanders slowly, the library's blocks are loud."""
    rng = np.random.default_rng(0)
    blocks = np.empty((ROUNDS, KERNELS, 2 * PAIRS + 1))
    order = np.array([rng.permutation(KERNELS) for _ in range(ROUNDS)])
    clocks = []
    for turn in range(ROUNDS):
        for place, kernel in enumerate(order[turn]):
            clock = 1 + 0.01 * np.sin((turn * KERNELS + place) / 5)
            blocks[turn, kernel, 0::2] = LIBRARY_US * clock * (1 + 0.004 * rng.standard_normal(PAIRS + 1))
            blocks[turn, kernel, 1::2] = (1 + 0.02 * kernel) * LIBRARY_US * clock
            clocks.append([turn, int(kernel), {"throttle": "power cap" if throttled else ""}])
    times = blocks.tolist()
    raw = {"beside": times, "with_copy": times, "order": np.argsort(order, axis=1).tolist(), "clocks": clocks}
    return {"8x8x8:bf16": {"a set-up": {"library_us": LIBRARY_US / 8, "launches": 8, "raw": raw}}}


@pytest.mark.parametrize("throttled", [True, False])
def test_figures_are_worked_out_anew_from_a_file(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str], throttled: bool
) -> None:
    before, after = tmp_path / "raw.json", tmp_path / "figures.json"
    before.write_text(json.dumps(drifting(throttled)))

    study("reference", "--again", str(before), "--out", str(after))

    figures = Record.read(after).result["8x8x8:bf16"]["a set-up"]["spread"]
    spread = {by: each["spread"] for by, each in figures.items()}
    assert spread["nothing"] > 0.01
    assert spread["library beside it"] < spread["nothing"] / 2
    assert (spread["the protocol, told"] < spread["the protocol, not told"]) == throttled
    assert "the protocol, told" in capsys.readouterr().out


def test_without_a_table_or_a_file_it_says_what_it_wants(
    study: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study("reference", "--out", str(tmp_path / "out.json"), code=2)
    assert "--again" in capsys.readouterr().err
