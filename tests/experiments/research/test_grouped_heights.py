"""Times that are told of grouped kernels by the sizes of their tiles."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tilescout.experiments.research.studies import grouped_heights
from tilescout.experiments.research.studies.grouped_heights import Model, last_wave, mixed, tiles_of, totals
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import find_template

PROBLEM = GroupedProblem.parse("3x350x384x512:bf16:recorded-150.0.200:draws-0-0")  # 150, 0 and 200 tokens
RATES = np.array([1.5e-9, 2e-7, 3e-7])


def kernel(**others: Any) -> Configuration:
    default = find_template("grouped_streamk_sm90").default(PROBLEM, DEVICES["h200"])
    plain = {"swap_ab": 0, "tile_m": 128, "tile_n": 192, "cluster_m": 1, "cluster_n": 1, "trim": 0}
    return Configuration.of({**default, **plain, **others})


def test_totals_are_those_of_whole_tiles() -> None:
    computed, moved, memory = totals(PROBLEM, tiles_of(PROBLEM, kernel()))
    assert computed == 4 * 128 * 384 * 512  # two tiles of each of two experts, and two columns of them
    assert moved == 4 * 2 * (128 + 192) * 512 * 2
    assert memory == PROBLEM.bytes
    shared = totals(PROBLEM, tiles_of(PROBLEM, kernel(cluster_n=2)))
    assert (shared[0], shared[1]) == (computed, 4 * 2 * (64 + 192) * 512 * 2)
    trimmed = totals(PROBLEM, tiles_of(PROBLEM, kernel(trim=1)))
    assert (trimmed[0], trimmed[1]) == (3.5 * 128 * 384 * 512, moved)  # 22 rows behind 128; 72 are more than half
    swapped = totals(PROBLEM, tiles_of(PROBLEM, kernel(swap_ab=1, tile_m=128, tile_n=64)))
    assert swapped[0] == (3 + 4) * 64 * 384 * 512


def test_the_rest_of_an_expert_is_the_least_tile_that_holds_it() -> None:
    found = mixed(PROBLEM, kernel(), {32: 256, 96: 192})
    assert [(each.rows, each.along.tolist()) for each in found] == [
        (128, [[1, 0, 1]]), (32, [[1, 0, 0]]), (96, [[0, 0, 1]]),
    ]  # fmt: skip
    assert totals(PROBLEM, found)[0] == (2 * 128 * 384 + 32 * 512 + 96 * 384) * 512


def test_a_model_is_found_again_by_the_times_it_tells() -> None:
    those = list(np.random.default_rng(0).uniform(1, 3, (40, 3)) / RATES)
    made = Model(2.5, RATES)
    found = Model.fitted(those, made.us(those).tolist())
    assert found.power == pytest.approx(2.5)
    assert found.costs == pytest.approx(RATES, rel=1e-6)
    assert found.error(those, made.us(those).tolist()) < 1e-6


def test_a_last_wave_that_is_not_full_counts_as_a_whole_one() -> None:
    problem = GroupedProblem.parse("1x8448x384x512:bf16:balanced:draws-0-0")  # 66 tiles of rows, two of columns
    assert last_wave(problem, kernel()) == 1
    assert last_wave(problem, kernel(cluster_n=2)) == 1
    assert last_wave(problem, kernel(tile_m=192)) == pytest.approx(132 / 88)


def test_what_other_tiles_bring_is_told_from_a_race(tmp_path: Path) -> None:
    texts = ["3x350x384x512:bf16:zipf-1:draws-0-1", "3x3500x384x512:bf16:balanced:draws-0-1"]
    kernels = [kernel(), kernel(trim=1), kernel(tile_n=128), kernel(cluster_n=2), kernel(swap_ab=1, tile_n=64)]
    model, problems = Model(2.0, RATES), {}
    for text in texts:
        problem = GroupedProblem.parse(text)
        rows = [
            {"configuration": dict(each), "ratio": float(model.us([totals(problem, tiles_of(problem, each))])[0] / 100)}
            for each in kernels
        ]
        slow = [{"configuration": dict(kernel()), "ratio": 50.0}, {"configuration": dict(kernel()), "pilot": 3.0}]
        problems[text] = {"library_us": 100.0, "spaces": {"grouped_streamk_sm90": rows + slow}}
    race, out = tmp_path / "race.json", tmp_path / "heights.json"
    race.write_text(json.dumps({"about": {}, "result": {"problems": problems}}))
    ran = CliRunner().invoke(grouped_heights.main, [str(race), "--out", str(out)], catch_exceptions=False)
    assert ran.exit_code == 0
    found = json.loads(out.read_text())["result"]
    assert found["error"] < 0.01
    assert list(found["problems"]) == list(found["trimmed"]) == texts[:1]  # the uneven one
    assert found["trimmed"][texts[0]]["told"] == pytest.approx(found["trimmed"][texts[0]]["measured"], rel=0.02)
    assert all(0.5 < found["problems"][texts[0]][name] < 1.2 for name in grouped_heights.MIXTURES)
    assert "32, 64, 96 or 128 rows" in ran.output
