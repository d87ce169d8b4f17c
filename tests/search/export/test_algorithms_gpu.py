"""Algorithms of the real cuBLASLt in bundles: compiled code runs the one that was chosen, also in CUDA graphs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.export import from_studies
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.decisions import Choice, Evidence, Outcome
from tilescout.search.export.inductor import load, use
from tilescout.search.export.loaded_kernels import name_of
from tilescout.spaces.cublaslt import TEMPLATE
from tilescout.spaces.cublaslt.algorithms import KNOBS
from tilescout.spaces.gemm import Gemm, GemmProblem, epilogue_inputs
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.loaders import load_loader

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_inductor")]

PROVEN = Evidence("a-study", "proven", 0.97, 0.96, 0.98, 12, of=Choice.ALGORITHM)
PROBLEMS = (
    *("1024x1024x512:bf16", "1024x1024x512:bf16:bias+relu"),
    *("1024x1024x512:e4m3-bf16:alpha", "1024x1024x512:e4m3-bf16:fast:alpha"),
)


@pytest.fixture(scope="module", params=PROBLEMS)
def problem(request: pytest.FixtureRequest) -> GemmProblem:
    return GemmProblem.parse(request.param)


@pytest.fixture
def bundle(problem: GemmProblem, tmp_path: Path) -> Bundle:
    """A bundle of an algorithm that splits k, as the library would not for so small a k: its kernels' names say so."""
    loader = load_loader(TEMPLATE.loader)
    rows = [dict(zip(KNOBS, row, strict=True)) for row in loader.listing(str(problem), None).rows]
    knobs = next(each for each in rows if int(each["split_k"]) > 1 and each["reduction"] == 2 and each["guess"] == 0)
    evidence, chosen = replace(PROVEN, study=str(tmp_path)), Configuration.of(knobs)
    outcome = Outcome(problem, TEMPLATE.name, "", "h200", Choice.ALGORITHM, evidence, chosen, library=loader.version)
    return from_studies.make_bundle([outcome], ArtifactStore(tmp_path / "store"), tmp_path / "bundle")


def inputs_of(problem: GemmProblem, seed: int) -> tuple[torch.Tensor, ...]:
    return tuple(Gemm().inputs(problem, torch.Generator("cuda").manual_seed(seed)))


def check(result: torch.Tensor, problem: GemmProblem, inputs: tuple[torch.Tensor, ...]) -> None:
    expected = Gemm().reference(problem, inputs)
    assert ((result.float() - expected).norm() / expected.norm()).item() < problem.tolerance


def splits(function: Callable[..., torch.Tensor], *arguments: object) -> bool:
    """Whether a call launches a kernel that splits k."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        function(*arguments)
        torch.cuda.synchronize()
    return any("splitk" in event.key.lower() for event in profile.key_averages())


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_code_runs_the_algorithm_that_was_chosen(
    bundle: Bundle, problem: GemmProblem, form_of: Callable[[GemmProblem], Callable[..., torch.Tensor]], mode: str
) -> None:
    torch._dynamo.reset()
    form = form_of(problem)
    with use(bundle.path) as tuned:
        compiled = torch.compile(form, mode=mode, dynamic=False)
    with torch.no_grad():
        for seed in range(4):  # with CUDA graphs: warm up, capture, replay
            inputs = inputs_of(problem, seed)
            torch.compiler.cudagraph_mark_step_begin()
            check(compiled(*inputs), problem, inputs)
        assert splits(compiled, *inputs)
        assert not splits(form, *inputs)
    assert tuned.report.replaced == {str(problem): 1}


def test_the_first_call_of_an_algorithm_may_be_captured(bundle: Bundle, problem: GemmProblem) -> None:
    load(bundle.path)
    inputs = inputs_of(problem, 0)
    alpha, bias = epilogue_inputs(problem, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.ops.tilescout.gemm_compiled(*inputs[:2], alpha, bias, name_of(bundle, problem))
    for seed in (1, 2):
        fresh = inputs_of(problem, seed)
        for held, new in zip(inputs, fresh, strict=True):
            held.copy_(new)
        graph.replay()
        check(result, problem, fresh)
