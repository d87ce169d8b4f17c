"""Checks that need a GPU: streams, CUDA graphs, and models that are right. Real kernels, forced decisions."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.cpp_extension import CUDA_HOME

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.export.bundle import KERNELS, Bundle, Kernel, write_bundle
from tilescout.search.export.decisions import Choice, Decision, Evidence
from tilescout.search.export.inductor import load, use
from tilescout.search.export.loaded_kernels import name_of
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.templates import find_template

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_inductor")]

# No race was run: an interval below 1 is what makes a bundle choose ours, and no time of the library says of what.
FORCED = Evidence("none", "forced", 0.97, 0.96, 0.98, 12)
PROBLEMS = ("64x1024x512", "128x1024x512", "128x512x1024", "64x512x1024", "64x256x512x3")


@pytest.fixture(scope="module")
def bundle(compiled_gemm: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    template = find_template("gemm_sm90")
    blocks = template.blocks_per_cluster(template.default(GemmProblem(4096, 4096, 4096), DEVICES["h200"]))
    digest = "0" * 64
    kernel = Kernel(
        f"{KERNELS}/{digest}.so", compiled_gemm.sha256, compiled_gemm.function, "tilescout.spaces.gemm:Gemm", blocks, {}
    )
    decisions = [Decision(GemmProblem.parse(text), Choice.OURS, FORCED, digest) for text in PROBLEMS]
    path = tmp_path_factory.mktemp("bundle") / "bundle"
    return write_bundle(path, "sm_90a", "h200", {}, decisions, {digest: (kernel, compiled_gemm.path)})


def operands(m: int, n: int, k: int, batch: int = 1, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    shape = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    return torch.randn(batch, m, k, **shape), torch.randn(batch, n, k, **shape)  # type: ignore[call-overload]


def check(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    expected = a.float() @ b.float().transpose(-1, -2)
    assert ((result.float() - expected).norm() / expected.norm()).item() < 2**-8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up = nn.Linear(512, 1024, bias=False, dtype=torch.bfloat16, device="cuda")
        self.down = nn.Linear(1024, 512, bias=False, dtype=torch.bfloat16, device="cuda")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def profiled(function: Callable[..., torch.Tensor], *arguments: object) -> tuple[torch.Tensor, int, list[str]]:
    """The result of a call, how many of our kernels it launched, and the names of all that it launched."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        result = function(*arguments)
        torch.cuda.synchronize()
    names = [event.key for event in profile.key_averages() for _ in range(event.count)]
    return result, sum("GemmSm90" in name for name in names), names


def test_the_first_call_of_a_process_may_be_captured(bundle: Bundle) -> None:
    load(bundle.path)
    a, b = operands(64, 1024, 512)
    name = name_of(bundle, GemmProblem(64, 1024, 512))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.ops.tilescout.gemm_compiled(a, b, None, None, name)
    for seed in (1, 2):
        for held, fresh in zip((a, b), operands(64, 1024, 512, seed=seed), strict=True):
            held.copy_(fresh)
        graph.replay()
        check(result, a, b)


def test_our_kernel_runs_in_order_on_the_current_stream(bundle: Bundle) -> None:
    load(bundle.path)
    a, b = operands(128, 1024, 512)
    name = name_of(bundle, GemmProblem(128, 1024, 512))
    stream = torch.cuda.Stream()
    expected = torch.full_like(a, 0.5) @ b.transpose(1, 2)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # longer than a launch takes: another stream would run ahead of the fill
        a.fill_(0.5)
        result = torch.ops.tilescout.gemm(a, b, None, None, name)
        stream.synchronize()
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)


def test_compiled_code_runs_in_order_on_the_current_stream_with_the_weights_that_are_there(bundle: Bundle) -> None:
    torch._dynamo.reset()
    model = Block()
    with use(bundle.path):
        compiled = torch.compile(model, dynamic=False)
    x = operands(64, 8, 512)[0][0]
    stream = torch.cuda.Stream()
    with torch.no_grad():
        compiled(x)
        for seed in (1, 2):
            weights = [torch.randn_like(each) * 0.05 for each in model.parameters()]
            fresh = operands(64, 8, 512, seed=seed)[0][0]
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
                x.copy_(fresh)
                for held, weight in zip(model.parameters(), weights, strict=True):
                    if seed == 1:
                        held.copy_(weight)
                    else:
                        held.data = weight  # elsewhere in memory
                result = compiled(x)
            stream.synchronize()
            reference = model(fresh).float()
            assert ((result.float() - reference).norm() / reference.norm()).item() < 2**-6


def test_every_decided_product_runs_our_kernel_and_is_right(bundle: Bundle) -> None:
    load(bundle.path)
    for text in PROBLEMS:
        problem = GemmProblem.parse(text)
        a, b = operands(problem.m, problem.n, problem.k, problem.batch)
        result, ours, names = profiled(torch.ops.tilescout.gemm_compiled, a, b, None, None, name_of(bundle, problem))
        check(result, a, b)
        assert ours == 1, names


def test_a_batch_of_one_may_have_any_stride(bundle: Bundle) -> None:
    load(bundle.path)
    a, b = operands(64, 1024, 512)
    views = (tensor.as_strided(tensor.shape, (0, 512, 1)) for tensor in (a, b))
    result, ours, names = profiled(
        torch.ops.tilescout.gemm_compiled, *views, None, None, name_of(bundle, GemmProblem(64, 1024, 512))
    )
    check(result, a, b)
    assert ours == 1, names


def test_misaligned_operands_go_to_the_library(bundle: Bundle) -> None:
    load(bundle.path)
    a, b = operands(64, 1024, 512)
    shifted = torch.empty(a.numel() + 1, dtype=a.dtype, device="cuda")[1:].view_as(a).copy_(a)
    name = name_of(bundle, GemmProblem(64, 1024, 512))
    result, ours, names = profiled(torch.ops.tilescout.gemm_compiled, shifted, b, None, None, name)
    check(result, a, b)
    assert ours == 0, names


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_model_is_right_and_runs_our_kernels(bundle: Bundle, mode: str) -> None:
    torch._dynamo.reset()
    model = Block()
    with use(bundle.path) as tuned:
        compiled = torch.compile(model, mode=mode, dynamic=False)
    with torch.no_grad():
        for seed in range(4):  # with CUDA graphs: warm up, capture, replay
            x = operands(64, 8, 512, seed=seed)[0][0]
            torch.compiler.cudagraph_mark_step_begin()
            result = compiled(x)
            reference = model(x).float()
            assert ((result.float() - reference).norm() / reference.norm()).item() < 2**-6
        _, ours, names = profiled(compiled, x)
    assert tuned.report.replaced == {"64x1024x512:bf16": 1, "64x512x1024:bf16": 1}
    assert ours == 2, names


def test_a_dynamic_size_is_looked_up_at_run_time(bundle: Bundle) -> None:
    torch._dynamo.reset()
    model = Block()
    with use(bundle.path):
        compiled = torch.compile(model, dynamic=True)
    with torch.no_grad():
        for rows, expected in ((64, 2), (100, 2), (128, 2), (40, 0), (512, 0)):
            x = operands(rows, 8, 512)[0][0]
            compiled(x)
            result, ours, names = profiled(compiled, x)
            reference = model(x).float()
            assert ((result.float() - reference).norm() / reference.norm()).item() < 2**-6
            assert ours == expected, (rows, names)


def test_training_gives_the_gradients_of_the_model(bundle: Bundle) -> None:
    torch._dynamo.reset()
    model, reference = Block(), Block()
    with use(bundle.path):
        compiled = torch.compile(model, dynamic=False)
    x = operands(64, 8, 512)[0][0]
    for trained in (compiled, reference):
        trained(x).float().pow(2).mean().backward()
    for mine, expected in zip(model.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None
        assert expected.grad is not None
        assert ((mine.grad - expected.grad).norm() / expected.grad.norm()).item() < 2**-5


@pytest.fixture(scope="module")
def fused(fused_problems: Sequence[GemmProblem], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Every form that kernels are built for, by the template's default for it; compiled side by side."""
    template, device = find_template("gemm_sm90"), DEVICES["h200"]
    store, decisions, kernels = ArtifactStore(tmp_path_factory.mktemp("fused")), [], {}
    with ExitStack() as stack:
        pending = []
        for problem in fused_problems:
            options = CompileOptions(processes=1)
            pool = stack.enter_context(CompilePool(template, problem.signature, device.arch, store, options))
            pending.append(pool.submit(template.default(problem, device)))
        for number, (problem, future) in enumerate(zip(fused_problems, pending, strict=True)):
            artifact, digest = future.result(), f"{number:064x}"
            assert isinstance(artifact, Artifact), artifact.error
            blocks = template.blocks_per_cluster(template.default(problem, device))
            file = f"{KERNELS}/{digest}.so"
            kernel = Kernel(file, artifact.sha256, artifact.function, template.workload, blocks, {})
            kernels[digest] = kernel, artifact.path
            decisions.append(Decision(problem, Choice.OURS, FORCED, digest))
    return write_bundle(tmp_path_factory.mktemp("bundle") / "fused", "sm_90a", "h200", {}, decisions, kernels)


def check_problem(result: torch.Tensor, problem: GemmProblem, inputs: tuple[torch.Tensor, ...]) -> None:
    expected = Gemm().reference(problem, inputs)
    error = ((result.float() - expected).norm() / expected.norm()).item()
    assert error < problem.tolerance, (str(problem), error)


def inputs_of(problem: GemmProblem, seed: int = 0) -> tuple[torch.Tensor, ...]:
    return Gemm().inputs(problem, torch.Generator("cuda").manual_seed(seed))


def test_layouts_epilogues_and_fp8_run_our_kernels_in_the_operator(fused: Bundle, fused_problem: GemmProblem) -> None:
    load(fused.path)
    inputs = inputs_of(fused_problem)
    epilogue = list(inputs[2:])
    alpha = epilogue.pop(0) if fused_problem.alpha else None
    bias = epilogue.pop(0) if fused_problem.bias else None
    name = name_of(fused, fused_problem)
    result, ours, names = profiled(torch.ops.tilescout.gemm_compiled, *inputs[:2], alpha, bias, name)
    assert ours == 1, names
    check_problem(result, fused_problem, inputs)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_layouts_epilogues_and_fp8_run_our_kernels_in_compiled_code(
    fused: Bundle,
    fused_problem: GemmProblem,
    form_of: Callable[[GemmProblem], Callable[..., torch.Tensor]],
    mode: str,
) -> None:
    torch._dynamo.reset()
    with use(fused.path) as tuned:
        compiled = torch.compile(form_of(fused_problem), mode=mode, dynamic=False)
    with torch.no_grad():
        for seed in range(4):  # with CUDA graphs: warm up, capture, replay
            inputs = inputs_of(fused_problem, seed)
            torch.compiler.cudagraph_mark_step_begin()
            check_problem(compiled(*inputs), fused_problem, inputs)
        _, ours, names = profiled(compiled, *inputs)
    assert tuned.report.replaced == {str(fused_problem): 1}
    assert ours == 1, names


@pytest.mark.skipif(CUDA_HOME is None, reason="an AOTInductor package for a GPU is linked with the CUDA toolkit")
def test_an_aotinductor_package_runs_our_kernels(bundle: Bundle, tmp_path: Path) -> None:
    torch._dynamo.reset()
    model, x = Block(), operands(64, 8, 512)[0][0]
    package = str(tmp_path / "model.pt2")
    with torch.no_grad():
        exported = torch.export.export(model, (x,))
        with use(bundle.path) as tuned:
            torch._inductor.aoti_compile_and_package(exported, package_path=package)
        loaded = torch._inductor.aoti_load_package(package)
        result, ours, names = profiled(loaded, x)
        reference = model(x).float()
    assert tuned.report.replaced == {"64x1024x512:bf16": 1, "64x512x1024:bf16": 1}
    assert ours == 2, names
    assert ((result.float() - reference).norm() / reference.norm()).item() < 2**-6
