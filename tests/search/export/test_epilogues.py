"""Layouts, factors, biases, activations and fp8: a kernel that takes them, on the host, in compiled models."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from tilescout.search.export.bundle import Bundle
from tilescout.search.export.graph_nodes import Report
from tilescout.search.export.graph_rewrite import replace_products
from tilescout.search.export.inductor import load, use
from tilescout.search.export.loaded_kernels import name_of
from tilescout.spaces.gemm import LAYOUTS, GemmProblem

Calls = Callable[[Bundle], int]
Form = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

pytestmark = pytest.mark.usefixtures("fresh_inductor")

M, N, K = 16, 64, 32
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


def operands(layout: str, grad: bool = False) -> list[torch.Tensor]:
    """A [m, k], B [k, n] and a bias, in memory as a layout says."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.bfloat16)

    a = draw(K, M).t() if layout[0] == "m" else draw(M, K)
    b = draw(K, N) if layout[1] == "n" else draw(N, K).t()
    return [tensor.requires_grad_(grad) for tensor in (a, b, draw(N))]


def close(result: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(result.float(), expected.float(), rtol=2e-2, atol=6e-2)


def run(bundle: Bundle, form: Form, layout: str, calls: Calls) -> tuple[int, dict[str, int]]:
    """Compile a form, check its result, and say how often our kernel ran and for what."""
    inputs = operands(layout)
    before = calls(bundle)
    with use(bundle.path) as tuned:
        close(torch.compile(form, dynamic=False)(*inputs), form(*inputs))
    return calls(bundle) - before, dict(tuned.report.replaced)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_product_is_replaced_in_the_layout_that_was_decided_and_no_other(
    make_strided: Callable[..., Bundle], calls: Calls, layout: str
) -> None:
    problem = str(GemmProblem(M, N, K, layout=layout))
    bundle = make_strided([problem])
    for held in LAYOUTS:
        torch._dynamo.reset()
        expected = (1, {problem: 1}) if held == layout else (0, {})
        assert run(bundle, lambda a, b, bias: a @ b, held, calls) == expected


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["kk", "mn"])
def test_a_bias_is_fused_where_that_was_decided(make_strided: Callable[..., Bundle], calls: Calls, layout: str) -> None:
    problem = str(GemmProblem(M, N, K, layout=layout, bias=True))
    bundle = make_strided([problem])
    assert run(bundle, lambda a, b, bias: torch.addmm(bias, a, b), layout, calls) == (1, {problem: 1})
    for other in (
        lambda a, b, bias: a @ b,
        lambda a, b, bias: torch.addmm(bias, a, b, beta=2),
        lambda a, b, bias: torch.addmm(bias.expand(M, N).contiguous(), a, b),
        lambda a, b, bias: torch.addmm(bias[:1], a, b),
    ):
        torch._dynamo.reset()
        assert run(bundle, other, layout, calls) == (0, {})


@pytest.mark.slow
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("bias", [True, False])
def test_an_activation_is_fused_where_that_was_decided_and_nothing_else_needs_the_product(
    make_strided: Callable[..., Bundle], calls: Calls, activation: str, bias: bool
) -> None:
    problem = str(GemmProblem(M, N, K, bias=bias, activation=activation))
    bundle, act = make_strided([problem], activation), ACTIVATIONS[activation]

    def flat(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return act(torch.addmm(c, a, b) if bias else a @ b)

    def layer(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:  # its rows in two dimensions
        return act(torch.nn.functional.linear(a.view(2, M // 2, K), b.t(), c if bias else None))

    def shared(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        product = torch.addmm(c, a, b) if bias else a @ b
        return act(product) + product

    for form, expected in ((flat, (1, {problem: 1})), (layer, (1, {problem: 1})), (shared, (0, {}))):
        torch._dynamo.reset()
        assert run(bundle, form, "kk", calls) == expected


def test_an_activation_is_left_where_inductor_fuses_it_into_what_follows(
    make_strided: Callable[..., Bundle], calls: Calls
) -> None:
    plain, fused = str(GemmProblem(M, N, K)), str(GemmProblem(M, N, K, activation="silu"))
    bundle, silu = make_strided([plain, fused], "silu"), torch.nn.functional.silu
    last: list[Callable[[torch.Tensor], object]] = [lambda y: y, lambda y: y.t(), lambda y: (y + 1, y @ y.t())]
    followed: list[Callable[[torch.Tensor], object]] = [lambda y: y * 2, lambda y: y.view(4, -1).exp(), torch.sum]
    for problem, ends in ((fused, last), (plain, followed)):
        for end in ends:

            def form(a: torch.Tensor, b: torch.Tensor) -> object:
                return end(silu(a @ b))  # noqa: B023 (it is traced at once)

            traced = make_fx(form, select_decomp_table(), tracing_mode="fake")(*operands("kk")[:2])
            report = Report()
            replace_products(traced.graph, load(bundle.path), report)
            assert report.replaced == {problem: 1}, traced.code


def test_a_fused_layer_with_dynamic_rows_is_looked_up_at_run_time(
    make_strided: Callable[..., Bundle], calls: Calls
) -> None:
    bundle = make_strided([str(GemmProblem(rows, N, K, bias=True, activation="silu")) for rows in (16, 24)], "silu")
    layer = torch.nn.Sequential(torch.nn.Linear(K, N, dtype=torch.bfloat16), torch.nn.SiLU())
    with use(bundle.path) as tuned:
        compiled = torch.compile(layer, dynamic=True)
    with torch.no_grad():
        for shape, ours in (((2, 8, K), 1), ((4, 5, K), 1), ((3, 8, K), 1), ((3, 9, K), 0)):
            x, before = torch.randn(shape, dtype=torch.bfloat16), calls(bundle)
            close(compiled(x), layer(x))
            assert calls(bundle) - before == ours, shape
    assert tuned.report.replaced == {f"*x{N}x{K}:bf16:bias+silu": 1}


@pytest.mark.slow
def test_another_activation_is_not_taken_for_the_decided_one(make_strided: Callable[..., Bundle], calls: Calls) -> None:
    bundle = make_strided([str(GemmProblem(M, N, K, activation="gelu"))], "gelu")
    for other in (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), torch.nn.functional.silu, torch.sigmoid):
        torch._dynamo.reset()
        assert run(bundle, lambda a, b, bias, other=other: other(a @ b), "kk", calls) == (0, {})  # type: ignore[misc]


@pytest.mark.slow
def test_a_factor_is_fused_where_that_was_decided(make_strided: Callable[..., Bundle], calls: Calls) -> None:
    scaled, biased = (str(GemmProblem(M, N, K, alpha=True, bias=bias)) for bias in (False, True))
    bundle = make_strided([scaled, biased])
    factor = torch.tensor(0.75)
    forms: list[tuple[Form, dict[str, int]]] = [
        (lambda a, b, bias: (a @ b) * 0.5, {scaled: 1}),
        (lambda a, b, bias: (a @ b) / 4 * 3, {scaled: 1}),
        (lambda a, b, bias: (a @ b) * factor, {scaled: 1}),
        (lambda a, b, bias: factor * (a @ b) * 2, {scaled: 1}),
        (lambda a, b, bias: torch.addmm(bias, a, b, alpha=0.5), {biased: 1}),
        (lambda a, b, bias: (a @ b) * 0.5 + bias, {biased: 1}),
        (lambda a, b, bias: torch.addmm(bias, a, b) * 0.5, {}),  # the bias is scaled too
        (lambda a, b, bias: (a @ b) * bias, {}),
        (lambda a, b, bias: torch.addmm(bias, a, b, beta=2, alpha=0.5), {}),
    ]
    for form, expected in forms:
        torch._dynamo.reset()
        assert run(bundle, form, "kk", calls) == (len(expected), expected)


@pytest.mark.slow
@pytest.mark.parametrize("epilogue", ["alpha", "alpha+bias+silu"])
def test_an_fp8_product_with_a_scale_for_each_operand_is_replaced(
    make_strided: Callable[..., Bundle], calls: Calls, epilogue: str
) -> None:
    problem = f"{M}x{N}x{K}:e4m3-bf16:{epilogue}"
    bundle = make_strided([problem], "silu" if "silu" in epilogue else "")
    a, b, bias = operands("kk")
    scales = torch.tensor(0.5), torch.tensor([3.0])

    def scaled(a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor) -> torch.Tensor:
        held = bias if "bias" in epilogue else None
        result = torch._scaled_mm(a, b, scale_a, scales[1], bias=held, out_dtype=torch.bfloat16)
        return torch.nn.functional.silu(result) if "silu" in epilogue else result

    inputs = a.to(torch.float8_e4m3fn), b.t().to(torch.float8_e4m3fn).t()
    with use(bundle.path) as tuned:
        compiled = torch.compile(scaled, dynamic=False)
    before = calls(bundle)
    close(compiled(*inputs, scales[0]), scaled(*inputs, scales[0]))
    assert calls(bundle) == before + 1
    assert tuned.report.replaced == {problem: 1}


@pytest.mark.slow
@pytest.mark.parametrize("decided", [False, True])
def test_an_fp8_product_is_replaced_by_what_was_raced_against_its_accumulation_alone(
    make_strided: Callable[..., Bundle], calls: Calls, decided: bool
) -> None:
    problem = GemmProblem(M, N, K, dtype="e4m3", alpha=True, fast=decided)
    bundle = make_strided([str(problem)])
    a, b, _ = operands("kk")
    inputs = a.to(torch.float8_e4m3fn), b.t().to(torch.float8_e4m3fn).t(), torch.tensor(0.5)

    def scaled(fast: bool, a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(a, b, scale, scale, out_dtype=torch.bfloat16, use_fast_accum=fast)

    for fast in (True, False):
        torch._dynamo.reset()
        before = calls(bundle)
        with use(bundle.path) as tuned:
            torch.compile(scaled, dynamic=False)(fast, *inputs)
        assert calls(bundle) - before == (fast is decided)
        assert tuned.report.replaced == ({str(problem): 1} if fast is decided else {})
        assert tuned.report.unknown == ({} if fast is decided else {str(replace(problem, fast=fast)): 1})


def test_without_a_decision_for_the_fused_form_the_product_alone_is_replaced(
    make_strided: Callable[..., Bundle], calls: Calls
) -> None:
    bundle = make_strided([f"{M}x{N}x{K}"])
    replaced = run(bundle, lambda a, b, bias: torch.relu(a @ b), "kk", calls)
    assert replaced == (1, {f"{M}x{N}x{K}:bf16": 1})


@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize("layout", ["kk", "mn"])
def test_the_operator_and_its_gradients_are_right_with_our_kernel_and_without(
    make_strided: Callable[..., Bundle], calls: Calls, layout: str, activation: str
) -> None:
    problem = GemmProblem(M, N, K, layout=layout, alpha=True, bias=True, activation=activation)
    bundle = load(make_strided([str(problem)], activation).path)
    for rows in (M, M - 1):  # the second was not decided
        a, b, bias = (tensor.detach() for tensor in operands(layout))
        inputs = [tensor.requires_grad_() for tensor in (a[:rows], b, bias, torch.tensor([0.5]))]
        if rows == M:
            inputs[0] = a.requires_grad_()
        before = calls(bundle)
        operator = torch.ops.tilescout.gemm
        result = operator(
            inputs[0].unsqueeze(0), inputs[1].t().unsqueeze(0), inputs[3], inputs[2], name_of(bundle, problem)
        )
        assert calls(bundle) - before == (rows == M)
        expected = (inputs[0] @ inputs[1]) * inputs[3] + inputs[2]
        expected = ACTIVATIONS[activation](expected) if activation else expected
        close(result[0], expected)
        weights = torch.linspace(-1, 1, N, dtype=torch.bfloat16)
        gradients = torch.autograd.grad((result[0] * weights).sum(), inputs)
        for mine, theirs in zip(gradients, torch.autograd.grad((expected * weights).sum(), inputs), strict=True):
            close(mine, theirs)


def test_rows_that_a_kernel_can_not_take_go_to_torch_where_a_runs_along_m(
    make_strided: Callable[..., Bundle], calls: Calls
) -> None:
    bundle = load(make_strided([f"{M}x{N}x{K}:bf16:mk", f"12x{N}x{K}:bf16:mk"]).path)
    name = name_of(bundle, GemmProblem(M, N, K, layout="mk"))
    for rows, ours in ((M, 1), (12, 0)):  # 12 bf16 are no multiple of 16 bytes
        a, b = torch.randn(1, K, rows).bfloat16().transpose(1, 2), torch.randn(1, N, K).bfloat16()
        before = calls(bundle)
        close(torch.ops.tilescout.gemm(a, b, None, None, name), a @ b.transpose(1, 2))
        assert calls(bundle) - before == ours
