"""The ranker of NVGEMM candidates: real candidates of TorchInductor, over invented kernels that are never launched."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch._inductor import choices as inductor_choices
from torch._inductor import config, ir, select_algorithm
from torch._inductor.codegen.nv_universal_gemm.nv_universal_gemm import GemmVariant, NVUniversalGemmCaller
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel.mm import aten_mm
from torch._inductor.virtualized import V

from tilescout.search.export.nvgemm_ranker import Ranker, Tiling, use_ranker
from tilescout.spaces.errors import ExportError
from tilescout.spaces.gemm import GemmProblem

PROBLEM = GemmProblem(256, 1024, 512)
TILINGS = [(128, 256, 64, 2, 1), (64, 64, 64, 1, 1), (128, 128, 64, 1, 1), (256, 128, 64, 1, 2), (64, 256, 64, 4, 1)]


@pytest.fixture(scope="module", autouse=True)
def lowering() -> Iterator[None]:
    with V.set_graph_handler(GraphLowering(torch.fx.symbolic_trace(lambda x: x))):
        yield


def nodes() -> tuple[list[ir.Buffer], ir.Layout]:
    def layout(*size: int, stride: Sequence[int]) -> ir.FixedLayout:
        return ir.FixedLayout(torch.device("cuda", 0), torch.bfloat16, list(size), list(stride))

    m, n, k = PROBLEM.m, PROBLEM.n, PROBLEM.k
    a = ir.InputBuffer(name="a", layout=layout(m, k, stride=(k, 1)))
    b = ir.InputBuffer(name="b", layout=layout(k, n, stride=(1, k)))
    return [a, b], layout(m, n, stride=(n, 1))


def nvgemm(tiling: Tiling) -> NVUniversalGemmCaller:
    """A candidate whose kernel has these metadata."""
    instruction = type("HopperWgmma", (), {})
    design = SimpleNamespace(mma_instruction_type=instruction, tile_shape=tiling[:3], cluster_shape=(*tiling[3:], 1))
    return candidate("x".join(map(str, tiling)), design)


def candidate(name: str, design: Any) -> NVUniversalGemmCaller:
    kernel = SimpleNamespace(metadata=SimpleNamespace(design=design, kernel_name=name, operator_name=name))
    inputs, layout = nodes()
    return NVUniversalGemmCaller(name, inputs, layout, kernel, torch.float32, GemmVariant.GEMM)


@pytest.fixture
def choices() -> list[Any]:
    inputs, layout = nodes()
    return [nvgemm(TILINGS[0]), aten_mm.bind(inputs, layout), *map(nvgemm, TILINGS[1:])]


def by_tiles(problem: GemmProblem, candidates: Sequence[Mapping[str, int]]) -> NDArray[np.float64]:
    """More tiles take longer."""
    return np.array([problem.m * problem.n / (c["tile_m"] * c["tile_n"]) * c["cluster_m"] for c in candidates])


def tilings(choices: Sequence[Any]) -> list[Tiling]:
    return [tuple(map(int, choice.name.split("x"))) for choice in choices if isinstance(choice, NVUniversalGemmCaller)]


def test_the_best_are_kept_in_order_and_other_backends_are_left(choices: list[Any]) -> None:
    kept = Ranker(by_tiles, "v1", keep=3)(choices)
    assert tilings(kept) == [(256, 128, 64, 1, 2), (128, 256, 64, 2, 1), (128, 128, 64, 1, 1)]
    assert len(kept) == 4
    assert choices[1] in kept


def test_a_pinned_candidate_is_the_only_one_of_its_backend(choices: list[Any]) -> None:
    pinned = {PROBLEM: TILINGS[1]}
    assert tilings(Ranker(by_tiles, "v1", pinned=pinned)(choices)) == [TILINGS[1]]
    elsewhere = {GemmProblem(1, 1024, 512): TILINGS[1]}
    assert len(Ranker(by_tiles, "v1", keep=2, pinned=elsewhere)(choices)) == 3
    absent = {PROBLEM: (1, 1, 1, 1, 1)}
    assert len(Ranker(by_tiles, "v1", keep=2, pinned=absent)(choices)) == 3


def test_without_candidates_of_the_backend_nothing_changes(choices: list[Any]) -> None:
    assert Ranker(by_tiles, "v1")(choices[1:2]) == choices[1:2]
    assert Ranker(by_tiles, "v1")([]) == []


def test_the_version_the_length_and_the_pins_are_in_the_key() -> None:
    pinned = {PROBLEM: TILINGS[0]}
    rankers = [Ranker(by_tiles, "1"), Ranker(by_tiles, "2"), Ranker(by_tiles, "1", 2), Ranker(by_tiles, "1", 4, pinned)]
    assert len({ranker.uuid for ranker in rankers}) == 4
    assert Ranker(by_tiles, "1").uuid == rankers[0].uuid


@pytest.mark.skipif(torch.__version__ >= "2.13", reason="this torch is new enough")
def test_a_torch_whose_cache_would_mix_rankers_up_is_refused() -> None:
    with pytest.raises(ExportError, match=r"use 2\.13 or newer"), use_ranker(Ranker(by_tiles, "v1")):
        raise AssertionError("must not get here")


@pytest.mark.skipif(torch.__version__ < "2.13", reason="needs torch 2.13")
def test_the_selector_asks_the_ranker_in_the_block_only(choices: list[Any]) -> None:
    ranker = Ranker(by_tiles, "v1")
    selector = select_algorithm.get_algorithm_selector_cache()
    before, limit = list(selector.preprocessing_fns), config.nvgemm_max_profiling_configs
    with use_ranker(ranker):
        *others, added = selector.preprocessing_fns
        assert others == before
        assert added(choices) == ranker(choices) != choices
        with ThreadPoolExecutor(1) as elsewhere:
            assert elsewhere.submit(added, choices).result() == choices
        assert config.nvgemm_max_profiling_configs is None
        assert V.choices.uuid() == ranker.uuid  # type: ignore[attr-defined]
    assert selector.preprocessing_fns == before
    assert config.nvgemm_max_profiling_configs == limit


@pytest.mark.skipif(
    not hasattr(inductor_choices, "register_inductor_choices"), reason="this torch registers no choices"
)
def test_choices_that_others_registered_stay_in_force() -> None:
    class Theirs(inductor_choices.InductorChoices):
        def uuid(self) -> str:
            return "theirs"

        def should_use_cooperative_reduction(self, *args: Any) -> bool:  # type: ignore[override]
            raise NotImplementedError("theirs")

    ranker = Ranker(by_tiles, "v1")
    inductor_choices.register_inductor_choices("theirs", Theirs)  # type: ignore[attr-defined, unused-ignore]
    try:
        with use_ranker(ranker):
            assert ranker.uuid in str(V.choices.uuid())  # type: ignore[attr-defined]
            with pytest.raises(NotImplementedError, match="theirs"):
                V.choices.should_use_cooperative_reduction(None)  # type: ignore[call-arg, arg-type]
    finally:
        inductor_choices.unregister_inductor_choices("theirs")  # type: ignore[attr-defined, unused-ignore]


@pytest.mark.skipif(torch.__version__ < "2.13", reason="needs torch 2.13")
def test_code_compiled_under_a_ranker_is_cached_by_its_version(fresh_inductor: None) -> None:
    from torch._dynamo.utils import counters

    def hits(run: Callable[[], object]) -> int:
        torch._dynamo.reset()
        counters.clear()
        run()
        return counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]

    def compiled() -> None:
        torch.compile(lambda x: torch.relu(x * 3))(torch.ones(7))

    def under(version: str) -> Callable[[], None]:
        def run() -> None:
            with use_ranker(Ranker(by_tiles, version)):
                compiled()

        return run

    assert hits(compiled) == 0
    assert hits(under("1")) == 0
    assert hits(under("1")) > 0
    assert hits(under("2")) == 0
    assert hits(compiled) > 0
