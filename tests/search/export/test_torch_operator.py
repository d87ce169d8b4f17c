"""The operators: our kernel where it was decided and can run, torch everywhere else, always the right result."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from tilescout.search.export import loaded_kernels, torch_operator
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.inductor import load
from tilescout.search.export.loaded_kernels import name_of
from tilescout.spaces.errors import BundleError, DeviceError
from tilescout.spaces.gemm import GemmProblem

Calls = Callable[[Bundle], int]


@pytest.fixture(scope="module")
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    made = make_bundle(["16x64x32", "24x64x32", "16x64x32x3"], ["8x64x32"])
    return load(made.path)


def operands(m: int, n: int = 64, k: int = 32, batch: int = 1, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(m)
    a = torch.randn(batch, m, k, generator=generator, dtype=torch.bfloat16)
    b = torch.randn(batch, n, k, generator=generator, dtype=torch.bfloat16)
    return a.requires_grad_(bool(options.get("grad"))), b.requires_grad_(bool(options.get("grad")))


def check(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    expected = a.float() @ b.float().transpose(1, 2)
    torch.testing.assert_close(result.float(), expected, rtol=2**-7, atol=2**-7 * expected.abs().max().item())


def run(bundle: Bundle, a: torch.Tensor, b: torch.Tensor, problem: str = "16x64x32") -> torch.Tensor:
    return torch.ops.tilescout.gemm(a, b, None, None, name_of(bundle, GemmProblem.parse(problem)))


@pytest.mark.parametrize(("m", "ours"), [(16, True), (24, True), (20, True), (8, False), (12, False), (48, False)])
def test_the_rows_at_run_time_decide(bundle: Bundle, calls: Calls, m: int, ours: bool) -> None:
    a, b = operands(m)
    before = calls(bundle)
    check(run(bundle, a, b), a, b)
    assert calls(bundle) - before == ours


def test_a_batch_is_a_problem_of_its_own(bundle: Bundle, calls: Calls) -> None:
    a, b = operands(16, batch=3)
    before = calls(bundle)
    check(run(bundle, a, b, "16x64x32x3"), a, b)
    assert calls(bundle) == before + 1
    check(run(bundle, a, b, "16x64x32"), a, b)  # not what this decision is about
    assert calls(bundle) == before + 1


def test_what_a_kernel_can_not_take_goes_to_torch(bundle: Bundle, calls: Calls) -> None:
    a, b = operands(16)
    shifted = torch.empty(a.numel() + 1, dtype=a.dtype)[1:].view_as(a).copy_(a)
    assert shifted.data_ptr() % 16
    wide = torch.zeros(1, 16, 40, dtype=a.dtype)[:, :, :32].copy_(a)
    other_n, other_k = operands(16, n=32), operands(16, k=40)
    before = calls(bundle)
    for left, right in ((shifted, b), (wide, b), (a, b.transpose(1, 2).contiguous().transpose(1, 2)), other_n, other_k):
        check(run(bundle, left, right), left, right)
    halves = a.half(), b.half()
    check(run(bundle, *halves), *halves)
    assert calls(bundle) == before


def test_a_kernel_gets_the_strides_that_it_was_built_for(bundle: Bundle, calls: Calls) -> None:
    a, b = operands(16)
    before = calls(bundle)
    check(run(bundle, a.as_strided(a.shape, (0, 32, 1)), b), a, b)
    assert calls(bundle) == before + 1
    assert loaded_kernels.with_strides(a, (512, 32, 1)) is a
    for shape, strides in (((1, 16, 32), (0, 32, 1)), ((3, 1, 32), (32, 7, 1)), ((1, 1, 1), (0, 0, 0))):
        odd = torch.arange(512.0).as_strided(shape, strides)
        assert odd.is_contiguous()
        wanted = torch.empty(shape).stride()
        assert loaded_kernels.with_strides(odd, wanted).stride() == wanted  # type: ignore[arg-type]
        assert torch.equal(loaded_kernels.with_strides(odd, wanted), odd)  # type: ignore[arg-type]


def test_operands_that_do_not_fit_fail_as_in_torch(bundle: Bundle) -> None:
    a, _ = operands(16)
    _, b = operands(16, k=40)
    with pytest.raises(RuntimeError, match="shapes"):
        run(bundle, a, b)


@pytest.mark.parametrize("name", ["gemm", "gemm_compiled"])
def test_the_operator_keeps_the_rules_of_custom_operators(bundle: Bundle, name: str) -> None:
    operator = getattr(torch.ops.tilescout, name).default
    decision = name_of(bundle, GemmProblem(16, 64, 32))
    tests = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
    for grad in (False, True) if name == "gemm" else (False,):
        torch.library.opcheck(operator, (*operands(16, grad=grad), None, None, decision), test_utils=tests)
    assert torch.Tag.needs_exact_strides in operator.tags


def test_gradients_are_those_of_the_product(bundle: Bundle, calls: Calls) -> None:
    a, b = operands(16, grad=True)
    before = calls(bundle)
    weights = torch.randn(1, 16, 64, dtype=torch.bfloat16)
    (run(bundle, a, b) * weights).sum().backward()
    assert calls(bundle) == before + 1
    ours = a.grad, b.grad
    a.grad = b.grad = None
    ((a @ b.transpose(1, 2)) * weights).sum().backward()
    for mine, expected in zip(ours, (a.grad, b.grad), strict=True):
        torch.testing.assert_close(mine, expected)


def test_gradients_are_computed_only_for_what_needs_them(bundle: Bundle) -> None:
    a, b = operands(16)
    b.requires_grad_()
    run(bundle, a, b).sum().backward()
    assert a.grad is None
    assert b.grad is not None


def test_code_that_names_a_bundle_that_is_not_loaded_says_what_to_do(bundle: Bundle) -> None:
    stranger = replace(bundle, digest="ab" * 32)
    with pytest.raises(BundleError, match=r"abababababab.*inductor\.load"):
        run(stranger, *operands(16))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU that is there refuses the bundle at once")
def test_a_kernel_is_loaded_only_where_it_can_run(make_bundle: Callable[..., Bundle]) -> None:
    foreign = make_bundle(["16x64x32"], arch="sm_100a")
    load(foreign.path)  # no such GPU is here, so nothing is loaded
    check(run(foreign, *operands(16)), *operands(16))
    with pytest.raises(DeviceError, match="is for sm_100a"):
        loaded_kernels.load_kernel(foreign.digest, foreign.ours[0].kernel, torch.device("cpu"))


def test_a_bundle_whose_kernel_does_not_load_leaves_nothing_behind(make_bundle: Callable[..., Bundle]) -> None:
    from tilescout.search.export.bundle import read_bundle, write_bundle

    good = make_bundle(["16x64x32"])
    ((digest, kernel),) = good.kernels.items()
    path = good.path.parent / "broken"
    held = {digest: (replace(kernel, function="no_such_function"), good.path / kernel.file)}
    write_bundle(path, "host", "host", {}, good.ours, held)
    with pytest.raises(BundleError, match="does not load"):
        load(path)
    with pytest.raises(BundleError, match="not loaded"):
        run(read_bundle(path), *operands(16))


def test_threads_that_load_a_bundle_at_once_wait_until_all_of_it_is_there(
    make_bundle: Callable[..., Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, load_kernel = make_bundle(["16x64x32"]), loaded_kernels.load_kernel
    name = name_of(bundle, GemmProblem(16, 64, 32))

    def load_slowly(digest: str, kernel: str, device: torch.device) -> loaded_kernels.Loaded | None:
        time.sleep(0.05)
        return load_kernel(digest, kernel, device)

    def found(_: int) -> loaded_kernels.Family:
        load(bundle.path)
        return loaded_kernels.find_family(name)

    monkeypatch.setattr(loaded_kernels, "load_kernel", load_slowly)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(found, range(2))
    assert one is other


def test_an_operator_is_defined_once_whichever_thread_asks_for_it() -> None:
    defined = []

    def define() -> int:
        time.sleep(0.02)
        defined.append(1)
        return len(defined)

    once = torch_operator._once(define)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: once(), range(2))) == [1, 1]


def test_a_bundle_measured_on_another_product_is_used_with_a_warning(bundle: Bundle) -> None:
    h200 = replace(bundle, device="h200")
    with pytest.warns(UserWarning, match="measured on h200, this is NVIDIA H100"):
        loaded_kernels._warn_of_other_product(h200, "NVIDIA H100 80GB HBM3")
    with pytest.warns(UserWarning, match="this is NVIDIA X1"):
        loaded_kernels._warn_of_other_product(h200, "NVIDIA X1")
    loaded_kernels._warn_of_other_product(h200, "NVIDIA H200")
