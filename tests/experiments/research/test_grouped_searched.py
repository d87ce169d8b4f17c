"""Lists of kernels that searches found: the fastest of each problem, each once."""

import json
from collections.abc import Callable
from pathlib import Path

from tilescout.experiments.research.studies.grouped_searched import fastest
from tilescout.spaces.knobs import Configuration


def test_the_fastest_kernels_of_each_problem_are_listed_once(study: Callable[..., None], tmp_path: Path) -> None:
    suite = tmp_path / "two.toml"
    problems = ["16x4096x4096:bf16", "64x8192x8192:bf16"]
    suite.write_text(f'title = "two"\nsource = "here"\nproblems = {json.dumps(problems)}\n')
    out, listed = tmp_path / "searched.json", tmp_path / "kernels.json"
    asked = ("--space", "gemm_sm90", "--trials", "12", "--best", "2", "--device", "replay")
    study("grouped-searched", "--suite", str(suite), *asked, "--list", str(listed), "--out", str(out))
    found = json.loads(out.read_text())["result"]["problems"]
    assert list(found) == problems
    assert all(each["trials"] == 12 for each in found.values())
    expected = [kernel for each in found.values() for kernel in fastest(each["measured"], 2)]
    assert [Configuration.of(each) for each in json.loads(listed.read_text())] == list(dict.fromkeys(expected))


def test_kernels_of_the_least_ratio_are_the_fastest() -> None:
    kernels = [({"tile_m": size}, ratio) for size, ratio in ((64, 0.9), (128, 0.7), (256, 0.8))]
    assert [dict(each) for each in fastest(kernels, 2)] == [{"tile_m": 128}, {"tile_m": 256}]
