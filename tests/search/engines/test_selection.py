"""Which engine is made of what is asked, where there is no GPU, and where there are some."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines import selection
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.evaluator import Evaluator, evaluate
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.engines.selection import check_device, make_engine
from tilescout.search.measure.protocol import DEFAULT_OBJECTIVE, Objective
from tilescout.search.tables.rows import Row
from tilescout.search.tables.shipped import default_table
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.errors import DeviceError, ProblemError, SamplerError, SpaceError, StoreError, TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

TEMPLATE, PROBLEM = find_template("gemm_sm90"), GemmProblem(16, 4096, 4096)


@pytest.fixture
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "visible_gpus", list)


@pytest.fixture
def _gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "visible_gpus", lambda: ["NVIDIA H200"] * 4)


@pytest.mark.usefixtures("_no_gpu")
def test_without_a_gpu_the_shipped_table_that_holds_the_problem_is_replayed(tmp_path: Path) -> None:
    with make_engine(TEMPLATE, PROBLEM, tmp_path / "artifacts") as engine:
        assert isinstance(engine, ReplayEngine)
        assert PROBLEM in engine.table.problems
        assert engine.gpus == 1
    with make_engine(TEMPLATE, PROBLEM, tmp_path / "artifacts", device="replay", gpus=3) as engine:
        assert engine.gpus == 3
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_gpus")
def test_a_table_that_is_named_is_replayed_also_where_there_is_a_gpu(tmp_path: Path, invented_table: Table) -> None:
    with make_engine(TEMPLATE, PROBLEM, tmp_path / "artifacts", table=invented_table.path) as engine:
        assert isinstance(engine, ReplayEngine)
        assert engine.table.path == invented_table.path


@pytest.mark.usefixtures("_no_gpu")
def test_a_table_answers_by_its_own_objective_and_is_refused_if_another_is_asked_for(
    tmp_path: Path, invented_table: Table, invented_rows: list[Row]
) -> None:
    card = replace(invented_table.card, objective=Objective.SANDWICH)
    sandwiches = write_table(tmp_path / "sandwiches.parquet", card, invented_rows).path
    for path, objective in ((invented_table.path, Objective.CHAIN), (sandwiches, Objective.SANDWICH)):
        for asked in (None, objective, str(objective)):
            with make_engine(TEMPLATE, PROBLEM, tmp_path, table=path, objective=asked) as engine:
                assert engine.objective is objective
    assert engine.provenance.description.endswith(", in sandwiches; no GPU was used")
    with pytest.raises(TableError, match="holds times by the objective sandwich, asked for is chain: ask for sandwich"):
        make_engine(TEMPLATE, PROBLEM, tmp_path, table=sandwiches, objective="chain")
    with pytest.raises(TableError, match="holds times by the objective chain, asked for is sandwich"):
        make_engine(TEMPLATE, PROBLEM, tmp_path, device="replay", objective="sandwich")


@pytest.mark.usefixtures("_gpus")
@pytest.mark.parametrize(("asked", "measured"), [(None, DEFAULT_OBJECTIVE), *((each, each) for each in Objective)])
def test_a_gpu_measures_by_the_objective_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Objective | None, measured: Objective
) -> None:
    found: list[LiveOptions] = []
    monkeypatch.setattr(
        "tilescout.search.engines.local.LocalEngine", lambda *_, options: found.append(options or LiveOptions())
    )
    make_engine(TEMPLATE, PROBLEM, tmp_path, objective=asked)
    assert [options.protocol.objective for options in found] == [measured]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"template": "gemm_sm90"}, SpaceError),
        ({"problem": "512x512x512:bf16"}, ProblemError),
        ({"artifacts": None}, StoreError),
        ({"device": None}, DeviceError),
        ({"cluster": 5}, DeviceError),
        ({"options": {}}, DeviceError),
        ({"table": 5}, TableError),
        ({"gpus": True}, DeviceError),
        ({"gpus": 10**30}, DeviceError),
    ],
)
def test_arguments_of_another_kind_are_told_by_their_name(change: dict[str, Any], error: type[Exception]) -> None:
    (name,) = change
    with pytest.raises(error, match=name):
        make_engine(
            **{"template": TEMPLATE, "problem": PROBLEM, "artifacts": "artifacts", "device": "replay", **change}
        )


@pytest.mark.parametrize("given", [("gemm_sm90", PROBLEM), (TEMPLATE, "512x512x512:bf16"), (None, None)])
def test_a_shipped_table_is_asked_for_by_a_template_and_a_problem(given: tuple[Any, Any]) -> None:
    with pytest.raises(TableError, match=r"can't be .*: allowed are (KernelTemplate|Problem)"):
        default_table(*given)


@pytest.mark.parametrize(
    "given",
    [{"timeout": "x"}, {"timeout": -1}, {"timeout": True}, {"compile": None}, {"compile": {}}, {"protocol": {}}],
)
def test_options_of_a_live_search_that_can_not_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SamplerError, match="can't be"):
        LiveOptions(**given)


@pytest.mark.parametrize("given", [{"processes": 0}, {"processes": 1.5}, {"timeout": None}, {"standby": "no"}])
def test_options_of_compiling_that_can_not_be_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SamplerError, match="can't be"):
        CompileOptions(**given)


def test_an_evaluator_and_what_it_tries_are_of_the_space(tmp_path: Path) -> None:
    with make_engine(TEMPLATE, PROBLEM, tmp_path, device="replay") as engine:
        odd: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"engine": None}, DeviceError), ({"gpus": 1}, DeviceError), ({"problem": "16x16x16"}, ProblemError),
        ]  # fmt: skip
        for change, error in odd:
            with pytest.raises(error, match="can't be"):
                Evaluator(**{"engine": engine, "problem": PROBLEM, **change})
        with Evaluator(engine, PROBLEM) as evaluator:
            indices: list[Any] = [5, None, "0", [1.5], [True], [-1], [10**30], [None]]
            for each in indices:
                with pytest.raises(SpaceError, match=r"can't be|allowed are 0 to \d+$"):
                    list(evaluate(evaluator, each))
            assert [index for index, _ in evaluate(evaluator, np.arange(2))] == [0, 1]
            with pytest.raises(SpaceError, match="`evaluator` can't be"):
                list(evaluate(engine, [0]))  # type: ignore[arg-type]


H200, RTX = "NVIDIA H200", "NVIDIA RTX A6000"


@pytest.mark.parametrize(
    ("visible", "asked", "expected"),
    [
        ([H200] * 4, {}, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ([H200] * 4, {"gpus": 1}, ["cuda:0"]),
        ([H200] * 4, {"gpus": 3, "device": "cuda"}, ["cuda:0", "cuda:1", "cuda:2"]),
        ([H200] * 4, {"gpus": 9}, ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ([H200] * 4, {"device": "cuda:2"}, ["cuda:2"]),
        ([H200] * 4, {"device": "cuda:2", "gpus": 1}, ["cuda:2"]),
        ([RTX, H200, H200], {"gpus": 1}, ["cuda:1"]),
        ([RTX, H200, H200], {"device": "cuda"}, ["cuda:1", "cuda:2"]),
        ([RTX, H200, H200], {"device": "cuda:0"}, ["cuda:0"]),  # which the engine refuses
        ([RTX], {"device": "cuda"}, ["cuda:0"]),
    ],
)
def test_the_gpus_are_those_of_this_machine_that_the_kernels_run_on_or_as_many_as_are_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: list[str], asked: dict[str, object], expected: list[str]
) -> None:
    monkeypatch.setattr(selection, "visible_gpus", lambda: visible)

    class StoppedError(Exception):
        """A real engine would start processes on the GPUs that it is given."""

    def note(template: object, artifacts: Path, gpus: list[str], **options: object) -> None:
        raise StoppedError(gpus)

    monkeypatch.setattr("tilescout.search.engines.local.LocalEngine", note)
    with pytest.raises(StoppedError) as stopped:
        make_engine(TEMPLATE, PROBLEM, tmp_path, **asked)  # type: ignore[arg-type]
    assert stopped.value.args == (expected,)


@pytest.mark.usefixtures("_no_gpu")
@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"device": "gpu"}, "unknown device 'gpu', allowed are auto, cuda, cuda:N and replay"),
        ({"device": "cuda:²"}, "unknown device 'cuda:²'"),
        ({"gpus": 0, "device": "replay"}, "can't use 0 GPUs: `gpus` is 1 to 10,000, or None for all"),
        ({"gpus": -1}, "can't use -1 GPUs"),
        ({"gpus": 2.0}, "can't use 2.0 GPUs"),
        ({"gpus": "2"}, "can't use '2' GPUs"),
        ({"objective": "solo"}, "unknown objective 'solo', allowed are chain and sandwich"),
        ({"device": "cuda"}, "no NVIDIA GPU here: measure on a machine with one, or replay a table with `device='rep"),
        ({"device": "cuda:1", "table": Path("t.parquet")}, "`table` is for replaying, `device='cuda:1'` measures"),
        ({"device": "cuda:2", "gpus": 4}, "`device='cuda:2'` is one GPU, and `gpus` asks for 4: leave one of them out"),
        ({"device": "replay", "cluster": "auto"}, "leave `device` and `table` out"),
        ({"cluster": "auto", "table": Path("t.parquet")}, "leave `device` and `table` out"),
    ],
)
def test_what_contradicts_itself_or_is_not_here_is_refused(
    tmp_path: Path, asked: dict[str, object], answer: str
) -> None:
    with pytest.raises(DeviceError, match=answer):
        make_engine(TEMPLATE, PROBLEM, tmp_path, **asked)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_gpus")
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="there is no cuda:4 here, there are cuda:0, cuda:1, cuda:2, cuda:3"):
        make_engine(TEMPLATE, PROBLEM, tmp_path, device="cuda:4")


def test_a_problem_that_the_kernel_can_not_compute_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="not a multiple of 8"):
        make_engine(TEMPLATE, GemmProblem(16, 4096, 4097), tmp_path / "artifacts")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0", "cuda:12", "replay"])
def test_devices_that_can_be_named(device: str) -> None:
    check_device(device)
