"""The documented example of a kernel of one's own: compiled for real, and tuned for real as far as there is a GPU."""

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.race import RaceOptions
from tilescout.search.studies.records import StudyResult
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.rowwise import RowwiseProblem
from tilescout.spaces.templates import KernelTemplate, load_template

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
H200 = find_device("h200")
PROBLEM = RowwiseProblem(100, 264)


@pytest.fixture(scope="module")
def template(rows_on_host: ModuleType) -> Iterator[KernelTemplate]:
    """The example's template, found as a user finds it; its folder is taken off the path before `rows_on_host`'s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        importlib.invalidate_caches()
        yield load_template("own_kernel:RmsNorm")


@pytest.fixture
def search(tmp_path: Path) -> Callable[..., StudyResult]:
    """A function: tune a template on the example's problem."""

    def search(template: KernelTemplate, gpu: str, device: Device | None, problem: RowwiseProblem) -> StudyResult:
        options = LiveOptions(CompileOptions(processes=1), ProtocolOptions(heating_us=1000.0))
        race = RaceOptions(looks=1, look=3)
        budget = TuneOptions("random", seed=0, budget=Budget(trials=3), studies=tmp_path / "studies", race=race)
        with (
            LocalEngine(template, tmp_path / "artifacts", [gpu], device, options) as engine,
            Evaluator(engine, problem) as evaluator,
        ):
            return run_study(evaluator, budget)

    return search


def test_it_is_a_page_long() -> None:
    assert len((EXAMPLES / "own_kernel.py").read_text().splitlines()) <= 60


@pytest.mark.slow
def test_it_compiles_for_every_type_and_does_not_spill(template: KernelTemplate, tmp_path: Path) -> None:
    default = template.default(PROBLEM, H200)
    widest = template.space(PROBLEM, H200)[len(template.space(PROBLEM, H200)) - 1]
    with CompilePool(template, "bf16", H200.arch, ArtifactStore(tmp_path), CompileOptions(processes=1)) as pool:
        outcomes = [pool.submit(configuration).result() for configuration in (default, widest)]

    assert dict(widest) == {"warps": 16, "vector": 8}
    for outcome in outcomes:
        assert isinstance(outcome, Artifact), outcome.error
        assert outcome.resources is not None
        assert outcome.resources.spill_bytes == 0


@pytest.mark.slow
def test_a_search_of_it_verifies_and_measures_what_the_host_can_run(
    template: KernelTemplate, rows_on_host: ModuleType, search: Callable[..., StudyResult]
) -> None:
    # The example's problem, workload, knobs and rules; of the kernel a loop in C that the host runs.
    on_host = importlib.import_module("rows_on_host.example").HostRmsNorm()
    assert isinstance(on_host, type(template))

    result = search(on_host, "cpu", rows_on_host.HOST, PROBLEM)

    assert len(result.trials) == 3
    failed = [trial.measurement.error for trial in result.trials if trial.measurement.failed]
    assert not failed
    assert result.race is not None
    assert result.best is not None


@pytest.mark.gpu
@pytest.mark.slow
def test_a_search_of_it_on_a_gpu_finds_kernels_that_are_right(
    template: KernelTemplate, search: Callable[..., StudyResult]
) -> None:
    result = search(template, "cuda", None, RowwiseProblem(1000, 4096))

    failed = [trial.measurement.error for trial in result.trials if trial.measurement.failed]
    assert not failed
    assert result.best is not None
    assert result.best.measurement.timing is not None
    assert result.best.measurement.timing.ratio < 1 / 0.3  # at least 0.3 of the copy's bandwidth
