"""The space of the grouped Hopper GEMM: its rules, its default, and that what it holds compiles without spills."""

import struct
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm_sm90.caching import EVICT_FIRST
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.layout import block_bytes
from tilescout.spaces.grouped_gemm_sm90.template import shape_of
from tilescout.spaces.knobs import Value
from tilescout.spaces.routing import Routing
from tilescout.spaces.subspace import read_subspace
from tilescout.spaces.templates import find_template

TEMPLATE, H200 = find_template("grouped_gemm_sm90"), DEVICES["h200"]
eighths = st.integers(1, 2048).map(lambda eighth: 8 * eighth)
problems = st.builds(
    GroupedProblem, st.integers(1, 512), st.integers(1, 10**6), eighths, eighths, routing=st.just(Routing("zipf", 1.0))
)


@settings(max_examples=6, deadline=None)
@given(problem=problems, draws=st.data())
def test_the_space_holds_what_breaks_no_rule_and_the_default(problem: GroupedProblem, draws: st.DataObject) -> None:
    space = TEMPLATE.space(problem, H200)
    for _ in range(10):
        drawn = {knob.name: draws.draw(st.sampled_from(knob.values)) for knob in space.knobs}
        assert (drawn in space) == (not space.violations(drawn))
    for index in space.sample(20, np.random.default_rng(0)):
        assert block_bytes(shape_of(space[int(index)]), problem.element.bytes) <= H200.shared_memory


@settings(deadline=None)
@given(problems)
def test_the_default_is_legal(problem: GroupedProblem) -> None:
    default = TEMPLATE.default(problem, H200)
    assert all(rule.holds({name: np.array([value]) for name, value in default.items()}, problem, H200).all()
               for rule in TEMPLATE.constraints)  # fmt: skip


@pytest.mark.parametrize("routing", ["balanced", "zipf-1", "one"])
def test_what_is_tried_first_is_legal_and_not_the_default(routing: str) -> None:
    problem = TEMPLATE.parse(f"128x512x1536x2048:bf16:{routing}")
    space = TEMPLATE.space(problem, H200)
    first = TEMPLATE.first_in(space)
    assert len(set(first)) == len(first) > 5
    assert space.index(TEMPLATE.default(problem, H200)) not in first


def test_the_default_goes_by_the_groups_of_most_tokens_not_by_the_mean_expert() -> None:
    few, many = (TEMPLATE.default(TEMPLATE.parse(f"256x4096x4096x7168:bf16:{r}"), H200) for r in ("balanced", "zipf-1"))
    assert (few["swap_ab"], few["tile_n"]) == (1, 16)
    assert (many["swap_ab"], many["tile_n"]) == (0, 192)


def test_by_default_two_blocks_share_weights_where_groups_fill_pairs_of_tiles() -> None:
    full, torn = (TEMPLATE.default(TEMPLATE.parse(f"8x2048x1536x2048:bf16:{r}"), H200) for r in ("balanced", "zipf-1"))
    assert (full["cluster_m"], torn["cluster_m"]) == (2, 1)
    space = TEMPLATE.space(TEMPLATE.parse("1x250x1536x2048"), H200)
    assert TEMPLATE.default(space.problem, H200) in space


@pytest.mark.parametrize(("n", "blocks"), [(1536, 2), (4096, 2), (2048, 1), (376, 2), (200, 1)])
def test_by_default_two_blocks_share_the_tokens_of_uneven_experts_where_n_fills_pairs_of_tiles(
    n: int, blocks: int
) -> None:
    problem = TEMPLATE.parse(f"128x32768x{n}x2048:bf16:zipf-1")
    assert TEMPLATE.default(problem, H200)["cluster_n"] == blocks


@pytest.mark.parametrize(("n", "columns"), [(1024, 128), (640, 128), (1408, 128), (1280, 192), (2048, 192), (832, 192)])
def test_by_default_tiles_of_many_tokens_are_narrower_where_wide_ones_lie_beyond_n(n: int, columns: int) -> None:
    uneven = TEMPLATE.default(TEMPLATE.parse(f"40x51848x{n}x1536:bf16:zipf-0.87"), H200)
    even = TEMPLATE.default(TEMPLATE.parse(f"40x40960x{n}x1536:bf16:balanced"), H200)
    assert (uneven["tile_n"], even["tile_n"], even["cluster_m"]) == (columns, columns, 2)


def test_every_part_of_the_recorded_sub_space_holds_something_of_a_large_problem() -> None:
    path = Path(str(files("tilescout.search.tables").joinpath("recorded", "grouped_gemm_sm90-subspace.toml")))
    parts = read_subspace(path, TEMPLATE.knobs)
    space = TEMPLATE.space(TEMPLATE.parse("128x4096x1536x2048:bf16:zipf-1"), H200)
    held = [int(part.holds(space).sum()) for part in parts.parts]
    assert min(held) > 0
    assert sum(held) == parts.holds(space).sum()  # none is in two


def test_rows_that_tma_can_not_move_and_too_many_experts_are_refused() -> None:
    for text, reason in (("8x64x60x64", "n = 60 is not a multiple of 8"), ("8x64x64x4", "k = 4"), ("513x8x8x8", "512")):
        with pytest.raises(ProblemError, match=reason):
            TEMPLATE.check(TEMPLATE.parse(text))


@pytest.mark.slow
def test_large_tiles_of_every_kind_compile_without_spills(tmp_path: Path) -> None:
    space = TEMPLATE.space(TEMPLATE.parse("128x4096x1536x2048:bf16:zipf-1"), H200)
    common: dict[str, Value] = {
        "tile_k": 64,
        "cluster_m": 1,
        "cluster_n": 1,
        "stages": 2,
        "swizzle": 2,
        "raster": "m",
        "order": "experts",
        "trim": 1,
    }
    wanted: list[dict[str, Value]] = [
        {"schedule": "cooperative", "warp_groups": 2, "swap_ab": 0, "tile_m": 256, "tile_n": 192},
        {"schedule": "pingpong", "warp_groups": 2, "swap_ab": 0, "tile_m": 128, "tile_n": 192, "cluster_n": 2},
        {
            "schedule": "cooperative",
            "warp_groups": 3,
            "swap_ab": 0,
            "tile_m": 192,
            "tile_n": 192,
            "cluster_m": 2,
            "order": "mixed",
            "trim": 0,
        },
    ]
    with CompilePool(TEMPLATE, "bf16", H200.arch, ArtifactStore(tmp_path), CompileOptions()) as pool:
        built = [pool.submit(space[space.index({**common, **each})]) for each in wanted]
        for future in built:
            artifact = future.result()
            assert isinstance(artifact, Artifact), artifact
            assert artifact.resources is not None
            assert artifact.resources.spill_bytes == 0
            # The upper word of the policy, by which weights leave the L2 first, is an operand of an instruction.
            assert struct.pack("<I", EVICT_FIRST >> 32) in artifact.path.read_bytes()
