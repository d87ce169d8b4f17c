"""``tilescout measure``: kernels beside the library and its best candidate, on the host."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from click.testing import CliRunner

from tilescout.experiments.commands import measure as command
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.templates import KernelTemplate

PROBLEM = "48x64x40:bf16"


@pytest.fixture
def on_host(host_library: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is taken for the GPU."""

    def engine(template: KernelTemplate, store: Path, devices: list[str], options: LiveOptions) -> LocalEngine:
        short = LiveOptions(options.compile, ProtocolOptions(heating_us=1000.0), timeout=60)
        return LocalEngine(template, store, ["cpu"], host_library.HOST, short)

    monkeypatch.setattr(command, "visible_gpus", lambda: ["host"])
    monkeypatch.setattr(command, "LocalEngine", engine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("space", "measured"), [("fake_cublaslt:COMPARED", ["fault=nothing"]), ("host_cublaslt", [])], ids=str
)
@pytest.mark.usefixtures("on_host")
def test_kernels_are_stated_over_the_library_and_over_its_best(space: str, measured: list[str], tmp_path: Path) -> None:
    file = tmp_path / "measured.json"
    settings = [part for setting in measured for part in ("--set", setting)]

    asked = [space, "--problem", PROBLEM, *settings, "--no-standby", "--store", str(tmp_path), "--json", str(file)]
    wide = {"COLUMNS": "120"}  # where the terminal is narrower a name is broken into two lines
    ran = CliRunner(env=wide).invoke(command.measure, asked, catch_exceptions=False, standalone_mode=False)

    assert ran.return_value == 0, ran.output
    assert "vs cuBLASLt's best" in ran.output
    assert "cuBLASLt's best of 3" in ran.output
    told = json.loads(file.read_text())
    best, [record] = told["library_best"], told["measurements"]
    assert best["name"] == "cuBLASLt's best of 3"
    assert best["time_us"] == pytest.approx(best["ratio"]["value"] * told["library_us"])
    ratio = record["measurement"]["timing"]["ratio"]
    assert record["speedup_over_library"] == pytest.approx(1 / ratio)
    assert record["speedup_over_library_best"]["value"] == pytest.approx(best["ratio"]["value"] / ratio)
    assert f"{best['ratio']['value'] / ratio:.3f}" in ran.output


@pytest.mark.usefixtures("on_host")
def test_where_the_librarys_best_is_not_known_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(evaluator: Evaluator) -> None:
        raise SpaceError("the library was asked in vain")

    monkeypatch.setattr(Evaluator, "library_best", ask)
    file = tmp_path / "measured.json"
    asked = ["fake_cublaslt:COMPARED", "--problem", PROBLEM, "--no-standby", "--store", str(tmp_path)]
    ran = CliRunner().invoke(command.measure, [*asked, "--json", str(file)], catch_exceptions=False)

    assert "the library's best is not known: the library was asked in vain" in ran.output
    assert "vs cuBLASLt's best" not in ran.output
    told = json.loads(file.read_text())
    assert told["library_best"] == {"unknown": "the library was asked in vain"}
    assert "speedup_over_library_best" not in told["measurements"][0]
