"""Checks that need a Hopper GPU: the kernels are right, and the worst of kernels are survived."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tilescout.search.build.artifacts import Artifact, ArtifactStore, CompileFailure
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.jobs import complete, make_job
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.machine import CudaMachine
from tilescout.search.measure.measurement import Status
from tilescout.search.measure.process import MeasuringProcess
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.worker import Job
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions, run_study
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import find_template

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

TEMPLATE = find_template("gemm_sm90")
H200 = find_device("h200")  # the rules are those of every Hopper GPU

BuildPlain = Callable[..., Artifact]
JobOf = Callable[..., Job]


@pytest.fixture(scope="module")
def process() -> Iterator[MeasuringProcess]:
    with MeasuringProcess("cuda", timeout=120) as process:
        yield process


@pytest.fixture
def plain_kernel(plain_gemm: ModuleType, build_plain: BuildPlain) -> BuildPlain:
    """A function: the plain GEMM with a fault, built for the GPU."""
    if not plain_gemm.find_nvcc():
        pytest.skip("nvcc is not installed")

    def plain_kernel(fault: str = "nothing", repeats: int = 1) -> Artifact:
        artifact = build_plain(fault, repeats, arch="sm_90a")
        assert artifact.ok, artifact.error
        return artifact

    return plain_kernel


def test_a_right_kernel_is_verified_and_timed(
    process: MeasuringProcess, plain_kernel: BuildPlain, job_of: JobOf
) -> None:
    measurement = process.measure(job_of(plain_kernel(), "256x264x72x2"))

    assert measurement.ok, measurement.error
    assert measurement.relative_error is not None
    assert 0 < measurement.relative_error <= 2.0**-8
    assert measurement.time_us > 0
    assert process.describe()["name"].startswith("NVIDIA ")


@pytest.mark.parametrize(
    ("fault", "statuses", "reason"),
    [
        ("corner", {Status.WRONG}, "is off by"),
        ("unwritten", {Status.WRONG}, "relative error nan"),
        ("not_a_number", {Status.WRONG}, "relative error nan"),
        ("before_output", {Status.WRONG}, "it wrote outside its output on 64x64x64:bf16"),
        ("behind_output", {Status.WRONG}, "it wrote outside its output on 389x584x328x2:bf16"),
        ("behind_output_later", {Status.WRONG}, "it wrote outside its output on 64x64x64:bf16"),
        ("unstable", {Status.WRONG}, "two runs on the same inputs differ"),
        ("stale", {Status.WRONG}, "on 389x584x328x2:bf16"),
        ("stale_not_nan", {Status.WRONG}, "on 389x584x328x2:bf16"),
        ("exception", {Status.LAUNCH_ERROR}, "this kernel always raises"),
        ("bad_address", {Status.LAUNCH_ERROR, Status.CRASH}, ""),
        ("abort", {Status.LAUNCH_ERROR, Status.CRASH}, ""),
        ("endless", {Status.TIMEOUT}, "not done after 5 s, killed"),
    ],
)
def test_a_bad_kernel_is_named_and_the_next_one_measured(
    process: MeasuringProcess, plain_kernel: BuildPlain, job_of: JobOf, fault: str, statuses: set[Status], reason: str
) -> None:
    bad, right = plain_kernel(fault), plain_kernel()
    before = process.measure(job_of(right))
    assert before.ok, before.error
    starts, patience = process.starts, process.timeout

    process.timeout = 5 if fault == "endless" else patience
    measurement = process.measure(job_of(bad))
    process.timeout = patience

    assert measurement.status in statuses, measurement.error
    assert measurement.error
    assert reason in measurement.error
    after = process.measure(job_of(right))
    assert after.ok, after.error
    lost_the_device = fault in ("bad_address", "abort", "endless")
    assert process.starts == starts + lost_the_device


def test_the_clocks_are_sampled_where_nvml_answers(
    process: MeasuringProcess, plain_kernel: BuildPlain, job_of: JobOf
) -> None:
    clocks = process.measure(job_of(plain_kernel(), "512x512x512")).clocks

    assert clocks is not None
    assert 200 < clocks.sm_mhz < 3000
    assert 50 < clocks.power_w < 1000
    assert 15 < clocks.temperature_c < 100


@pytest.mark.parametrize("problem", ["256x256x256", "4096x4096x8"], ids=["in graphs", "longer"])
def test_a_slow_kernel_is_pruned_and_loses_the_race(
    process: MeasuringProcess, plain_kernel: BuildPlain, job_of: JobOf, problem: str
) -> None:
    fast, slow = (job_of(plain_kernel(repeats=repeats), problem) for repeats in (1, 20))
    first = process.measure(fast)
    assert first.timing is not None, first.error

    pruned = process.measure(replace(slow, incumbent=first.timing.ratio))
    ratios = process.race([fast, slow], rounds=3, pairs=3, seed=0)

    assert pruned.status is Status.PRUNED, pruned.error
    assert pruned.timing is None
    assert pruned.timing_seconds < 0.01
    assert (ratios[:, 1] > 1.5 * ratios[:, 0]).all()


def test_twice_the_work_takes_about_twice_the_time(
    process: MeasuringProcess, plain_kernel: BuildPlain, job_of: JobOf
) -> None:
    ratios = []
    for repeats in (1, 2):
        measurement = process.measure(job_of(plain_kernel(repeats=repeats), "512x512x2048"))
        assert measurement.timing is not None, measurement.error
        ratios.append(measurement.timing.ratio)

    assert 1.4 < ratios[1] / ratios[0] < 2.6


@pytest.mark.parametrize("problem", ["64x64x64", "1024x1024x1024"], ids=["in graphs of many", "in graphs of one"])
def test_a_kernel_takes_about_as_long_between_neighbours_as_in_a_chain_and_is_right_there(
    process: MeasuringProcess, plain_kernel: BuildPlain, job_of: JobOf, problem: str
) -> None:
    chain = job_of(plain_kernel(), problem)
    times = {}
    for objective, overlapped in ((Objective.CHAIN, False), (Objective.SANDWICH, True), (Objective.SANDWICH, False)):
        job = replace(chain, options=replace(chain.options, objective=objective, overlapped=overlapped))
        measured, again = process.measure(job), process.measure(job)
        assert measured.timing is not None, measured.error
        assert again.ok, again.error  # the neighbours of the first left inputs and output as they were
        assert measured.timing.library_us > 0
        times[objective, overlapped] = measured.time_us

    for overlapped in (False, True):
        assert 0.5 < times[Objective.SANDWICH, overlapped] / times[Objective.CHAIN, False] < 2


@pytest.fixture(scope="module")
def compile_all(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[Configuration, Artifact]]:
    """A function: the artifacts of configurations of the real kernel, legal or not."""
    store = ArtifactStore(tmp_path_factory.mktemp("store"))

    def compile_all(configurations: list[Configuration], signature: str) -> dict[Configuration, Artifact]:
        with CompilePool(TEMPLATE, signature, H200.arch, store, CompileOptions()) as pool:
            futures: dict[Configuration, Future[Artifact | CompileFailure]] = {}
            for configuration in configurations:
                futures[configuration] = pool.submit(configuration)
            outcomes = {configuration: future.result() for configuration, future in futures.items()}
        built = {each: outcome for each, outcome in outcomes.items() if isinstance(outcome, Artifact)}
        assert len(built) == len(outcomes), outcomes
        return built

    return compile_all


ODD_PROBLEMS = [
    "1x8x8:bf16", "389x584x328x2:bf16", "17x584x1032:bf16", "100x584x4104x2:fp16", "1000x8x64:fp16",
    "389x584x328:bf16-fp32", "392x584x328x2:bf16:mn", "40x584x1032:fp16:mn", "389x584x328:bf16:kn",
    "392x584x328:bf16:mk", "64x584x328x2:bf16:alpha+bias+gelu", "389x584x328:bf16:bias+relu",
    "389x584x328:fp16:silu", "40x584x1032:bf16-fp32:bias", "389x592x336x2:e4m3", "40x592x1040:e4m3-fp32:alpha",
]  # fmt: skip


@pytest.mark.parametrize("text", ODD_PROBLEMS)
def test_the_real_kernel_is_right_on_odd_sizes_in_every_signature(
    process: MeasuringProcess, compile_all: Callable[..., dict[Configuration, Artifact]], text: str
) -> None:
    problem = GemmProblem.parse(text)
    space = TEMPLATE.space(problem, H200)
    drawn = [space[int(index)] for index in space.sample(5, np.random.default_rng(90))]
    artifacts = compile_all([TEMPLATE.default(problem, H200), *drawn], problem.signature)
    options = ProtocolOptions(first=2, few_pairs=2, pairs_us=100.0, heating_us=1000.0)

    failures = []
    library_us = process.prepare(TEMPLATE.workload, str(problem), options)
    for configuration, artifact in artifacts.items():
        job = make_job(TEMPLATE, configuration, artifact, problem, library_us, options)
        measured = complete(process.measure(job), artifact)
        if not measured.ok:
            failures.append(f"{configuration}: {measured.status}: {measured.error}")

    assert not failures, "\n".join(failures)


def test_a_launch_that_asks_for_too_much_shared_memory_fails_and_is_survived(
    process: MeasuringProcess, compile_all: Callable[..., dict[Configuration, Artifact]]
) -> None:
    problem = GemmProblem(512, 512, 512)
    space = TEMPLATE.space(problem, H200)
    default = TEMPLATE.default(GemmProblem(4096, 4096, 4096), H200)
    greedy = Configuration.of({**default, "stages": 8})
    assert [rule.name for rule in space.violations(greedy)] == ["shared_memory"]
    artifacts = compile_all([default, greedy], "bf16")
    options = ProtocolOptions(heating_us=1000.0)
    library_us = process.prepare(TEMPLATE.workload, str(problem), options)

    refused, accepted = (
        process.measure(make_job(TEMPLATE, configuration, artifacts[configuration], problem, library_us, options))
        for configuration in (greedy, default)
    )

    assert refused.status in {Status.LOAD_ERROR, Status.LAUNCH_ERROR, Status.CRASH}, refused.error
    assert accepted.ok, accepted.error


ASK_FOR_CLUSTERS = """
import json, torch
from tilescout.search.build.clusters import max_active_clusters
torch.zeros(1, device="cuda")
sms = torch.cuda.get_device_properties(0).multi_processor_count
print(json.dumps([sms, {blocks: max_active_clusters(blocks, 0) for blocks in (1, 2, 4, 8)}]))
"""


def test_a_recorded_step_writes_no_memory_that_others_were_given() -> None:
    import torch

    machine = CudaMachine(0)

    def step_that_fills_memory_of_its_own() -> Callable[[], None]:
        memory = torch.empty(2**19, dtype=torch.uint8, device="cuda")

        def fill() -> None:
            memory.fill_(7)

        return fill

    [repeat] = machine.record([step_that_fills_memory_of_its_own()])
    others = [torch.zeros(128, dtype=torch.int32, device="cuda") for _ in range(2**12)]  # 2 MiB, as small as offsets
    repeat()
    assert not torch.stack(others).any()


def test_clusters_fill_the_gpu_but_for_what_is_left_over() -> None:
    # In a process of its own: this one must hold no CUDA context.
    done = subprocess.run([sys.executable, "-c", ASK_FOR_CLUSTERS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sms, clusters = json.loads(done.stdout)

    assert clusters["1"] == sms
    for blocks, count in clusters.items():
        assert sms // 2 < int(blocks) * count <= sms


def test_a_live_search_finds_a_kernel_in_the_librarys_range(tmp_path: Path) -> None:
    with (
        LocalEngine(TEMPLATE, tmp_path / "artifacts") as engine,
        Evaluator(engine, GemmProblem(1024, 1024, 1024)) as evaluator,
    ):
        options = TuneOptions("random", seed=0, budget=Budget(trials=12), studies=tmp_path / "studies")
        result = run_study(evaluator, options)
        assert evaluator.provenance.kind == "live"

    assert len(result.trials) == 12
    failed = [trial.measurement.error for trial in result.trials if trial.measurement.failed]
    assert not failed
    assert result.default is not None
    assert result.best is not None
    assert result.best.measurement.timing is not None
    assert result.best.measurement.timing.ratio < 1 / 0.3  # at least 0.3 of cuBLAS
    assert result.best.measurement.time_us <= result.default.measurement.time_us
