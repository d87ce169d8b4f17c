"""Grouped products in compiled models: real kernels on the host, in the place of torch._grouped_mm."""

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tilescout.search.build.compilers import find_linker
from tilescout.search.build.loading import runtime_libraries
from tilescout.search.export.bundle import KERNELS, Bundle, Kernel, read_bundle, write_bundle
from tilescout.search.export.grouped.dispatch import GroupedDispatch
from tilescout.search.export.grouped.kernels import run_library
from tilescout.search.export.inductor import GraphPass, use
from tilescout.search.export.ranges import Range
from tilescout.spaces.checksums import digest_of
from tilescout.spaces.errors import BundleError
from tilescout.spaces.grouped import GroupedProblem

EXPERTS, N, K = 4, 24, 16
PRODUCT = GroupedProblem(EXPERTS, 1, N, K)
SOURCE = Path(__file__).parents[1] / "kernels" / "grouped_gemm.c"
LIBRARY = "tilescout.search.export.grouped.kernels.run_library"
DIGEST = "0" * 63 + "e"
RANGES = (Range(1, 30, DIGEST, True), Range(31, 40), Range(41, 64, DIGEST, True))


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Bundle]:
    """A function: a bundle of the product with these ranges."""
    folder = tmp_path_factory.mktemp("grouped")
    include = Path(str(find_spec("tvm_ffi").origin)).with_name("include")  # type: ignore[union-attr]
    command = [find_linker(), "-shared", "-O2", "-fPIC", "-I", str(include), "-o", str(folder / "kernel.so")]
    subprocess.run([*command, str(SOURCE), *map(str, runtime_libraries())], check=True)
    sha256 = hashlib.sha256((folder / "kernel.so").read_bytes()).hexdigest()
    workload = "tilescout.spaces.grouped:Grouped"
    kernel = Kernel(f"{KERNELS}/{DIGEST}.so", sha256, "grouped_gemm", workload, 1, {"made": "here"})

    def make(ranges: tuple[Range, ...] = RANGES, times: int = 1) -> Bundle:
        path = tmp_path_factory.mktemp("bundles") / "bundle"
        held = {DIGEST: (kernel, folder / "kernel.so")}
        dispatch = GroupedDispatch(PRODUCT, ranges, "a.parquet", "a test", {}, (8, 64), ("balanced", "zipf-1"), 0.9)
        return write_bundle(path, "host", "host", {"made": str(path)}, [], held, grouped=[dispatch] * times)

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
    assert tuned.report.replaced == {"4x20x24x16:bf16": 1}


def test_other_numbers_of_tokens_and_other_products_stay_the_librarys(tuned: GraphPass) -> None:
    for given in (operands(35), operands(20, n=32)):
        torch.testing.assert_close(torch.compile(experts, dynamic=False)(*given), experts(*given))
    assert not tuned.report.replaced
    assert (tuned.report.left, tuned.report.unknown) == ({"4x35x24x16:bf16": 1}, {"4x20x32x16:bf16": 1})


def test_one_graph_serves_every_number_of_tokens(tuned: GraphPass, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (3, 30, 35, 41, 64, 65)
    expected = [experts(*operands(tokens)) for tokens in sizes]
    called = list[int]()
    compiled, first = torch.compile(experts), operands(8)
    torch._dynamo.mark_dynamic(first[0], 0)

    def count(a: Tensor, *rest: Tensor) -> Tensor:
        called.append(len(a))
        return run_library(a, *rest)

    compiled(*first)
    monkeypatch.setattr(LIBRARY, count)
    for tokens, wanted in zip(sizes, expected, strict=True):
        torch.testing.assert_close(compiled(*operands(tokens)), wanted)
    assert called == [35, 65]
    assert tuned.report.replaced == {"4x*x24x16:bf16": 1}


def test_what_our_kernels_can_not_take_goes_to_the_library(tuned: GraphPass) -> None:
    def plain(a: Tensor, b: Tensor, ends: Tensor) -> Tensor:
        return torch.ops.tilescout.grouped_mm(a, b, ends, f"{tuned.bundle.digest}/4x*x24x16:bf16")

    a, b, ends = operands(20)
    expected = torch._grouped_mm(a, b.transpose(1, 2), offs=ends)
    shifted = torch.empty(20 * K + 1, dtype=a.dtype)[1:].view(20, K).copy_(a)  # not aligned to 16 bytes
    apart = torch.empty(20, 2 * K, dtype=a.dtype)[:, :K].copy_(a)  # not contiguous
    for each in (a, shifted, apart):
        torch.testing.assert_close(plain(each, b, ends), expected)
    assert plain(a[:0], b, torch.zeros_like(ends)).shape == (0, N)
    for wrong in ((a[:, :8], b, ends), (a, b, ends[:2]), (a, b[0], ends), (a, b.float(), ends)):
        with pytest.raises((RuntimeError, IndexError)):  # torch says what is wrong; nothing is read out of bounds
            plain(*wrong)


def test_offsets_that_are_none_do_no_harm(tuned: GraphPass) -> None:
    a, b, _ = operands(20)
    for ends in ([9, 3, 500, 20], [-5, 40, 41, -1]):
        torch.compile(experts, dynamic=False)(a, b, torch.tensor(ends, dtype=torch.int32))
    assert tuned.report.replaced


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
    assert tuned.report.replaced == {"4x20x24x16:bf16": 1}
    for one, other in zip(ours, wanted, strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_bundle_holds_the_ranges_and_is_refused_with_two_of_a_product(make: Callable[..., Bundle]) -> None:
    bundle = make()
    assert read_bundle(bundle.path).grouped[0].ranges == RANGES
    assert bundle.used == [DIGEST]
    with pytest.raises(BundleError, match="2 lists of ranges of 4x\\*x24x16:bf16"):
        make(times=2)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"problem": "4x9x24x16:bf16:balanced"}, "names tokens"),
        ({"ranges": []}, "are none"),
        ({"ranges": [{"low": 9, "high": 3, "kernel": "", "proven": False}]}, "no range goes from 9"),
        ({"routings": ["often"]}, "malformed routing"),
        ({"ranges": [{"low": 1, "high": 3, "kernel": "f" * 64, "proven": True}]}, "lacks the kernel"),
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
