"""The ranker on what TorchInductor's NVGEMM backend really offers on Hopper, up to the code that is generated.

TorchInductor lowers products of fake tensors; the properties of an H200 stand in for a GPU, and nothing is timed.
"""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import config, scheduler
from torch._inductor.codecache import compiled_fx_graph_hash
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import fresh_cache
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tilescout.experiments.research.studies.inductor_model import nvgemm_missing
from tilescout.experiments.research.studies.peer_kernels import listed
from tilescout.search.export.nvgemm_model import OPERATORS, learned_ranker
from tilescout.search.export.nvgemm_ranker import NAMES, Ranker, Tiling, is_candidate, problem_of, tiling_of, use_ranker
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

MISSING = nvgemm_missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"no NVGEMM backend in torch {torch.__version__}: {MISSING}")

LARGE, SKINNY = GemmProblem(4096, 4096, 4096), GemmProblem(16, 4096, 4096)
PROBLEMS = (
    "257x1024x512:bf16",
    "64x4096x512:fp16:kn",
    "128x512x256:bf16:mk",
    "256x512x264:bf16:mn",
    "64x256x512x3:bf16",
)
LISTED: list[Tiling] = [
    (rows, columns, 64, m, n) for rows in (64, 128) for columns in (64, 128, 256) for m in (1, 2) for n in (1, 2)
]
"""Hopper's kernels in the order in which CUTLASS lists them; four for Ampere follow."""


@pytest.fixture(scope="module", autouse=True)
def pretended_h200() -> Iterator[None]:
    properties = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, multi_processor_count=132, warp_size=32)
    with pytest.MonkeyPatch.context() as patch, fresh_cache():  # which forgets which GPU there is
        for name, value in {
            "current_device": 0,
            "get_device_capability": (9, 0),
            "get_device_properties": properties,
            "is_available": True,
        }.items():
            patch.setattr(torch.cuda, name, lambda *_, value=value: value)
        for interface in (CudaInterface, CudaInterface.Worker):
            patch.setattr(interface, "get_device_properties", lambda *_: properties)
        patch.setattr(scheduler, "has_triton", lambda: True)
        yield


Traced = tuple[torch.fx.GraphModule, list[torch.Tensor], FakeTensorMode]


def traced(problem: GemmProblem) -> Traced:
    """The graph of a product, its inputs, and the mode they belong to."""

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a = a if problem.layout[0] == "k" else a.mT
        b = b if problem.layout[1] == "n" else b.mT
        return a @ b

    def operand(*shape: int) -> torch.Tensor:
        shape = (problem.batch, *shape) if problem.batch > 1 else shape
        return torch.empty(shape, dtype=getattr(torch, problem.element.torch_name), device="cuda")

    m, n, k = problem.m, problem.n, problem.k
    with FakeTensorMode() as mode:
        a = operand(m, k) if problem.layout[0] == "k" else operand(k, m)
        b = operand(k, n) if problem.layout[1] == "n" else operand(n, k)
        return make_fx(product, select_decomp_table(), tracing_mode="fake")(a, b), [a, b], mode


def lowered(problem: GemmProblem, ranker: Ranker | None = None, backends: str = "ATEN,NVGEMM", **options: Any) -> Any:
    """TorchInductor's lowering of a product: the node, and the code of its module if nothing is left to be timed."""
    graph, _, mode = traced(problem)
    lowering = GraphLowering(graph)
    wanted = {"max_autotune_gemm": True, "max_autotune_gemm_backends": backends, **options}
    with (
        use_ranker(ranker) if ranker is not None else nullcontext(),
        config.patch(wanted),
        V.set_graph_handler(lowering),
        V.set_fake_mode(mode),
        V.set_debug_handler(DebugContext()),
    ):
        lowering.run(*(node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")))
        (node,) = lowering.operations
        return node, "" if hasattr(node, "choices") else lowering.codegen()[0].value


def offered(problem: GemmProblem, ranker: Ranker | None = None, **options: Any) -> list[Any]:
    """The candidates of the NVGEMM backend among which TorchInductor would time."""
    node, _ = lowered(problem, ranker, **options)
    others = [choice for choice in node.choices if not is_candidate(choice)]
    assert [choice.name for choice in others] == ["bmm" if problem.batch > 1 else "mm"]  # ATen's
    return [choice for choice in node.choices if is_candidate(choice)]


def by_model(problem: GemmProblem) -> list[Tiling]:
    """Hopper's tilings, those first that our model expects to be fastest."""
    times = learned_ranker().predict(problem, [dict(zip(NAMES, tiling, strict=True)) for tiling in LISTED])
    return [LISTED[at] for at in np.argsort(times, kind="stable")]


@pytest.mark.parametrize("problem", [LARGE, SKINNY], ids=str)
def test_torchinductor_offers_the_first_of_a_list_that_no_problem_orders(problem: GemmProblem) -> None:
    every = [tiling_of(choice) for choice in offered(problem, nvgemm_max_profiling_configs=None)]
    assert every == [*LISTED, *[None] * 4]
    assert [tiling_of(choice) for choice in offered(problem)] == LISTED[: config.nvgemm_max_profiling_configs]


def test_our_space_of_these_kernels_has_them_in_that_order() -> None:
    template = find_template(OPERATORS)
    space = template.space(LARGE, find_device("h200"))
    found = [{**space[index], "tile_k": 64} for index in listed(template, space)]
    assert [tuple(configuration[name] for name in NAMES) for configuration in found] == LISTED


@pytest.mark.parametrize("problem", [LARGE, SKINNY], ids=str)
def test_the_model_orders_all_candidates_and_trims_them(problem: GemmProblem) -> None:
    best = by_model(problem)
    assert best != LISTED
    assert [tiling_of(choice) for choice in offered(problem, learned_ranker())] == best[:4]
    assert [tiling_of(choice) for choice in offered(problem, learned_ranker(keep=99))] == [*best, *[None] * 4]


def test_the_model_expects_other_kernels_to_be_fast_for_other_problems() -> None:
    assert not set(by_model(LARGE)[:4]) & set(by_model(SKINNY)[:4])
    assert all(tile_m == 128 for tile_m, *_ in by_model(LARGE)[:4])  # TorchInductor times none of these


@pytest.mark.parametrize("text", PROBLEMS)
def test_candidates_of_every_layout_type_and_batch_are_ranked(text: str) -> None:
    problem = GemmProblem.parse(text)
    kept = offered(problem, learned_ranker())
    assert [problem_of(choice) for choice in kept] == [problem] * 4
    assert [tiling_of(choice) for choice in kept] == by_model(problem)[:4]


def test_candidates_that_swap_their_operands_come_after_those_that_do_not() -> None:
    kept = offered(SKINNY, learned_ranker(keep=99), nvgemm_swap_ab=True)
    assert len(kept) == 56
    assert [tiling_of(choice) for choice in kept] == [*by_model(SKINNY), *[None] * 32]


def test_a_pinned_candidate_is_the_kernel_that_the_generated_code_runs() -> None:
    pinned = {LARGE: LISTED[-2], GemmProblem.parse("4096x4096x4096:bf16:kn"): LISTED[0]}
    ranker = replace(learned_ranker(), pinned=pinned)
    (kept,) = offered(LARGE, ranker)
    assert tiling_of(kept) == LISTED[-2] == (128, 256, 64, 2, 1)
    assert len(offered(SKINNY, ranker)) == 4  # of which nothing was decided
    # With no other backend there is nothing to be timed: the code can be generated.
    for problem, cluster, tile in ((LARGE, "2x1x1", "128x256x64"), (list(pinned)[1], "1x1x1", "64x64x64")):
        _, code = lowered(problem, ranker, backends="NVGEMM")
        (operator,) = set(re.findall(r"_KERNEL_NAME = '(.*)'", code))
        assert re.fullmatch(rf"cutedsl\.Sm90StaticPersistentGemmOperator_.*_cluster{cluster}_tile{tile}", operator)


def test_the_key_of_the_cache_names_the_ranker_of_these_candidates() -> None:
    graph, inputs, _ = traced(LARGE)

    def key(ranker: Ranker | None) -> str:
        with use_ranker(ranker) if ranker is not None else nullcontext():
            return compiled_fx_graph_hash(graph, inputs, {}, [])[0]

    model = learned_ranker()
    rankers: list[Ranker | None] = [None, model, learned_ranker(keep=2), replace(model, version="another model")]
    rankers += [replace(model, pinned={LARGE: tiling}) for tiling in LISTED[:2]]
    assert len({key(ranker) for ranker in rankers}) == len(rankers)
    assert key(learned_ranker()) == key(model)
