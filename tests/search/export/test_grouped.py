"""Grouped products in compiled models: real kernels on the host, in the place of torch._grouped_mm."""

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.utils import run_and_get_code
from torch.fx import Graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import silu

from tilescout.search.build.loading import runtime_libraries
from tilescout.search.build.making import find_linker
from tilescout.search.export import generated_calls
from tilescout.search.export.bundle import KERNELS, Bundle, Kernel, read_bundle, write_bundle
from tilescout.search.export.generated_calls import bind_any_tokens, bind_grouped
from tilescout.search.export.graph_nodes import Report
from tilescout.search.export.graph_rewrite import replace_products
from tilescout.search.export.grouped.dispatch import GroupedDispatch
from tilescout.search.export.grouped.kernels import run_library
from tilescout.search.export.grouped.rewrite import replace_grouped
from tilescout.search.export.inductor import GraphPass, load, use
from tilescout.search.export.ranges import Range
from tilescout.spaces.checksums import digest_of
from tilescout.spaces.errors import BundleError
from tilescout.spaces.gated import GatedProblem, swiglu
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.scaled import ScaledProblem

EXPERTS, N, K = 4, 48, 16
PRODUCT = GroupedProblem(EXPERTS, 1, N, K)
SOURCE = Path(__file__).parents[1] / "kernels" / "grouped_gemm.c"
LIBRARY = "tilescout.search.export.grouped.kernels.run_library"
DIGEST = "0" * 63 + "e"
GATED, WITH_SWIGLU = GatedProblem(EXPERTS, 1, N, K), "0" * 63 + "f"
SCALED, WITH_SCALE = ScaledProblem(EXPERTS, 1, N, K), "0" * 63 + "d"
RANGES = (Range(1, 30, DIGEST, True), Range(31, 40), Range(41, 64, DIGEST, True))


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    """A function: a bundle of the product with these ranges."""
    folder = tmp_path_factory.mktemp("grouped")
    include = Path(str(find_spec("tvm_ffi").origin)).with_name("include")  # type: ignore[union-attr]
    command = [find_linker(), "-shared", "-O2", "-fPIC", "-I", str(include), "-o", str(folder / "kernel.so")]
    subprocess.run([*command, str(SOURCE), *map(str, runtime_libraries())], check=True)
    sha256 = hashlib.sha256((folder / "kernel.so").read_bytes()).hexdigest()
    kernels = {
        digest: Kernel(f"{KERNELS}/{digest}.so", sha256, entry, f"tilescout.spaces.{workload}", 1, {"made": "here"})
        for digest, entry, workload in (
            (DIGEST, "grouped_gemm", "grouped:Grouped"),
            (WITH_SWIGLU, "grouped_swiglu", "gated:Gated"),
            (WITH_SCALE, "grouped_scaled", "scaled:Scaled"),
        )
    }

    def make(
        ranges: tuple[Range, ...] = RANGES,
        times: int = 1,
        gated: tuple[Range, ...] = (),
        scaled: tuple[Range, ...] = (),
    ) -> Bundle:
        path = tmp_path_factory.mktemp("bundles") / "bundle"
        used = {each.kernel for each in (*ranges, *gated, *scaled)}
        held = {digest: (kernel, folder / "kernel.so") for digest, kernel in kernels.items() if digest in used}
        dispatch = GroupedDispatch(PRODUCT, ranges, "a.parquet", "a test", {}, (8, 64), ("balanced", "zipf-1"), 0.9)
        dispatches = [dispatch] * times + [
            replace(dispatch, problem=problem, ranges=found)
            for problem, found in ((GATED, gated), (SCALED, scaled))
            if found
        ]
        return write_bundle(path, "host", "host", {"made": str(path)}, [], held, grouped=dispatches)

    return make


@pytest.fixture
def tuned(make: Callable[..., Bundle]) -> Iterator[GraphPass]:
    """The pass of a bundle that is in force; what is compiled here is forgotten afterwards."""
    torch._dynamo.reset()
    with use(make().path) as tuned:
        yield tuned
    torch._dynamo.reset()


def experts(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
    """As transformers writes it."""
    return torch.nn.functional.grouped_mm(a, b.transpose(-2, -1), offs=ends)


def operands(tokens: int, n: int = N) -> tuple[Tensor, Tensor, Tensor]:
    """A, B, and ends that leave an expert without tokens."""
    generator = torch.Generator().manual_seed(tokens)
    a = torch.randn(tokens, K, generator=generator, dtype=torch.bfloat16)
    b = torch.randn(EXPERTS, n, K, generator=generator, dtype=torch.bfloat16)
    return a, b, torch.tensor([tokens // 3, tokens // 3, tokens // 2, tokens], dtype=torch.int32)


def refuse(*_: object) -> Tensor:
    """In the place of `run_library`."""
    raise AssertionError("the library was called")


def test_a_served_number_of_tokens_runs_our_kernel(tuned: GraphPass, monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(20)
    expected, compiled = experts(*given), torch.compile(experts, dynamic=False)
    compiled(*given)
    monkeypatch.setattr(LIBRARY, refuse)
    torch.testing.assert_close(compiled(*given), expected)
    assert tuned.report.replaced == {"4x20x48x16:bf16": 1}


def test_code_for_a_known_number_of_tokens_calls_a_kernel_without_torchs_dispatcher(tuned: GraphPass) -> None:
    a, b, ends = operands(20)
    expected = experts(a, b, ends)
    result, (code, *_) = run_and_get_code(torch.compile(experts, dynamic=False), a, b, ends)
    assert "tilescout_calls.bind_grouped(" in code
    assert "torch.ops.tilescout" not in code
    torch.testing.assert_close(result, expected)

    def chained(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
        """A product whose A comes from another one."""
        return experts(experts(a, b, ends)[:, :K] + experts(a, b, ends)[:, -K:], b, ends)

    result = torch.compile(chained, dynamic=False)(a, b, ends)
    wanted = chained(a, b, ends).float()
    assert ((result.float() - wanted).norm() / wanted.norm()).item() < 2**-7
    name, output = f"{tuned.bundle.digest}/4x*x48x16:bf16", torch.empty_like(expected)
    shifted = torch.empty(20 * K + 1, dtype=a.dtype)[1:].view(20, K).copy_(a)  # not aligned to 16 bytes
    bind_grouped(name, 20, None)(shifted, b, ends, out=output)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(bind_any_tokens(name, None)(shifted, b, ends), expected)
    assert bind_any_tokens(name, None)(a[:0], b, torch.zeros_like(ends)).shape == (0, N)


def test_the_products_of_torchtitans_experts_run_our_kernels(tuned: GraphPass) -> None:
    def titan(x: Tensor, gate: Tensor, up: Tensor, down: Tensor, counts: Tensor) -> Tensor:
        """Its experts: weights in fp32, gate and up apart, the ends counted from the tokens of each expert."""
        ends = torch.cumsum(counts, dim=0, dtype=torch.int32)

        def product(rows: Tensor, weights: Tensor) -> Tensor:
            return torch._grouped_mm(rows.bfloat16(), weights.bfloat16().transpose(-2, -1), offs=ends)

        return product(silu(product(x, gate)) * product(x, up), down).type_as(x)

    x, gate, _ = operands(20)
    weights = gate.float(), gate.float().flip(1), gate.float().transpose(1, 2).contiguous()
    given = (x.float(), *weights, torch.tensor([6, 0, 4, 10]))
    result, expected = torch.compile(titan, dynamic=False)(*given), titan(*given)
    assert ((result - expected).norm() / expected.norm()).item() < 2**-7
    assert (tuned.report.replaced, tuned.report.unknown) == ({"4x20x48x16:bf16": 2}, {"4x20x16x48:bf16": 1})


def test_other_numbers_of_tokens_and_other_products_stay_the_librarys(tuned: GraphPass) -> None:
    for given in (operands(35), operands(20, n=32)):
        torch.testing.assert_close(torch.compile(experts, dynamic=False)(*given), experts(*given))
    assert not tuned.report.replaced
    assert (tuned.report.left, tuned.report.unknown) == ({"4x35x48x16:bf16": 1}, {"4x20x32x16:bf16": 1})


def test_one_graph_serves_every_number_of_tokens(tuned: GraphPass, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (3, 30, 35, 41, 64, 65)
    expected = [experts(*operands(tokens)) for tokens in sizes]
    called = list[int]()
    compiled, first = torch.compile(experts), operands(8)
    torch._dynamo.mark_dynamic(first[0], 0)

    def count(a: Tensor, *others: Any) -> Tensor:
        called.append(len(a))
        return run_library(a, *others)

    _, (code, *_) = run_and_get_code(compiled, *first)
    assert "tilescout_calls.bind_any_tokens(" in code
    assert "torch.ops.tilescout.grouped_mm.default(" not in code
    monkeypatch.setattr(generated_calls, "run_library", count)
    for tokens, wanted in zip(sizes, expected, strict=True):
        torch.testing.assert_close(compiled(*operands(tokens)), wanted)
    assert called == [35, 65]
    assert tuned.report.replaced == {"4x*x48x16:bf16": 1}


def test_what_our_kernels_can_not_take_goes_to_the_library(tuned: GraphPass) -> None:
    def plain(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
        return torch.ops.tilescout.grouped_mm(a, b, ends, f"{tuned.bundle.digest}/4x*x48x16:bf16")

    a, b, ends = operands(20)
    expected = torch._grouped_mm(a, b.transpose(1, 2), offs=ends)
    shifted = torch.empty(20 * K + 1, dtype=a.dtype)[1:].view(20, K).copy_(a)  # not aligned to 16 bytes
    apart = torch.empty(20, 2 * K, dtype=a.dtype)[:, :K].copy_(a)  # not contiguous
    for each in (a, shifted, apart):
        torch.testing.assert_close(plain(each, b, ends), expected)
    assert plain(a[:0], b, torch.zeros_like(ends)).shape == (0, N)
    every_second = torch.stack([ends, ends], dim=1)[:, 0]
    for strided in ((a, b.transpose(1, 2).contiguous().transpose(1, 2), ends), (a, b, every_second)):
        torch.testing.assert_close(plain(*strided), expected)
    wrongly_typed = (a, b, ends.long()), (a, b, ends.float()), (a.float(), b, ends)
    for wrong in ((a[:, :8], b, ends), (a, b, ends[:2]), (a, b[0], ends), (a, b.float(), ends), *wrongly_typed):
        with pytest.raises((RuntimeError, IndexError)):  # torch says what is wrong; nothing is read out of bounds
            plain(*wrong)


def halves(product: Tensor) -> Tensor:
    """As transformers writes it."""
    gate, up = product.chunk(2, dim=-1)
    return silu(gate) * up


def up_first(product: Tensor) -> Tensor:
    gate, up = product.chunk(2, dim=1)
    return up * silu(gate)


def slices(product: Tensor) -> Tensor:
    return silu(product[:, : N // 2]) * product[..., N // 2 :]


@pytest.mark.parametrize(("way", "dynamic"), [(halves, True), (halves, False), (up_first, False), (slices, False)])
def test_swiglu_behind_a_product_is_our_kernels_however_it_is_written(
    make: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch, way: Callable[[Tensor], Tensor], dynamic: bool
) -> None:
    torch._dynamo.reset()
    given = operands(20)
    if dynamic:
        torch._dynamo.mark_dynamic(given[0], 0)
    with use(make(gated=(Range(1, 64, WITH_SWIGLU, True),)).path) as tuned:
        compiled = torch.compile(lambda *given: way(experts(*given)), dynamic=None if dynamic else False)
        compiled(*given)
    assert tuned.report.replaced == {f"4x{'*' if dynamic else 20}x48x16:bf16:swiglu": 1}
    for tokens in (20, 64, 65) if dynamic else (20,):
        other = operands(tokens)
        expected = way(experts(*other))
        with monkeypatch.context() as without:
            if tokens <= 64:  # no more were measured
                without.setattr(LIBRARY, refuse)
            torch.testing.assert_close(compiled(*other), expected, rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "halve",
    [
        lambda product: (product.narrow(-1, 0, N // 2), product.narrow(-1, N // 2, N // 2)),
        lambda product: (product.narrow(1, 0, N // 2), product[:, N // 2 : N]),
        lambda product: product.tensor_split(2, dim=-1),
        lambda product: product.split(N // 2, dim=-1),
        lambda product: product.split([N // 2, N // 2], dim=-1),
        lambda product: torch.split(product, [N // 2, N // 2], dim=1),
    ],
)
def test_halves_that_end_where_the_product_does_are_those_of_swiglu(
    make: Callable[..., Bundle], halve: Callable[[Tensor], tuple[Tensor, Tensor]]
) -> None:
    def gated(*given: Tensor) -> Tensor:
        gate, up = halve(experts(*given))
        return silu(gate) * up

    given, bundle, report = operands(20), make(gated=(Range(1, 64, WITH_SWIGLU, True),)), Report()
    traced = make_fx(gated, select_decomp_table(), tracing_mode="fake")(*given)
    load(bundle.path)
    replace_grouped(traced.graph, bundle, report)
    traced.recompile()
    torch.testing.assert_close(traced(*given), gated(*given), rtol=0.02, atol=0.02)
    assert report.replaced == {"4x20x48x16:bf16:swiglu": 1}


@pytest.mark.parametrize(
    ("behind", "gated"),
    [
        (lambda product: silu(product[:, : N // 2]) * product[:, N // 2 :] + product[:, :1], 64),  # read again
        (lambda product: silu(product[:, N // 2 :]) * product[:, : N // 2], 64),  # up first
        (lambda product: silu(product[:, ::2]) * product[:, 1::2], 64),  # in turn
        (lambda product: silu(product.split([8, N - 8], 1)[0]) * product[:, 8:16], 64),  # no halves
        (lambda product: swiglu(product, False), 19),  # not so many tokens
    ],
)
def test_a_product_whose_swiglu_is_no_kernels_is_one_alone(
    make: Callable[..., Bundle], behind: Callable[[Tensor], Tensor], gated: int
) -> None:
    given, bundle, report = operands(20), make(gated=(Range(1, gated, WITH_SWIGLU, True),)), Report()
    traced = make_fx(lambda *given: behind(experts(*given)), select_decomp_table(), tracing_mode="fake")(*given)
    load(bundle.path)
    replace_grouped(traced.graph, bundle, report)
    traced.recompile()
    torch.testing.assert_close(traced(*given), behind(experts(*given)), rtol=0.02, atol=0.02)
    assert report.replaced == {"4x20x48x16:bf16": 1}


def block(x: Tensor, b: Tensor, down: Tensor, chosen: Tensor, case: str) -> Tensor:
    """The experts as transformers writes them: rows of experts that are none come last, and are cleared."""
    sorted_experts, order = torch.sort(chosen)
    counts = torch.histc(sorted_experts.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
    ends = torch.cumsum(counts, dim=0, dtype=torch.int32)
    last = ((chosen if case == "in another order" else sorted_experts) >= EXPERTS).unsqueeze(-1)
    hidden = halves(experts(x[order], b, ends).masked_fill(last, 0.0))
    result = experts(hidden, down, ends).masked_fill((sorted_experts >= EXPERTS).unsqueeze(-1), 0.0)
    return result + hidden[:, :1] if case == "read" else result


@pytest.mark.parametrize(("case", "kept"), [("unread", 0), ("read", 1), ("in another order", 1)])
def test_rows_of_no_expert_are_cleared_behind_swiglu_where_anything_may_read_them(
    make: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch, case: str, kept: int
) -> None:
    torch._dynamo.reset()
    cleared = list[int]()

    def count(graph: Graph, *others: Any) -> None:
        replace_products(graph, *others)
        cleared.append(len(graph.find_nodes(op="call_function", target=torch.ops.aten.where.self)))

    monkeypatch.setattr("tilescout.search.export.inductor.replace_products", count)
    x, b, _ = operands(40)
    down, chosen = torch.randn(EXPERTS, 8, N // 2, dtype=b.dtype), torch.arange(40) % (EXPERTS + 2)
    with use(make(gated=(Range(1, 64, WITH_SWIGLU, True),)).path) as tuned:
        result = torch.compile(block, dynamic=False)(x, b, down, chosen, case)
    assert tuned.report.replaced == {"4x40x48x16:bf16:swiglu": 1}
    assert cleared == [1 + kept]
    expected = block(x, b, down, chosen, case).float()
    assert ((result.float() - expected).norm() / expected.norm()).item() < 2**-7


@pytest.mark.parametrize(("dtype", "dynamic"), [(torch.bfloat16, True), (torch.float32, False)])
def test_rows_are_scaled_in_the_kernel(
    make: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, dynamic: bool
) -> None:
    def weighted(a: Tensor, b: Tensor, ends: Tensor, weights: Tensor) -> Tensor:
        """As transformers writes it."""
        product = experts(a, b, ends).masked_fill((torch.arange(len(a)) >= 60).unsqueeze(-1), 0.0)
        return product * weights.unsqueeze(-1)

    def run(tokens: int) -> tuple[Tensor, ...]:
        return *operands(tokens), torch.rand(tokens, generator=torch.Generator().manual_seed(0)).to(dtype)

    torch._dynamo.reset()
    given = run(20)
    if dynamic:
        for each in (given[0], given[3]):
            torch._dynamo.mark_dynamic(each, 0)
    with use(make(scaled=(Range(1, 64, WITH_SCALE, True),)).path) as tuned:
        compiled = torch.compile(weighted, dynamic=None if dynamic else False)
        compiled(*given)
    assert tuned.report.replaced == {f"4x{'*' if dynamic else 20}x48x16:bf16:scaled": 1}
    for tokens in (20, 64, 65) if dynamic else (20,):
        with monkeypatch.context() as without:
            if tokens <= 64:  # no more were measured
                without.setattr(LIBRARY, refuse)
            result = compiled(*run(tokens))
        assert result.dtype is dtype
        torch.testing.assert_close(result, weighted(*run(tokens)), rtol=0.02, atol=0.02)


@pytest.mark.parametrize(
    "behind",
    [
        lambda product, weights: product * weights.unsqueeze(-1) + product,  # read again
        lambda product, weights: product * weights[:1].unsqueeze(-1),  # of one row
        lambda product, weights: product * weights[0],
        lambda product, weights: product * product,
        lambda product, weights: (product * weights.unsqueeze(-1).to(torch.int32)).to(product.dtype),  # whole numbers
    ],
)
def test_what_is_no_scale_of_rows_stays_torchs(
    make: Callable[..., Bundle], behind: Callable[[Tensor, Tensor], Tensor]
) -> None:
    given = (*operands(20), torch.rand(20, dtype=torch.bfloat16) + 0.5)
    bundle, report = make(scaled=(Range(1, 64, WITH_SCALE, True),)), Report()
    load(bundle.path)
    traced = make_fx(lambda *given: behind(experts(*given[:3]), given[3]), select_decomp_table(), tracing_mode="fake")(
        *given
    )
    replace_grouped(traced.graph, bundle, report)
    assert report.replaced == {"4x20x48x16:bf16": 1}


def test_a_scale_that_the_kernel_can_not_take_is_torchs(make: Callable[..., Bundle]) -> None:
    bundle = make(scaled=(Range(1, 64, WITH_SCALE, True),))
    load(bundle.path)
    a, b, ends = operands(20)
    scale, name = torch.rand(20), f"{bundle.digest}/4x*x48x16:bf16:scaled"
    run, expected = torch.ops.tilescout.grouped_mm, experts(a, b, ends)
    for each in (scale, scale.double(), torch.stack([scale, scale], dim=1)[:, 0]):
        wanted = (expected * scale[:, None]).to(expected.dtype)
        torch.testing.assert_close(run(a, b, ends, name, each), wanted, rtol=0.02, atol=0.02)
    torch.testing.assert_close(run(a, b, ends, name), expected)
    with pytest.raises(RuntimeError):
        run(a, b, ends, name, scale[:7])
    plain = name.removesuffix(":scaled")
    torch.testing.assert_close(run(a, b, ends, plain, scale), wanted, rtol=0.02, atol=0.02)


def test_swiglu_or_a_product_stays_torchs_where_ranges_of_unknown_tokens_lack_a_kernel(
    make: Callable[..., Bundle],
) -> None:
    torch._dynamo.reset()
    given = operands(20)
    torch._dynamo.mark_dynamic(given[0], 0)
    ranges = (Range(1, 30, WITH_SWIGLU, True), Range(31, 64))
    with use(make(gated=ranges).path) as tuned:
        torch.compile(lambda *given: swiglu(experts(*given), False))(*given)
    assert tuned.report.replaced == {"4x*x48x16:bf16": 1}
    with use(make((Range(1, 64),)).path) as tuned:
        torch.compile(experts)(*given)
    assert (tuned.report.left, tuned.report.replaced) == ({"4x*x48x16:bf16": 1}, {})


@pytest.mark.parametrize("dynamic", [False, True])
def test_offsets_that_are_none_do_no_harm(tuned: GraphPass, dynamic: bool) -> None:
    given = operands(20)
    compiled, expected = torch.compile(experts, dynamic=None if dynamic else False), experts(*given)
    if dynamic:
        torch._dynamo.mark_dynamic(given[0], 0)
    for ends in ([9, 3, 500, 20], [-5, 40, 41, -1], [2**31 - 1, -(2**31), 7, 7]):
        compiled(*given[:2], torch.tensor(ends, dtype=torch.int32))
    torch.testing.assert_close(compiled(*given), expected)
    assert tuned.report.replaced == {f"4x{'*' if dynamic else 20}x48x16:bf16": 1}


@pytest.mark.parametrize("dynamic", [False, None])
def test_operands_that_lie_otherwise_are_torchs_where_code_is_compiled_for_them(
    tuned: GraphPass, dynamic: bool | None
) -> None:
    a, b, ends = operands(20)
    apart = torch.empty(20, 2 * K, dtype=a.dtype)[:, :K].copy_(a)
    every_second = torch.stack([ends, ends], dim=1)[:, 0]
    expected = experts(a, b, ends)
    for given in ((apart, b, ends), (a, b, every_second)):
        torch._dynamo.reset()
        if dynamic is None:
            torch._dynamo.mark_dynamic(given[0], 0)
        torch.testing.assert_close(torch.compile(experts, dynamic=dynamic)(*given), expected)
    assert not tuned.report.replaced
    for wrong in ((a.float(), b, ends), (a, b, ends.long()), (a, b, ends[:2]), (a[:, :8], b, ends)):
        torch._dynamo.reset()
        with pytest.raises(RuntimeError):  # torch's, when it is traced
            torch.compile(experts, dynamic=dynamic)(*wrong)
    assert not tuned.report.replaced


@pytest.mark.parametrize(
    "form",
    [
        lambda a, b, ends: torch._grouped_mm(a, b.transpose(1, 2).contiguous(), offs=ends),  # B along n
        lambda a, b, ends: torch._grouped_mm(a.t(), a, offs=ends.clamp(max=20)),  # as in the gradient of B
    ],
)
def test_other_forms_are_left_alone(tuned: GraphPass, form: Callable[..., Tensor]) -> None:
    given = operands(20)
    torch.testing.assert_close(torch.compile(form, dynamic=False)(*given), form(*given))
    assert tuned.report.unknown == {"_grouped_mm": 1}


def test_gradients_are_the_librarys(tuned: GraphPass) -> None:
    a, b, ends = operands(20)
    wanted = a.clone().requires_grad_(), b.clone().requires_grad_()
    experts(*wanted, ends).float().square().sum().backward()
    ours = a.clone().requires_grad_(), b.clone().requires_grad_()
    torch.compile(experts, dynamic=False)(*ours, ends).float().square().sum().backward()
    assert tuned.report.replaced == {"4x20x48x16:bf16": 1}
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_bundle_holds_the_ranges_and_is_refused_with_two_of_a_product(make: Callable[..., Bundle]) -> None:
    bundle = make()
    assert read_bundle(bundle.path).grouped[0].ranges == RANGES
    assert bundle.used == [DIGEST]
    with pytest.raises(BundleError, match="2 lists of ranges of 4x\\*x48x16:bf16"):
        make(times=2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"problem": "4x9x48x16:bf16:balanced"}, "names tokens"),
        ({"ranges": []}, "are none"),
        ({"ranges": [{"low": 9, "high": 3, "kernel": "", "proven": False}]}, "no range goes from 9"),
        ({"routings": ["often"]}, "malformed routing"),
        ({"ranges": [{"low": 1, "high": 3, "kernel": "f" * 64, "proven": True}]}, "lacks the kernel"),
        ({"over_library": "nan"}, "over_library is not float"),
    ],
)
def test_ranges_that_can_not_be_are_refused(
    make: Callable[..., Bundle], change: dict[str, object], reason: str
) -> None:
    index = make().path / "bundle.json"
    record = json.loads(index.read_text())
    record["grouped"][0] |= change
    del record["digest"]
    index.write_text(json.dumps({**record, "digest": digest_of(record)}))
    with pytest.raises(BundleError, match=reason):
        read_bundle(index.parent)
