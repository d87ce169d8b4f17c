"""The studies of all of cuBLASLt's algorithms and of all backends, on a library that runs on the host."""

import contextlib
import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from rich.console import Console
from torch._dynamo.utils import counters

from tilescout.experiments.research import screening
from tilescout.experiments.research.backend_entrants import Entrant, found_by_engines, searched
from tilescout.experiments.research.backend_rows import (
    CUBLASLT,
    DEFAULT,
    EXPORTED,
    LEFT,
    LIBRARIES,
    LIBRARY,
    OF_ALL,
    OF_LIST,
    OURS,
    known_before,
    over_library,
    print_means,
    print_speeds,
    summarised,
)
from tilescout.experiments.research.duels import Verdict, duel, verdict
from tilescout.experiments.research.kernels import LIVE_CHAINS
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.screening import Screen, Screened, screened
from tilescout.experiments.research.studies import backends, library_exhaustive, library_screen
from tilescout.experiments.research.studies.library_wins import wins
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.protocol import VERSION
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces import devices, gemm_sm90, templates
from tilescout.spaces.cublaslt import algorithms
from tilescout.spaces.cublaslt.algorithms import KNOBS, Row
from tilescout.spaces.cublaslt.shapes import tile_shapes
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.inductor.tuning import NoBackendError, tune_by
from tilescout.spaces.loaders import Listing

PROBLEM = GemmProblem(32, 48, 40)


@pytest.fixture(autouse=True)
def on_the_host(host_library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices.DEVICES, "CPU", host_library.HOST)
    for study in (library_exhaustive, library_screen):
        monkeypatch.setattr(study, "SPACE", host_library.TEMPLATE.name)


@pytest.mark.slow
def test_all_algorithms_are_screened_and_a_search_is_compared_with_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_exhaustive, "FINALISTS", 3)
    out, times = tmp_path / "out.json", tmp_path / "times"
    asked = ["--device", "cpu", "--out", str(out), "--store", str(tmp_path), "--times", str(times), "--trials", "4"]

    whole = LocalEngine.listing

    def harmless(engine: LocalEngine, *asked: Any) -> Future[Listing]:
        """The listing without the library's custom option 3, which is legal and takes the process down."""
        listed, answer = whole(engine, *asked).result(), Future[Listing]()
        answer.set_result(replace(listed, rows=[row for row in listed.rows if row[-1] != 3]))
        return answer

    monkeypatch.setattr(LocalEngine, "listing", harmless)
    asked += ["--sampler", "random"]
    done = CliRunner().invoke(library_exhaustive.main, [*asked, "--problem", "16x48x40:bf16"])

    assert done.exit_code == 0, done.output
    one = json.loads(out.read_text())["result"]["problems"]["16x48x40:bf16"]
    assert one["screened"] == one["legal"] > 8
    assert one["refused"] == 0
    answer = one["answers"]["random"]
    assert answer["trials"] == 4
    assert answer["slower by"] >= 0
    assert sum(json.loads(out.read_text())["result"]["verdicts"]["random"].values()) == 1
    assert answer["duel"]["verdict"] in done.output or answer["duel"].get("is it")
    again = ["--before", str(out), "--out", str(tmp_path / "again.json"), "--device", "no such device"]
    assert CliRunner().invoke(library_exhaustive.main, again).exit_code == 0
    assert Record.read(tmp_path / "again.json").result["verdicts"] == json.loads(out.read_text())["result"]["verdicts"]
    found = Screened.read(times / "16x48x40-bf16.npz")
    assert found.rows.shape == (one["legal"], len(KNOBS))
    assert (found.us > 0).all()


@pytest.mark.parametrize(
    ("slower", "spread", "told"),
    [(1.001, 0.02, Verdict.WITHIN), (1.03, 0.02, Verdict.MISSED), (1.0101, 0.05, Verdict.OPEN)],
)
def test_a_duel_tells_a_miss_from_noise_or_says_that_it_can_not(slower: float, spread: float, told: Verdict) -> None:
    generator = np.random.default_rng(0)

    def measure(racing: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        return np.exp(generator.normal(0, spread, (rounds, 2))) * [1.0, slower]

    found, heats = duel(measure, 0, 1, 0)

    assert found.low <= slower <= found.high
    assert verdict(found, 0.01) is told
    assert heats == 40 or found.high / found.value - 1 < 0.0031


def test_a_suite_is_screened_the_heuristics_candidates_first_and_what_has_none_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(algorithms.VALUES, "custom_option", (0, 1))  # 3 takes the process down, and is legal
    suite, times, out = tmp_path / "two.toml", tmp_path / "times", tmp_path / "out.json"
    suite.write_text('title = "two"\nsource = "none"\nproblems = ["8x48x40:bf16", "8x48x40:e4m3-bf16:bias"]\n')
    asked = [str(suite), "--times", str(times), "--out", str(out), "--device", "cpu", "--listers", "0"]

    done = CliRunner().invoke(library_screen.main, asked)

    assert done.exit_code == 0, done.output
    told = json.loads(out.read_text())["result"]
    for problem, one in told.items():
        found = Screened.read(times / f"{problem.replace(':', '-')}.npz")
        assert str(found.problem) == problem
        assert len(found.us) == one["screened"] == one["legal"]
        guesses = int((found.rows[:, 0] > 0).sum())
        assert set(found.rows[:guesses, 0]) == set(range(1, guesses + 1))


def test_neighbours_of_the_fastest_are_screened_before_others() -> None:
    """Of 64 x 64 algorithms a screening that may try a quarter finds the fastest, on whose way no knob is a trap."""

    class Smooth(Screen):
        def __init__(self) -> None:
            self.fastest_us = 1.0

        def times(self, rows: Sequence[Row]) -> NDArray[np.float64]:
            return np.array([1 + abs(row[2] - 40) + abs(row[3] - 50) for row in rows], dtype=np.float64)

    rows = np.zeros((64 * 64, len(KNOBS)), dtype=np.int32)
    rows[:, 2], rows[:, 3] = np.divmod(np.arange(len(rows)), 64)
    rows[0, 0] = 1

    found = screened(Smooth(), PROBLEM, rows, seconds=9, seed=0, clock=partial(next, count()))

    assert len(found.us) == 8 * screening.BATCH == len(rows) / 4
    assert found.rows[np.argmin(found.us), 2:4].tolist() == [40, 50]


@pytest.mark.slow
def test_inductor_compiles_by_one_backend_or_says_that_it_can_not() -> None:
    inputs = Gemm().inputs(PROBLEM, torch.Generator().manual_seed(0))
    output = Gemm().output(PROBLEM, torch.device("cpu"))

    tuned = tune_by("ATEN", PROBLEM, inputs)
    tuned.launch_into(inputs, output)

    assert torch.allclose(output.float(), inputs[0].float() @ inputs[1].float().transpose(1, 2), rtol=0.02, atol=0.2)
    assert tuned.seconds > 0
    with pytest.raises(NoBackendError, match="no kernel by"):
        tune_by("ATEN", GemmProblem(32, 48, 40, dtype="e4m3"), inputs)
    other = tune_by("ATEN", PROBLEM, inputs, {"epilogue_fusion": False})
    compiled = counters["stats"]["unique_graphs"]
    for each in (tuned, other):  # a race calls both by turns, and captures them: nothing may be compiled then
        each.launch(inputs, output)
    assert counters["stats"]["unique_graphs"] == compiled


@pytest.mark.parametrize(("settings", "threads"), [({}, 1), ({"compile_threads": 3}, 3)])
def test_threads_compile_tritons_candidates_unless_a_setting_says_otherwise(
    settings: dict[str, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    compile_as_ever = torch.compile

    def noting(form: Any, **settings: Any) -> Any:
        asked.append(settings["options"])
        return compile_as_ever(form, **settings)

    monkeypatch.setattr(torch, "compile", noting)
    inputs = Gemm().inputs(PROBLEM, torch.Generator().manual_seed(0))

    with contextlib.suppress(NoBackendError):  # there is no Triton on the host
        tune_by("TRITON", PROBLEM, inputs, settings)
    tune_by("ATEN", PROBLEM, inputs)

    assert [options.get("compile_threads") for options in asked] == [threads, None]


@pytest.mark.slow
def test_what_backends_found_races_and_what_is_absent_is_said(
    host_library: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = backends.Inductor("OTHER", absent={PROBLEM.signature: "not in this torch"})
    inductor = {"ATen": backends.Inductor("ATEN", {"no such setting": 1}), "Other": absent}
    monkeypatch.setitem(templates._BUILT_IN, "compared_gemm", "fake_cublaslt:COMPARED")
    with LocalEngine(host_library.COMPARED, artifacts(tmp_path), ["cpu"], options=LIVE_CHAINS) as engine:
        engines: dict[str, Engine | str] = {"gemm_sm90": engine, "cublaslt": "not in this test"}
        searches = {"gemm_sm90": searched(engine, [PROBLEM], 1, tmp_path)}
        entrants = found_by_engines(engines, PROBLEM, 1, tmp_path, searches)
    assert entrants[CUBLASLT] == "not in this test"
    assert isinstance(entrants[OURS], Entrant)

    entrants |= {"Quack": "not installed", OF_ALL: entrants[DEFAULT], CUBLASLT: entrants[OURS]}
    found = backends.raced(Worker("cpu"), PROBLEM, entrants, tmp_path, 0, inductor)

    rows = found["rows"]
    assert rows[OURS]["speed"]["value"] > 0
    assert rows[OF_LIST]["speed"]["value"] > 0
    assert rows["ATen"]["speed"]["value"] > 0
    assert rows[EXPORTED]["speed"]["value"] >= 0.99
    assert (rows["Quack"]["error"], rows["Other"]["error"]) == ("not installed", "not in this torch")
    console = Console(width=200, record=True)
    means = summarised({str(PROBLEM): found}, 0)
    over = over_library({str(PROBLEM): found}, 0)
    print_speeds(console, {str(PROBLEM): found}, {"all": over})
    print_means(console, {"all": means})
    assert means[OURS]["ours over it"][0] == 1
    assert means["ATen"]["least"] == rows["ATen"]["speed"]["value"]
    assert {OURS, LIBRARY, EXPORTED, "ATen"} <= set(means)
    assert "not installed" in console.export_text()
    theirs = max(rows[who]["speed"]["value"] for who in LIBRARIES)
    assert over[OURS]["least"] == pytest.approx(rows[OURS]["speed"]["value"] / theirs)
    assert over[EXPORTED]["problems"] == 1
    left = found[LEFT]["over the search's"]
    assert left["low"] <= left["value"] <= left["high"]
    assert over[LEFT]["most"] == pytest.approx(left["value"] - 1)
    assert means[OURS]["median benchmarking"] == rows[OURS]["benchmarking"]


def test_accurate_8_bit_products_race_the_library_with_fast_sums_too() -> None:
    problem = GemmProblem(16, 32, 64, dtype="e4m3")
    inputs = Gemm().inputs(problem, torch.Generator().manual_seed(0))
    output = Gemm().output(problem, torch.device("cpu"))

    (launch,) = backends.other_sums(problem, "tilescout.spaces.gemm:Gemm").values()
    launch(inputs, output)

    assert torch.allclose(output.float(), inputs[0].float() @ inputs[1].float().transpose(1, 2), rtol=0.02, atol=0.2)
    assert isinstance(launch, partial)
    assert launch.args[0].fast
    for other in (PROBLEM, replace(problem, fast=True)):
        assert backends.other_sums(other, "tilescout.spaces.gemm:Gemm") == {}


def test_backends_are_left_out_by_name_and_the_others_keep_their_settings(tmp_path: Path) -> None:
    asked = backends.Asked(
        (), (), (), 1, 0.0, 1.0, True, ("Triton", "Quack"), tmp_path, None, False, "cpu", 0, tmp_path
    )

    assert asked.spaces == ("gemm_sm90", "cublaslt", "cutlass_operators")
    assert replace(asked, without=("cuBLASLt",), others=False).spaces == ("gemm_sm90",)
    assert set(asked.inductor) == {"CUTLASS", "CuteDSL", "NVGEMM"}
    assert asked.inductor["CUTLASS"].settings["cutlass.cutlass_dir"] == str(tmp_path.resolve())
    assert "cuda.cuda_cxx" not in asked.inductor["CUTLASS"].settings
    assert replace(asked, others=False).inductor == {}


def test_where_the_library_wins_its_tiles_are_told_beside_ours() -> None:
    theirs = dict.fromkeys(KNOBS, 0) | {"algorithm": 66, "split_k": 1, "cluster": 2}
    theirs["tile"] = next(at for at, shape in enumerate(tile_shapes().tolist()) if shape == [256, 88])
    default = gemm_sm90.TEMPLATE.default(GemmProblem(257, 21504, 3072), devices.find_device("h200"))
    rows: dict[str, dict[str, Any]] = {
        OURS: {"space": "gemm_sm90", "configuration": dict(default), "speed": {"value": 0.7}},
        OF_ALL: {"space": "cublaslt", "configuration": theirs, "speed": {"value": 1.0}},
        LIBRARY: {"speed": {"value": 1.0}},
    }
    ahead = {**rows, OURS: {**rows[OURS], "speed": {"value": 1.1}}}

    told = wins({"257x21504x3072:bf16": {"rows": rows}, "257x21504x3072:e4m3-bf16": {"rows": ahead}})

    assert list(told) == ["257x21504x3072:bf16"]
    one = told["257x21504x3072:bf16"]
    assert one["lead"] == pytest.approx(1 / 0.7)
    assert (one["library"]["rows"], one["library"]["columns"], one["library"]["blocks"]) == (88, 256, 3 * 84)
    assert one["library"]["cover"] == pytest.approx(257 * 21504 / (88 * 256) / (2 * 132))


def test_files_of_earlier_runs_become_one_without_a_gpu(tmp_path: Path) -> None:
    paths = []
    for name, problem in [("a", "32x48x40:bf16"), ("b", "8x48x40:e4m3-bf16")]:
        speeds = {
            who: {"seconds": 1.0, "speed": {"value": 1.0, "low": 1.0, "high": 1.0}} for who in ("ours", "torch.mm")
        }
        result = {"protocol": VERSION, "problems": {problem: {"rows": speeds}}}
        paths.append(tmp_path / f"{name}.json")
        Record({"study": name}, result).write(paths[-1])
    out = tmp_path / "both.json"
    asked = ["--before", str(paths[0]), "--before", str(paths[1]), "--problem", "32x48x40:bf16", "--out", str(out)]

    done = CliRunner().invoke(backends.main, [*asked, "--device", "no such device"])

    assert done.exit_code == 0, done.output
    told = Record.read(out).result
    assert [run["about"]["study"] for run in told["runs"]] == ["a", "b"]
    assert [one["run"] for one in told["problems"].values()] == [0, 1]
    assert told["means"]["all"]["ours"]["problems"] == 2
    again = CliRunner().invoke(backends.main, ["--before", str(out), "--out", str(tmp_path / "again.json")])
    assert again.exit_code == 0, again.output
    assert [one["run"] for one in Record.read(tmp_path / "again.json").result["problems"].values()] == [0, 1]
    Record({}, {"protocol": "paired-1", "problems": {}}).write(paths[0])
    with pytest.raises(StoreError, match="paired-1"):
        known_before([paths[0]])
