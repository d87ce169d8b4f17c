"""Grouped products in compiled models on a GPU: real kernels, by ranges that are made up, streams and CUDA graphs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.export.bundle import KERNELS, Bundle, Kernel, write_bundle
from tilescout.search.export.grouped.dispatch import GroupedDispatch, grouped_family
from tilescout.search.export.grouped.kernels import find_grouped, name_of_grouped
from tilescout.search.export.inductor import load, use
from tilescout.search.export.ranges import Range
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.experts import read_grouped
from tilescout.spaces.gated import Gated, GatedProblem, swiglu
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.grouped_pair_sm90 import TEMPLATE as PAIRS
from tilescout.spaces.grouped_pair_sm90 import pair_of
from tilescout.spaces.grouped_pair_sm90.rule import PairRule
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.routing import Routing
from tilescout.spaces.scaled import Scaled
from tilescout.spaces.templates import find_template, of_any_problem

# Code out of TorchInductor's cache reports nothing: the pass that counts what it replaces did not run.
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fresh_inductor")]

PRODUCT = GroupedProblem(16, 1, 1544, 776)  # that no tile divides
TEMPLATE = find_template("grouped_gemm_sm90")
MOST = 5000
WORKLOAD = Grouped()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    """Two kernels, for few tokens and for more, of which one is trimmed; and both as a pair for many."""
    many = TEMPLATE.default(GroupedProblem.parse("16x4096x1544x776:bf16:balanced"), DEVICES["h200"])
    wanted = [
        TEMPLATE.default(GroupedProblem.parse("16x64x1544x776:bf16:balanced"), DEVICES["h200"]),
        Configuration.of({**many, "trim": 1}),
    ]
    store = ArtifactStore(tmp_path_factory.mktemp("store"))
    kernels, digests = {}, list[str]()
    with CompilePool(TEMPLATE, "bf16", "sm_90a", store, CompileOptions()) as pool:
        for each, built in [(each, pool.submit(each)) for each in wanted]:
            artifact = built.result()
            assert isinstance(artifact, Artifact), artifact
            digests.append(f"{len(digests)}" * 64)
            blocks = TEMPLATE.blocks_per_cluster(each)
            file = f"{KERNELS}/{digests[-1]}.so"
            kernel = Kernel(file, artifact.sha256, artifact.function, TEMPLATE.workload, blocks, {})
            kernels[digests[-1]] = (kernel, artifact.path)
        pair = pair_of(
            wanted[0], wanted[1], PairRule((0, 0, 1, -3, 0, 0))
        )  # of some routings the one, of others the other
        with CompilePool(of_any_problem(PAIRS), "bf16", "sm_90a", store, CompileOptions()) as pairs:
            artifact = pairs.submit(pair).result()
            assert isinstance(artifact, Artifact), artifact
        file, scratch = f"{KERNELS}/{'2' * 64}.so", PAIRS.scratch_bytes(pair, PRODUCT)
        both = Kernel(file, artifact.sha256, artifact.function, PAIRS.workload, 1, {}, scratch_bytes=scratch)
        kernels["2" * 64] = (both, artifact.path)
        ranges = (
            Range(1, 300, digests[0], True),
            Range(301, 2000, digests[1], True),
            Range(2001, MOST, "2" * 64, True),
        )
        dispatch = GroupedDispatch(PRODUCT, ranges, "made up", "nothing")
        path: Path = tmp_path_factory.mktemp("bundle") / "bundle"
        yield write_bundle(path, "sm_90a", "h200", {}, [], kernels, grouped=[dispatch])


def operands(tokens: int, routing: str = "zipf-1", seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """A, B and the ends of the groups on the GPU."""
    problem = GroupedProblem.parse(f"16x{tokens}x1544x776:bf16:{routing}:draws-{seed}-{seed}")
    return WORKLOAD.inputs(problem, torch.Generator("cuda").manual_seed(seed))  # type: ignore[return-value]


def check(result: Tensor, given: tuple[Tensor, ...]) -> None:
    """Compare with fp32."""
    problem = GroupedProblem(16, len(given[0]), 1544, 776)
    expected = WORKLOAD.reference(problem, given)
    assert ((result.float() - expected).norm() / expected.norm()).item() < problem.tolerance


def experts(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    return torch.nn.functional.grouped_mm(a, b.transpose(-2, -1), offs=ends)


def compiled_for_any_number(bundle: Bundle) -> Callable[..., Tensor]:
    """`experts` as one piece of code for any number of tokens, which a first call was checked with."""
    torch._dynamo.reset()
    with use(bundle.path) as tuned:
        compiled = torch.compile(experts)
    first = operands(64)
    torch._dynamo.mark_dynamic(first[0], 0)
    check(compiled(*first), first)
    assert tuned.report.replaced == {"16x*x1544x776:bf16": 1}
    return compiled


def test_one_graph_runs_our_kernels_for_any_number_of_tokens(bundle: Bundle) -> None:
    compiled = compiled_for_any_number(bundle)
    for tokens in (1, 17, 300, 301, 1000, MOST, MOST + 1):
        for routing in ("balanced", "zipf-1", "one"):
            given = operands(tokens, routing)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                result = compiled(*given)
                torch.cuda.synchronize()
            check(result, given)
            ours = any("GroupedGemmSm90" in event.key for event in profile.key_averages())
            assert ours == (tokens <= MOST)


def test_the_products_of_torchtitans_experts_run_our_kernels(bundle: Bundle) -> None:
    def titan(x: Tensor, gate: Tensor, up: Tensor, counts: Tensor) -> Tensor:
        """Its experts before the down product: weights in fp32, gate and up apart, the ends counted from the tokens."""
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)

        def product(weights: Tensor) -> Tensor:
            return torch._grouped_mm(x.bfloat16(), weights.bfloat16().transpose(-2, -1), offs=ends)

        return torch.nn.functional.silu(product(gate)) * product(up)

    torch._dynamo.reset()
    a, b, ends = operands(1000)
    given = a.float(), b.float(), b.float().flip(1), torch.diff(ends, prepend=ends.new_zeros(1))
    with use(bundle.path) as tuned:
        result = torch.compile(titan, dynamic=False)(*given)
    expected = titan(*given).float()
    assert ((result.float() - expected).norm() / expected.norm()).item() < PRODUCT.tolerance
    assert tuned.report.replaced == {"16x1000x1544x776:bf16": 2}


def test_the_first_call_may_be_captured_and_replays_read_new_offsets(bundle: Bundle) -> None:
    load(bundle.path)
    held = operands(1000)
    name = name_of_grouped(bundle, bundle.grouped[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.ops.tilescout.grouped_mm(*held, name)
    for seed, routing in enumerate(("balanced", "zipf-1", "one")):
        for old, fresh in zip(held, operands(1000, routing, seed), strict=True):
            old.copy_(fresh)
        graph.replay()
        check(result, held)


def test_code_for_any_number_of_tokens_may_be_captured_and_replays_read_new_offsets(bundle: Bundle) -> None:
    compiled = compiled_for_any_number(bundle)
    for tokens in (7, 1000, 4000, MOST + 1):  # either kernel, the pair, and torch's
        held = operands(tokens)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(*held)
        for old, fresh in zip(held, operands(tokens, "one", tokens), strict=True):
            old.copy_(fresh)
        graph.replay()
        check(result, held)


def test_a_model_may_be_captured_by_inductor(bundle: Bundle) -> None:
    torch._dynamo.reset()
    with use(bundle.path) as tuned:
        compiled = torch.compile(experts, mode="reduce-overhead", dynamic=False)
    given = operands(200)
    for _ in range(4):
        check(compiled(*given), given)
    assert tuned.report.replaced


@pytest.mark.parametrize("tokens", [1000, 4000])
def test_offsets_that_are_none_do_no_harm(bundle: Bundle, tokens: int) -> None:
    load(bundle.path)
    a, b, _ = operands(tokens)
    run = find_grouped(name_of_grouped(bundle, bundle.grouped[0]))
    for wrong in ((900, 3, 2**31 - 1, -7, 500, 500), (-(2**31), 5000, 10), (7,)):
        ends = torch.tensor((wrong * 16)[:16], dtype=torch.int32, device="cuda")
        run(a, b, ends)
        torch.cuda.synchronize()  # a fault would show here, and in all that follows
    given = operands(tokens)
    check(run(*given), given)


@pytest.mark.parametrize("tokens", [200, 1000, 4000])  # either kernel, and the pair
def test_offsets_that_are_none_do_no_harm_in_replays_and_direct_calls(bundle: Bundle, tokens: int) -> None:
    compiled, held = compiled_for_any_number(bundle), operands(tokens)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(*held)
    for wrong in ((900, 3, 2**31 - 1, -7, 500, 500), (-(2**31), 5000, 10), (7,)):
        held[2].copy_(torch.tensor((wrong * 16)[:16], dtype=torch.int32))
        graph.replay()
        compiled(*held)
        torch.cuda.synchronize()  # a fault would show here, and in all that follows
    for old, fresh in zip(held, operands(tokens, "one", tokens), strict=True):
        old.copy_(fresh)
    graph.replay()
    check(result, held)
    check(compiled(*held), held)


def test_gradients_are_right(bundle: Bundle) -> None:
    torch._dynamo.reset()
    a, b, ends = operands(256)
    wanted = a.clone().requires_grad_(), b.clone().requires_grad_()
    experts(*wanted, ends).float().square().mean().backward()
    ours = a.clone().requires_grad_(), b.clone().requires_grad_()
    with use(bundle.path) as tuned:
        compiled = torch.compile(experts, dynamic=False)
    compiled(*ours, ends).float().square().mean().backward()
    assert tuned.report.replaced
    for one, other in zip(ours, wanted, strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert ((one.grad - other.grad).float().norm() / other.grad.float().norm()).item() < 2**-6


@pytest.fixture(scope="module", params=["swiglu", "scaled"])
def behind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Kernels of a product with something behind it, for few tokens and for more."""
    form, folder = request.param, tmp_path_factory.mktemp("behind")
    template = find_template(f"grouped_{form}_sm90")
    problem = read_grouped(f"128x1x1536x2048:bf16:{form}")
    wanted = [template.default(replace(problem, tokens=tokens), DEVICES["h200"]) for tokens in (256, 8192)]
    kernels, digests = {}, ["0" * 64, "1" * 64]
    with CompilePool(template, problem.signature, "sm_90a", ArtifactStore(folder / "store"), CompileOptions()) as pool:
        for digest, each, built in [(*pair, pool.submit(pair[1])) for pair in zip(digests, wanted, strict=True)]:
            artifact = built.result()
            assert isinstance(artifact, Artifact), artifact
            blocks = template.blocks_per_cluster(each)
            file = f"{KERNELS}/{digest}.so"
            kernel = Kernel(file, artifact.sha256, artifact.function, template.workload, blocks, {})
            kernels[digest] = kernel, artifact.path
    ranges = (Range(1, 1000, digests[0], True), Range(1001, 20_000, digests[1], True))
    dispatch = GroupedDispatch(problem, ranges, "made up", "nothing")
    return write_bundle(folder / "bundle", "sm_90a", "h200", {}, [], kernels, grouped=[dispatch])


def inputs_of(bundle: Bundle, tokens: int) -> tuple[tuple[Tensor, ...], Tensor]:
    """Random operands of its product, routed unevenly, and what is right."""
    problem = replace(bundle.grouped[0].problem, tokens=tokens, routing=Routing.parse("zipf-1"))
    workload = Gated() if isinstance(problem, GatedProblem) else Scaled()
    given = workload.inputs(replace(problem, first_draw=tokens, last_draw=tokens), torch.Generator("cuda"))
    return given, workload.reference(problem, given)


def close(result: Tensor, expected: Tensor) -> bool:
    """Whether a result is within the error of its type."""
    error = ((result.float() - expected).norm() / expected.norm()).item()
    return error < GroupedProblem(1, 1, 8, 8).tolerance


def test_what_stands_behind_a_product_runs_in_its_kernel(behind: Bundle) -> None:
    def weighted(a: Tensor, b: Tensor, ends: Tensor, *scale: Tensor) -> Tensor:
        product = experts(a, b, ends)
        return product * scale[0].to(product.dtype).unsqueeze(-1) if scale else swiglu(product, False)

    torch._dynamo.reset()
    with use(behind.path) as tuned:
        compiled = torch.compile(weighted)
    for tokens in (256, 7, 1000, 1001, 16_384, 20_001):
        given, expected = inputs_of(behind, tokens)
        for each in (given[0], *given[3:]):
            torch._dynamo.mark_dynamic(each, 0)
        assert close(compiled(*given), expected)
    assert tuned.report.replaced == {grouped_family(behind.grouped[0].problem): 1}


@pytest.mark.parametrize("tokens", [256, 8192])
def test_operands_that_are_none_do_no_harm_behind_a_product_either(behind: Bundle, tokens: int) -> None:
    load(behind.path)
    run = find_grouped(name_of_grouped(behind, behind.grouped[0]))
    (a, b, ends, *scale), expected = inputs_of(behind, tokens)
    for seed in range(20):
        generator = torch.Generator("cuda").manual_seed(seed)
        bits = 31 if seed % 2 else 14
        wrong = torch.randint(-(2**bits), 2**bits - 1, ends.shape, generator=generator, device="cuda").int()
        run(a, b, wrong, *scale)
        torch.cuda.synchronize()  # a fault would show here, and in all that follows
    apart = torch.empty(2 * tokens, a.shape[1], dtype=a.dtype, device="cuda")[::2].copy_(a)  # rows not contiguous
    assert close(run(apart, b, ends, *scale), expected)
    assert close(run(a, b.transpose(1, 2).contiguous().transpose(1, 2), ends, *scale), expected)
    for refused in (
        (a.float(), b, ends),
        (a, b, ends[:5]),
        (a, b, ends.float()),
        (a[:, :8], b, ends),
        (a, b.cpu(), ends),
    ):
        with pytest.raises((RuntimeError, IndexError)):  # torch says what is wrong
            run(*refused, *scale)
    assert close(run(a, b, ends, *scale), expected)
