"""The features that models see: counted by hand where that is possible, and for every problem finite."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.costmodel.features import space_features
from tilescout.costmodel.work import work_of
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.hardware import clusters_at_once
from tilescout.spaces.knobs import Knob
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

H200, TEMPLATE = DEVICES["h200"], find_template("gemm_sm90")
KNOBS = (
    Knob("width", (1, 2, 4), "for tests"),
    Knob("order", ("z", "a"), "for tests"),
    Knob("odd", (0, 3), "for tests"),
)


def column(problem: GemmProblem, name: str, **knobs: int | str) -> float:
    space = TEMPLATE.space(problem, H200)
    features = space_features(space, TEMPLATE)
    return float(features.values[space.index(configuration(**knobs)), features.names.index(name)])


def configuration(**changes: int | str) -> dict[str, int | str]:
    base: dict[str, int | str] = {
        "tile_m": 128,
        "tile_n": 128,
        "tile_k": 64,
        "cluster_m": 1,
        "cluster_n": 1,
        "stages": 4,
        "swizzle": 1,
    }
    rest: dict[str, int | str] = {
        "schedule": "cooperative",
        "swap_ab": 0,
        "split_k": 1,
        "raster": "m",
        "warp_groups": 2,
    }
    return {**base, **rest, "warp_groups": 2, **changes}


@settings(max_examples=15)
@given(
    m=st.integers(1, 20_000), n=st.integers(1, 2000), k=st.integers(1, 2000), batch=st.integers(1, 9),
    dtype=st.sampled_from(["bf16", "fp16"]),
)  # fmt: skip
def test_features_are_finite_for_every_problem(m: int, n: int, k: int, batch: int, dtype: str) -> None:
    space = TEMPLATE.space(GemmProblem(m, 8 * n, 8 * k, batch, dtype), H200)
    part = space.subset(np.arange(0, len(space), 97))
    features = space_features(part, TEMPLATE)
    assert features.values.shape == (len(part), len(features.names))
    assert np.isfinite(features.values).all()
    assert len(set(features.names)) == len(features.names)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemm_sm90", "gemm_streamk_sm90"])
@settings(max_examples=5)
@given(
    m=st.integers(1, 9000), n=st.integers(1, 1000), k=st.integers(8, 1000),
    types=st.sampled_from(["bf16", "e4m3-bf16"]),
)  # fmt: skip
def test_no_two_configurations_of_a_space_look_alike(name: str, m: int, n: int, k: int, types: str) -> None:
    template = find_template(name)
    space = template.space(template.parse(f"{m}x{16 * n}x{16 * k}:{types}"), H200)
    values = np.ascontiguousarray(space_features(space, template).values)
    rows = values.view(np.dtype((np.void, values.strides[0])))
    assert len(np.unique(rows)) == len(space)


def test_work_is_counted_as_by_hand() -> None:
    problem = GemmProblem(4096, 4096, 4096)
    space = TEMPLATE.space(problem, H200)
    one = space.subset([space.index(configuration(cluster_m=2))])
    tiling = TEMPLATE.tiling(one.columns, problem)
    assert tiling is not None
    work = work_of(tiling, H200)
    assert work.units[0] == 16 * 32  # clusters of 256 x 128
    assert work.at_once[0] == 66
    assert work.waves[0] == 8  # 512 / 66 rounded up
    assert work.steps[0] == 64
    assert work.stage_bytes[0] == (128 + 128) * 64 * 2
    assert work.l2_bytes[0] == (128 + 64) * 64 * 2  # the two blocks of the cluster share the tile of B
    assert work.mma_cycles[0] == 2 * 128 * 128 * 64 / 4096


def test_what_is_quantised_shows() -> None:
    assert column(GemmProblem(4096, 4096, 4096), "pad_m") == 0
    assert column(GemmProblem(129, 4096, 4096), "pad_m") == pytest.approx(np.log2(256 / 129))
    assert column(GemmProblem(300, 4096, 4096), "pad_m", cluster_m=4) == pytest.approx(np.log2(512 / 300))
    assert column(GemmProblem(4096, 4096, 72), "pad_k") == pytest.approx(np.log2(128 / 72))


def test_multicast_halves_what_l2_gives_and_not_what_shared_memory_takes() -> None:
    problem = GemmProblem(4096, 4096, 4096)
    plain = column(problem, "l2_intensity")
    assert column(problem, "l2_intensity", cluster_m=2, cluster_n=2) == plain + 1
    assert column(problem, "stage_bytes", cluster_m=2, cluster_n=2) == column(problem, "stage_bytes")


def test_swizzled_bands_reach_over_less_memory() -> None:
    problem = GemmProblem(16384, 16384, 4096)
    assert column(problem, "wave_bytes", swizzle=8) < column(problem, "wave_bytes", swizzle=1)
    assert column(problem, "traffic", swizzle=8) < column(problem, "traffic", swizzle=1)


def test_larger_clusters_leave_multiprocessors_unused() -> None:
    assert clusters_at_once(np.array([1, 2, 4, 8]), H200).tolist() == [132, 66, 30, 15]
    assert clusters_at_once(np.array([16]), H200).tolist() == [7]  # the share of the largest that was counted


def test_knobs_are_features_where_nothing_else_is_known() -> None:
    space = SearchSpace("unknown", KNOBS, (), GemmProblem(8, 8, 8), H200)
    features = space_features(space)
    assert features.names == ("knob:width", "knob:order", "knob:odd")
    assert features.values[:, 0].tolist() == np.repeat([0.0, 1.0, 2.0], 4).tolist()
    assert features.values[:, 1:].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]] * 3


@pytest.mark.parametrize("part", ["stages", "cluster_m", "rows"])
@pytest.mark.filterwarnings("error")
def test_a_tiling_of_which_no_features_follow_is_refused_with_the_configuration(part: str) -> None:
    class Empty(type(TEMPLATE)):  # type: ignore[misc]
        def tiling(self, columns, problem):
            whole = super().tiling(columns, problem)
            return replace(whole, **{part: np.where(columns["stages"] == 3, 0, getattr(whole, part))})

    space = TEMPLATE.space(GemmProblem(512, 512, 512), H200)
    few = space.subset(np.arange(0, len(space), 500))
    with pytest.raises(SpaceError, match=r"by the tiling of its template \w+ is (-?inf|nan) for .* stages=3 "):
        space_features(few, Empty())


def test_swapped_operands_swap_the_tile_and_blocks_that_split_k_take_fewer_steps() -> None:
    problem = GemmProblem(64, 4096, 4096)
    narrow = configuration(tile_m=64, tile_n=128, warp_groups=1, cluster_m=2)
    plain, swapped = (
        TEMPLATE.tiling({name: np.array([value]) for name, value in {**narrow, **changes}.items()}, problem)
        for changes in ({}, {"swap_ab": 1, "split_k": 4})
    )
    assert plain is not None
    assert swapped is not None
    assert (plain.rows[0], plain.columns[0], plain.cluster_m[0], plain.split_k[0]) == (64, 128, 2, 1)
    assert (swapped.rows[0], swapped.columns[0], swapped.cluster_m[0], swapped.split_k[0]) == (128, 64, 1, 4)
    assert work_of(swapped, H200).steps[0] == work_of(plain, H200).steps[0] / 4


def test_blocks_that_split_k_outside_a_cluster_are_units_of_their_own() -> None:
    template, problem = find_template("quack_sm90"), GemmProblem(64, 8192, 8192)
    default = template.default(problem, H200)
    whole, split = (
        work_of(
            template.tiling({n: np.array([v]) for n, v in {**default, "split_k": parts}.items()}, problem),  # type: ignore[arg-type]
            H200,
        )
        for parts in (1, 4)
    )
    assert split.units[0] == 4 * whole.units[0]
    assert split.blocks[0] == whole.blocks[0] == 2
    assert split.steps[0] == whole.steps[0] / 4
    space = template.space(problem, H200)
    part = space.subset(np.arange(0, len(space), 97))
    assert np.isfinite(space_features(part, template).values).all()


def test_eight_bit_products_move_half_the_bytes_in_half_the_cycles() -> None:
    columns = {name: np.array([value]) for name, value in configuration().items()}
    wide, narrow = (
        work_of(TEMPLATE.tiling(columns, problem), H200)  # type: ignore[arg-type]
        for problem in (GemmProblem(4096, 4096, 4096), GemmProblem(4096, 4096, 4096, dtype="e4m3"))
    )
    assert narrow.mma_cycles[0] == wide.mma_cycles[0] / 2
    assert narrow.stage_bytes[0] == wide.stage_bytes[0] / 2
    assert narrow.tile_bytes[0] == wide.tile_bytes[0]  # both results are bf16


def test_parts_of_a_space_are_described_as_the_whole_is(monkeypatch: pytest.MonkeyPatch) -> None:
    space = TEMPLATE.space(GemmProblem.parse("96x160x512:bf16"), H200)
    whole = space_features(space, TEMPLATE)
    monkeypatch.setattr("tilescout.costmodel.features.ROWS", 1000)
    parts = space_features(space, TEMPLATE)
    assert len(space) > 1000
    assert parts.names == whole.names
    assert np.array_equal(parts.values, whole.values)
