"""`from tilescout.search import tune`: all that the command line can, in one call."""

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mlflow
import numpy as np
import pytest

from tilescout.search import Budget, StudyResult, TrialRecord, load_study, tune
from tilescout.search.samplers.exhaustive import ExhaustiveSampler
from tilescout.spaces.errors import (
    DeviceError,
    ModelError,
    ProblemError,
    SamplerError,
    SpaceError,
    StoreError,
    TableError,
)
from tilescout.spaces.gemm_sm90 import TEMPLATE
from tilescout.spaces.rowwise import RowwiseProblem
from tilescout.spaces.templates import KernelTemplate

PROBLEM = "512x512x512:bf16"


def search(store: Path, **changes: object) -> StudyResult:
    arguments = {"device": "replay", "budget": Budget(trials=8), "store": store, "mlflow": False} | changes
    return tune("gemm_sm90", PROBLEM, **arguments)  # type: ignore[arg-type]


def test_a_name_and_a_problem_are_enough_to_know_the_best(tmp_path: Path) -> None:
    seen: list[TrialRecord] = []
    result = search(tmp_path, on_trial=seen.append)
    assert [trial.number for trial in seen] == list(range(8))
    assert result.best is not None
    assert result.default is not None
    assert result.best.measurement.time_us <= result.default.measurement.time_us
    assert result.info.provenance.kind == "replay"


def test_a_template_and_a_parsed_problem_give_the_same_trials_as_their_names(tmp_path: Path) -> None:
    named = search(tmp_path / "a")
    given = tune(
        TEMPLATE,
        TEMPLATE.parse(PROBLEM),
        device="replay",
        budget=Budget(trials=8),
        store=str(tmp_path / "b"),
        mlflow=False,
    )
    assert [trial.index for trial in given.trials] == [trial.index for trial in named.trials]


def test_a_problem_of_another_template_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="malformed problem '8192x4096:bf16': expected MxNxK"):
        tune("gemm_sm90", RowwiseProblem(8192, 4096), device="replay", store=tmp_path, mlflow=False)
    assert not list(tmp_path.iterdir())


def test_resume_goes_on_and_options_reach_the_strategy(tmp_path: Path) -> None:
    settings = {"options": {"initial": 4}}
    first = search(tmp_path, sampler="lfbo", settings=settings)
    whole = search(tmp_path, sampler="lfbo", settings=settings, resume=True, budget=Budget(trials=12))
    assert list(whole.trials[:8]) == list(first.trials)
    assert len(whole.trials) == 12
    with pytest.raises(SamplerError, match="nonsense"):
        search(tmp_path, sampler="lfbo", settings={"options": {"nonsense": 4}})


@pytest.mark.slow
def test_trials_go_to_mlflow_unless_told_otherwise(tmp_path: Path, store: str) -> None:
    search(tmp_path / "untracked")
    assert not (tmp_path / "untracked" / "mlflow.db").exists()
    search(tmp_path, mlflow=store, budget=Budget(trials=2))
    client = mlflow.MlflowClient(store)
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert len(runs) == 3


def test_nothing_is_printed_and_the_log_says_what_stood_in_for_the_gpu(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tilescout"):
        search(tmp_path, sampler="guided")
    assert capfd.readouterr() == ("", "")
    said = {record.levelname: record.message for record in caplog.records}
    assert len(said) == len(caplog.records) == 2
    assert "no GPU was used" in said["INFO"]
    assert "trained on measurements of this very problem" in said["WARNING"]


def test_a_replay_says_before_the_search_that_it_times_no_kernels_of_the_library_and_tunes_no_peers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    given = {"library_kernels": 40, "peers": ("triton",), "on_trial": lambda trial: said.append(caplog.text)}
    assert not search(tmp_path, budget=2, sampler="random", **given).peers
    assert "no kernel of the library is timed, and 40 were asked for: nothing is measured in a replay" in said[0]
    assert "triton: no peer is tuned, because nothing is measured in a replay" in said[0]


def test_a_seed_and_a_budget_may_be_of_an_array(tmp_path: Path) -> None:
    (seed,) = np.arange(3, 4)
    of_array = search(tmp_path / "a", sampler="random", seed=seed, budget=seed)
    assert of_array.info.name.endswith("-s3")
    plain = search(tmp_path / "b", sampler="random", seed=3, budget=3)
    assert [trial.index for trial in of_array.trials] == [trial.index for trial in plain.trials]


def test_progress_shows_the_trials_and_the_best_on_standard_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = search(tmp_path, progress=True)
    printed = capfd.readouterr()
    assert result.best is not None
    assert printed.out == ""
    assert "8/8" in printed.err
    assert f"best {result.best.measurement.time_us:.2f} µs" in printed.err


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"device": "gpu"}, DeviceError),
        ({"sampler": "none"}, SamplerError),
        ({"table": "missing.parquet"}, TableError),
        ({"settings": {"model": "missing.npz"}}, ModelError),
        ({"settings": {"model": ""}}, ModelError),
        ({"first": lambda template, space: [-1]}, SamplerError),
        ({"first": lambda template, space: [len(space)]}, SamplerError),
        ({"first": lambda template, space: [0.5]}, SamplerError),
        ({"first": lambda template, space: None}, SamplerError),
        ({"library_kernels": -1}, SamplerError),
        ({"library_kernels": 2.5}, SamplerError),
        ({"seed": 1.5}, SamplerError),
        ({"seed": None}, SamplerError),
        ({"budget": "3"}, SamplerError),
        ({"budget": True}, SamplerError),
        ({"sampler": 3}, SamplerError),
        ({"mlflow": 1}, StoreError),
        ({"first": "quack"}, SamplerError),
        ({"resume": ""}, StoreError),
        ({"mlflow": ""}, StoreError),
        ({"mlflow": Path("mlruns")}, StoreError),
        ({"mlflow": "mlruns"}, StoreError),
        ({"settings": 5}, SamplerError),
        ({"settings": "model"}, SamplerError),
        ({"settings": [1]}, SamplerError),
        ({"settings": {5: 5}}, SamplerError),
        *(({"settings": {name: 5}}, SamplerError) for name in ("seed", "space", "sampler")),
        *(({"settings": {name: 5}, "sampler": "tpe"}, SamplerError) for name in ("options", "seed", "sampler")),
        *(({name: each}, SamplerError) for name in ("race", "live") for each in (5, "", b"", False)),
        *(({name: each}, SamplerError) for name in ("complement", "progress") for each in (1, None, "no")),
        *(({name: each}, SamplerError) for name in ("on_trial", "on_result") for each in (None, "print")),
        *(({"peers": each}, SamplerError) for each in (None, 5, object())),
        *(({"device": each}, DeviceError) for each in (None, 0, b"cuda")),
        *(({"cluster": each, "device": "auto"}, DeviceError) for each in (5, True, Path("here"))),
        *(({"gpus": each}, DeviceError) for each in (True, "1", 10**30)),
        *(({"table": each}, TableError) for each in (5, b"x.parquet", "", "a\0b.parquet")),
        *(({"storage": each}, StoreError) for each in (5, b"here", "a\0b")),
        *(({"resume": each}, StoreError) for each in (1, None, Path("name"))),
        ({"library_kernels": True}, SamplerError),
        ({"seed": True}, SamplerError),
    ],
)
def test_what_can_not_be_is_refused_before_anything_is_written(
    tmp_path: Path, change: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        search(tmp_path / "store", **change)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("store", [None, 5, b"here", "a\0b", ["here"]])
def test_a_store_that_is_no_name_of_a_folder_is_refused(store: object) -> None:
    for call in (
        lambda: tune("gemm_sm90", PROBLEM, device="replay", store=store),  # type: ignore[arg-type]
        lambda: load_study("some", store=store),  # type: ignore[arg-type]
    ):
        with pytest.raises(StoreError, match=r"^the store can't be "):
            call()


@pytest.mark.parametrize("given", [{"name": 5}, {"name": Path("a.journal")}, {"storage": 5}, {"named": ()}])
def test_a_study_that_is_asked_for_by_something_else_than_its_name_is_told_so(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    (name,) = given
    with pytest.raises(StoreError, match=f"^`{name}` can't be .*: allowed are "):
        load_study(**{"name": "some", "store": tmp_path, **given})


def test_a_message_says_what_was_wrong_and_what_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match=r"^`race` can't be 5: allowed are RaceOptions and None$"):
        search(tmp_path, race=5)
    with pytest.raises(
        SpaceError, match=r"'builtins:NoneType' is no KernelTemplate, .*: give the name of a space, or "
    ):
        tune(None, PROBLEM, store=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(SamplerError, match=r"^a setting can't be called 'seed': that is an argument of its own$"):
        search(tmp_path, settings={"seed": 3})


def test_what_is_tried_first_is_told_if_it_is_no_sequence_and_a_fault_of_its_own_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match="`first` returned None, expected a sequence of indices of the space"):
        search(tmp_path, first=lambda template, space: None)
    with pytest.raises(TypeError, match="of its own"):
        search(tmp_path, first=lambda template, space: faulty())


def test_a_mask_is_no_sequence_of_what_is_tried_first(tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match="`first` names configuration True, allowed are 0 to "):
        search(tmp_path, first=lambda template, space: [True, False])
    assert not list(tmp_path.glob("studies/*"))


def faulty() -> Iterator[int]:
    yield 0
    raise TypeError("of its own")


def test_that_a_sampler_takes_no_model_is_told_before_the_model_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SamplerError, match="sampler random takes no cost model"):
        search(tmp_path, sampler="random", settings={"model": "nowhere.npz"})
    with pytest.raises(SamplerError, match=r"sampler guided takes no 'modl', only model, options$"):
        search(tmp_path, sampler="guided", settings={"modl": "nowhere.npz"})
    with pytest.raises(ModelError, match="does not exist"):
        search(tmp_path, sampler="guided", settings={"model": "nowhere.npz"})
    assert not list(tmp_path.iterdir())


def test_an_empty_store_is_not_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="the name of the store is empty"):
        tune("gemm_sm90", PROBLEM, sampler="random", budget=1, device="replay", store="", mlflow=False)
    with pytest.raises(StoreError, match="the name of the store is empty"):
        load_study("any", store="")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("method", "found", "expected"),
    [("done", 3, "a text, or None"), ("expected", 2.5, "an Expected of tilescout.costmodel, or None")],
)
def test_an_answer_of_a_sampler_that_can_not_be_is_told_with_what_is_expected(
    tmp_path: Path, method: str, found: object, expected: str
) -> None:
    odd = type("Odd", (ExhaustiveSampler,), {method: lambda *_: found})
    with pytest.raises(SamplerError, match=f"`{method}` of Odd returned {found}, expected {expected}"):
        search(tmp_path, sampler=odd)


INTERRUPTED = """
import json
from tilescout.search import Budget, SearchInterrupted, tune

try:
    tune(
        "gemm_sm90", {problem!r}, device="replay", sampler="exhaustive", budget=Budget(trials=1900), store={store!r},
        mlflow=False, on_trial=lambda trial: print(trial.number, flush=True),
    )
except SearchInterrupted as interrupted:
    print(json.dumps(interrupted.result.to_dict()))
"""


@pytest.mark.slow
def test_ctrl_c_in_a_script_raises_what_holds_the_best_so_far_and_the_study_goes_on_later(tmp_path: Path) -> None:
    script = INTERRUPTED.format(problem=PROBLEM, store=str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert [int(process.stdout.readline()) for _ in range(5)] == list(range(5))
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    found = json.loads(printed.splitlines()[-1])
    resumed = search(tmp_path, sampler="exhaustive", resume=True, budget=Budget(trials=found["trials"] + 2))
    assert len(resumed.trials) == found["trials"] + 2
    kept = [trial.measurement for trial in resumed.trials[: found["trials"]]]
    assert found["best"]["time_us"] == min(measurement.time_us for measurement in kept if measurement.ok)


def test_importing_the_room_loads_no_search(tmp_path: Path) -> None:
    code = "import sys, tilescout.search as s; assert 'optuna' not in sys.modules; s.tune; print(dir(s))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert "'tune'" in done.stdout


def test_a_class_is_a_template_and_what_is_none_is_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="no table of odd is shipped"):
        tune(odd_template(), PROBLEM, device="replay", store=tmp_path)
    with pytest.raises(SpaceError, match="two knobs are named '"):
        tune(odd_template(knobs=TEMPLATE.knobs * 2)(), PROBLEM, device="replay", store=tmp_path)
    with pytest.raises(SpaceError, match="'builtins:int' is no KernelTemplate, but a int"):
        tune(3, PROBLEM, device="replay", store=tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def odd_template(**declared: object) -> type[KernelTemplate]:
    """A template of the user's own, for the problems of another one."""
    return type("Odd", (type(TEMPLATE),), {"name": "odd", **declared})


def test_the_class_of_a_kernel_that_was_typed_in_belongs_into_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    typed_in = ModuleType("typed_in")
    monkeypatch.setitem(sys.modules, "typed_in", typed_in)
    template = odd_template(__module__="typed_in", sources=())()
    with pytest.raises(SpaceError, match="; put its class into a file, and import it"):
        _ = template.source_hash


def test_a_text_in_the_place_of_peers_is_not_read_letter_by_letter(tmp_path: Path) -> None:
    with pytest.raises(SpaceError, match="`peers` is 'triton', expected a sequence, as"):
        search(tmp_path, peers="triton")
    assert not list(tmp_path.iterdir())
