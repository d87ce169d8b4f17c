"""Dispatchers state their speed over the best of the library's own candidates, where these can be timed."""

import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.search.dispatch.invented_gpu import MOST, InventedGpu, settled
from tilescout.search.build.artifacts import Artifact
from tilescout.search.dispatch.building import DispatchOptions, measure_dispatcher
from tilescout.search.dispatch.dispatcher import Dispatcher, read_dispatcher
from tilescout.search.dispatch.measuring import Sweep, measure_beside_library
from tilescout.search.engines.engine import Task
from tilescout.spaces.checksums import digest_of
from tilescout.spaces.errors import StoreError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.loaders import Listing
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate

OPTIONS = DispatchOptions(kernels=3, most_rows=MOST, explored=8, seconds=4.0)
GUESSES = {1: 1.0, 2: 0.95, 3: 1.05}  # times over the library's


class Listed(InventedGpu):
    """Its library can be asked for its candidates, the second of which is the fastest at any m."""

    measures_anew = True

    def listing(self, gpu: int, template: KernelTemplate, problem: Problem, guesses: int | None) -> "Future[Listing]":
        rows = [[guess, *[0] * (len(template.knobs) - 1)] for guess in GUESSES]
        return settled(Listing(rows, "cuBLASLt", "13.1.0", len(rows), True, 0.0))

    def describe(self, template: KernelTemplate, configuration: Configuration, signature: str) -> Artifact:
        return Artifact(Path("described"), "", "", None, 0.0)

    def _ratio(self, task: Task, noise: float) -> float:
        guess = task.configuration.get("guess")
        return super()._ratio(task, noise) if guess is None else GUESSES[int(guess)]


def built_on(gpu: InventedGpu, options: DispatchOptions, versions: Mapping[str, str]) -> Dispatcher:
    sweep = Sweep(gpu, gpu.kernels)
    build = partial(measure_dispatcher, sweep, measured_by="a test", versions=versions)
    return measure_beside_library(sweep, options, build)


@pytest.fixture(scope="module")
def gpu() -> Listed:
    return Listed(6144, 4096, 12, noise=0.0, seed=5)


@pytest.fixture(scope="module")
def built(gpu: Listed) -> Dispatcher:
    return built_on(gpu, OPTIONS, {"torch": "2.11.0"})


def test_what_serves_a_measured_m_races_the_librarys_best_there(gpu: Listed, built: Dispatcher) -> None:
    points = {point.m: point for point in built.points}
    kernels = list(gpu.kernels.configurations)

    assert not built.no_library_best
    assert built.over_library_best
    assert built.over_library_best.keys() <= points.keys()
    assert list(built.over_library_best) == sorted(built.over_library_best)
    for m, ratio in built.over_library_best.items():
        serves = built.find(m)
        logs = gpu.logs[-1 if serves is None else kernels.index(built.kernels[serves]), m - 1] - gpu.logs[-1, m - 1]
        assert ratio == pytest.approx(np.exp(logs) / min(GUESSES.values()))


def test_it_is_kept_in_the_file_and_files_without_it_are_read(built: Dispatcher, tmp_path: Path) -> None:
    place = tmp_path / "d.json"
    built.write(place)
    assert read_dispatcher(place) == built

    record = json.loads(place.read_text())
    older = {key: value for key, value in record.items() if "library_best" not in key and key != "digest"}
    place.write_text(json.dumps(older | {"digest": digest_of(older)}))
    assert read_dispatcher(place) == replace(built, over_library_best={})


@pytest.mark.parametrize("told", [{"3": 1.0}, {"1": 0.0}, {"1": float("inf")}, {"1": None}, {"-1": 1.0}, [1.0]])
def test_what_can_not_have_been_measured_is_refused(built: Dispatcher, tmp_path: Path, told: object) -> None:
    record = {key: value for key, value in built.to_dict().items() if key != "digest"} | {"over_library_best": told}
    assert {1, 3} & {point.m for point in built.points} == {1}
    (tmp_path / "d.json").write_text(json.dumps(record | {"digest": digest_of(record)}))

    with pytest.raises(StoreError, match="no dispatcher, or a damaged one"):
        read_dispatcher(tmp_path / "d.json")


def test_where_the_library_can_not_be_asked_the_reason_is_told() -> None:
    gpu = InventedGpu(1280, 1280, 8, noise=0.0, seed=1)
    gpu.measures_anew = True
    found = built_on(gpu, replace(OPTIONS, seconds=2.0), {})

    assert not found.over_library_best
    assert found.no_library_best == "no library can be asked: measured on an invented GPU"


def test_of_kernels_whose_library_has_no_list_nothing_is_told(gpu: Listed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilescout.search.engines.library_candidates.library_of", lambda template: None)
    assert Sweep(gpu, gpu.kernels).over_library_best(64, None) is None
