"""Graphs of CUDA tensors, traced and lowered with no GPU: fake tensors all the way."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
from torch._guards import detect_fake_mode
from torch._inductor import ir
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from tilescout.search.export.bundle import Bundle
from tilescout.search.export.graph_nodes import Report
from tilescout.search.export.graph_rewrite import replace_products
from tilescout.search.export.inductor import load
from tilescout.spaces.gemm import Gemm, GemmProblem

OURS = "tilescout.gemm_compiled.default"


@pytest.fixture(scope="module")
def bundle(make_bundle: Callable[..., Bundle]) -> Bundle:
    made = make_bundle(["4096x1024x4104", "64x512x256x3"], ["4096x512x4104"], arch="sm_90a")
    return load(made.path)


@pytest.fixture
def mode() -> Iterator[FakeTensorMode]:
    with FakeTensorMode() as mode:
        yield mode


def traced(
    function: Callable[..., torch.Tensor], *shapes: tuple[int, ...], device: str = "cuda"
) -> torch.fx.GraphModule:
    inputs = [torch.empty(shape, device=device, dtype=torch.bfloat16) for shape in shapes]
    return make_fx(function, select_decomp_table(), tracing_mode="fake")(*inputs)


def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(torch.nn.functional.linear(torch.relu(x), weight))


def replaced(graph: torch.fx.GraphModule, bundle: Bundle) -> Report:
    report = Report()
    replace_products(graph.graph, bundle, report)
    graph.graph.lint()
    graph.recompile()
    return report


def test_every_form_that_kernels_are_built_for_is_replaced_on_the_gpu(
    fused_problem: GemmProblem,
    form_of: Callable[[GemmProblem], Callable[..., torch.Tensor]],
    make_bundle: Callable[..., Bundle],
) -> None:
    bundle = load(make_bundle([str(fused_problem)], arch="sm_90a").path)
    inputs = Gemm().inputs(fused_problem, torch.Generator().manual_seed(0))
    with FakeTensorMode():
        fakes = [torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda") for x in inputs]
        graph = make_fx(form_of(fused_problem), select_decomp_table(), tracing_mode="fake")(*fakes)
        expected = next(iter(graph.graph.find_nodes(op="output"))).args[0].meta["val"]
        assert replaced(graph, bundle).replaced == {str(fused_problem): 1}
        result = next(iter(graph.graph.find_nodes(op="output"))).args[0].meta["val"]
    assert (result.shape, result.stride(), result.dtype) == (expected.shape, expected.stride(), expected.dtype)


@pytest.mark.usefixtures("mode")
def test_a_product_on_the_gpu_is_replaced_and_one_on_the_host_is_not(bundle: Bundle) -> None:
    assert replaced(traced(layer, (4096, 4104), (1024, 4104)), bundle).replaced == {"4096x1024x4104:bf16": 1}
    on_host = replaced(traced(layer, (4096, 4104), (1024, 4104), device="cpu"), bundle)
    assert not on_host.replaced
    assert on_host.unknown == {"mm": 1}
    assert replaced(traced(layer, (4096, 4104), (512, 4104)), bundle).left == {"4096x512x4104:bf16": 1}


@pytest.mark.usefixtures("mode")
def test_a_product_on_a_gpu_that_the_kernels_are_not_for_is_left(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs = {index: traced(layer, (4096, 4104), (1024, 4104), device=f"cuda:{index}") for index in range(2)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: ((9, 0), (8, 6))[device.index])
    assert replaced(graphs[0], bundle).replaced == {"4096x1024x4104:bf16": 1}
    assert replaced(graphs[1], bundle).unknown == {"mm": 1}


def test_the_new_graph_has_the_shapes_and_strides_of_the_old(bundle: Bundle, mode: FakeTensorMode) -> None:
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.bmm(a, b.transpose(1, 2)) + 1

    for function, shapes in ((layer, [(4096, 4104), (1024, 4104)]), (product, [(3, 64, 256), (3, 512, 256)])):
        graph = traced(function, *shapes)
        before = [node.meta["val"] for node in graph.graph.nodes if node.op == "call_function"][-1]
        replaced(graph, bundle)
        assert OURS in graph.code
        inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
        recorded = {node.name: node.meta["val"] for node in graph.graph.nodes if node.op == "call_function"}
        result = FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*inputs)
        assert (result.shape, result.stride(), result.dtype) == (before.shape, before.stride(), before.dtype)
        for node in graph.graph.nodes:
            if node.op == "call_function":
                fresh = node.meta["val"]
                assert (fresh.shape, fresh.stride()) == (recorded[node.name].shape, recorded[node.name].stride())


@pytest.mark.usefixtures("mode")
def test_how_long_a_replacement_takes_does_not_depend_on_the_other_weights(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each new node asks tensors for their mode: if it asked all weights, that would be quadratic in the layers."""

    def deep(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(x, weight).sum() for weight in weights])

    def asked_of(count: int) -> int:
        asked: list[object] = []

        def counted(given: list[object]) -> object:
            asked.extend(given)
            return detect_fake_mode(given)

        graph = traced(deep, (4096, 4104), *[(1024, 4104)] * count)
        with monkeypatch.context() as patch:
            patch.setattr("torch._guards.detect_fake_mode", counted)
            assert replaced(graph, bundle).replaced.total() == count
        return len(asked)

    assert asked_of(16) <= 8 * asked_of(2)


def test_inductor_gives_our_operator_the_strides_that_were_matched(
    bundle: Bundle, mode: FakeTensorMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 4104 elements are no multiple of 128 bytes: for a Triton kernel, Inductor would pad the rows of relu's result.
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, warp_size=32)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *device: properties)
    graph = traced(layer, (4096, 4104), (1024, 4104))
    assert replaced(graph, bundle).replaced
    lowered = GraphLowering(graph)
    inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    with V.set_graph_handler(lowered), V.set_fake_mode(mode):
        lowered.run(*inputs)
        (ours,) = [
            operation
            for operation in lowered.operations
            if isinstance(operation, ir.ExternKernelOut) and operation.get_kernel_name().startswith("tilescout_")
        ]
        strides = [list(map(int, operand.get_layout().stride)) for operand in ours.inputs]  # type: ignore[union-attr]
    assert [stride[-2:] for stride in strides] == [[4104, 1], [4104, 1]]
