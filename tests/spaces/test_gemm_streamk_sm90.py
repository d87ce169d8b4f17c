"""The space of the stream-K Hopper GEMM: that its parts add up to the product, its rules, and that it compiles."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import BuildError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_streamk_sm90.launch import EVENLY
from tilescout.spaces.gemm_streamk_sm90.layout import SharingShape, halves, most_clusters, slots, starts, unit_columns
from tilescout.spaces.gemm_streamk_sm90.partition import Partition, divide, slot
from tilescout.spaces.gemm_streamk_sm90.rules import promotion_of
from tilescout.spaces.gemm_streamk_sm90.template import shape_of
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.templates import find_template

TEMPLATE, H200 = find_template("gemm_streamk_sm90"), find_device("h200")
BLOCKS = (1, 2, 4, 8)
ways = st.one_of(
    st.tuples(st.integers(1, 32), st.just(False)),
    st.tuples(st.just(1), st.just(True)),
)
sizes = st.integers(1, 1200).map(lambda eighth: 8 * eighth)
problems = st.builds(GemmProblem, st.integers(1, 6000), sizes, sizes, st.integers(1, 3), st.just("bf16"))


def segments(partition: Partition, clusters: int) -> Iterator[tuple[int, int, int, int]]:
    """The work of the clusters of a grid: (job, tile, first step, end), each cluster's in its order."""
    for cluster in range(clusters):
        for job in range(cluster, partition.jobs, clusters):
            step, end = partition.begin(job), partition.begin(job + 1)
            while step < end:
                tile, first, last = partition.segment(step, end)
                yield job, tile, first, last
                step += last - first


@settings(max_examples=60, deadline=None)
@given(ways, st.integers(1, 400), st.integers(1, 60), st.integers(1, 132))
def test_every_step_of_every_tile_is_multiplied_once_and_added_up_in_order(
    way: tuple[int, bool], tiles: int, steps: int, clusters: int
) -> None:
    partition = divide(*way, tiles, steps, clusters)
    done = np.zeros((tiles, steps), dtype=int)
    left: dict[int, dict[int, tuple[int, int]]] = {}  # of each tile: the part that left sums in a slot
    for job, tile, first, last in segments(partition, min(clusters, partition.jobs)):
        assert 0 <= first < last <= steps
        done[tile, first:last] += 1
        if last - first < steps:
            assert slot(job, tile) not in left.setdefault(tile, {})
            left[tile][slot(job, tile)] = (first, last)
    assert (done == 1).all()
    used = [at for tile in left for at in left[tile]]
    assert len(set(used)) == len(used)
    for tile in range(partition.shared):
        first_part, last_part = partition.parts_of(tile)
        added = [slot(part, tile) for part in range(first_part, last_part + 1)] if first_part < last_part else []
        # What the second kernel adds up is all that was left of the tile, from its first step to its last.
        assert added == sorted(left.get(tile, {}), key=lambda at: left[tile][at])
    assert not any(tile >= partition.shared for tile in left)


@given(ways, st.integers(1, 400), st.integers(1, 60), st.sampled_from(BLOCKS), st.integers(1, 132))
def test_the_memory_is_enough_for_whatever_number_of_clusters_runs(
    way: tuple[int, bool], tiles: int, steps: int, blocks: int, clusters: int
) -> None:
    partition = divide(*way, tiles, steps, min(clusters, most_clusters(blocks)))
    last = slot(partition.parts - 1, partition.shared - 1)
    assert last < slots(*way, tiles, steps, blocks)


@given(st.integers(1, 400), st.integers(1, 60), st.integers(1, 132))
def test_a_grid_that_is_smaller_than_the_gpu_has_the_same_partition(tiles: int, steps: int, clusters: int) -> None:
    partition = divide(1, True, tiles, steps, clusters)
    assert divide(1, True, tiles, steps, min(clusters, partition.jobs)) == partition


@settings(max_examples=15, deadline=None)
@given(problems)
def test_the_default_is_legal(problem: GemmProblem) -> None:
    default = TEMPLATE.default(problem, H200)
    columns = {name: np.array([value]) for name, value in default.items()}
    broken = [rule.name for rule in TEMPLATE.constraints if not rule.holds(columns, problem, H200).all()]
    assert not broken


@pytest.mark.parametrize("problem", ["4096x4096x4096", "8192x1024x8192:e4m3", "214x57856x2368"])
def test_where_sharing_is_not_estimated_to_gain_the_default_is_that_of_the_kernel_of_whole_tiles(problem: str) -> None:
    parsed = TEMPLATE.parse(problem)
    whole = find_template("gemm_sm90").default(parsed, H200)
    assert {**TEMPLATE.default(parsed, H200), "split_k": 1} == {**whole, "split": 1, "stream_k": 0}


@pytest.mark.parametrize(
    ("problem", "tile", "cluster", "split", "sizes", "groups"),
    [
        ("433x3328x9600", 401, 3, 0, [(1, 128, 88, 1, 1), (1, 128, 88, 2, 1)], {1, 2}),  # its rows are along n
        ("294x2840x11112", 456, 8, 2, [(1, 192, 80, 1, 4), (1, 192, 80, 4, 1)], {1, 3}),
        ("2263x256x12288", 402, 5, 3, [(1, 128, 104, 1, 2), (1, 128, 104, 2, 1)], {1, 2}),
        ("257x21504x3072", 494, 3, 0, [(1, 256, 88, 1, 1), (1, 256, 88, 2, 1)], {2}),  # two tiles each, by turns
        ("768x3072x12288:e4m3-bf16", 184, 5, 0, [(0, 128, 144, 1, 1), (0, 128, 144, 2, 1)], {2}),
        ("768x3072x12288:e4m3-bf16", 1, 2, 0, [], set()),  # 8x8
    ],
)
def test_the_tile_and_the_split_of_a_kernel_of_the_library_are_found(
    problem: str, tile: int, cluster: int, split: int, sizes: list[tuple[int, ...]], groups: set[int]
) -> None:
    library, space = find_template("cublaslt"), TEMPLATE.space(TEMPLATE.parse(problem), H200)
    columns = {knob.name: np.array([0]) for knob in library.knobs}
    columns |= {"tile": np.array([tile]), "cluster": np.array([cluster]), "split_k": np.array([split])}
    tiling = library.tiling(columns, space.problem)
    assert tiling is not None
    found = [space[index] for index in TEMPLATE.like(space, tiling)]
    names = ("swap_ab", "tile_m", "tile_n", "cluster_m", "cluster_n")
    shapes = [tuple(each[name] for name in names) for each in found]
    assert list(dict.fromkeys(shapes)) == sizes
    orders = [
        (each["warp_groups"], each["swizzle"], each["raster"])
        for each, shape in zip(found, shapes, strict=True)
        if shape in sizes[:1]
    ]
    assert len(set(orders)) == len(orders)
    assert len(orders) >= (1 if split else 4) * len(groups)
    assert {each["warp_groups"] for each in found} == groups
    assert all(each["split"] == max(split, 1) and not each["stream_k"] for each in found)


@pytest.mark.parametrize(
    ("problem", "tile", "cluster", "orders"),
    [
        # 8,736 tiles: walked without bands, those of other orders read an operand again and again.
        ("8192x12288x3072", 201, 5, [("m", 8), ("m", 1), ("n", 8), ("m", 4), ("n", 4)]),
        # One warp group is estimated to take 1.9 times as long as two.
        ("2609x67584x12288:e4m3", 404, 5, [("n", 1), ("pairs", 1), ("n", 4), ("n", 8), ("m", 8), ("m", 4)]),
    ],
)
def test_what_is_clearly_slower_by_the_estimate_is_not_begun_with(
    problem: str, tile: int, cluster: int, orders: list[tuple[str, int]]
) -> None:
    library, space = find_template("cublaslt"), TEMPLATE.space(TEMPLATE.parse(problem), H200)
    columns = {knob.name: np.array([0]) for knob in library.knobs}
    columns |= {"tile": np.array([tile]), "cluster": np.array([cluster])}
    tiling = library.tiling(columns, space.problem)
    assert tiling is not None
    found = [space[index] for index in TEMPLATE.like(space, tiling)]
    assert {each["warp_groups"] for each in found} == {2}
    alone = [each for each in found if each["cluster_m"] == each["cluster_n"] == 1]
    assert [(each["raster"], each["swizzle"]) for each in alone] == orders
    assert found[1] not in alone  # that with the library's cluster, behind the first without one


def configuration(**changes: Value) -> dict[str, Value]:
    base: dict[str, Value] = {
        "schedule": "cooperative", "warp_groups": 2, "swap_ab": 0, "tile_m": 128, "tile_n": 128, "tile_k": 64,
        "cluster_m": 1, "cluster_n": 1, "stages": 6, "swizzle": 1, "raster": "m", "split": 1, "stream_k": 0,
    }  # fmt: skip
    return base | changes


@pytest.mark.parametrize(
    ("problem", "changes", "broken"),
    [
        ("282x320x24896", {"stream_k": 1}, []),
        ("282x320x24896", {"split": 24}, []),
        ("282x320x24896", {"split": 32}, ["split"]),  # 288 parts for 132 blocks
        ("282x320x24896", {"split": 2, "stream_k": 1}, ["share"]),
        ("282x320x24896", {"swizzle": 2}, []),
        ("282x320x24896", {"swizzle": 4}, ["order"]),  # all three tiles of a row: as by raster n
        ("282x320x24896", {"stages": 3}, ["ring"]),
        ("282x320x2048", {"split": 12}, ["split"]),  # parts of fewer than four steps
        ("2112x1024x1024", {"stream_k": 1}, []),
        ("2112x1024x1024", {"split": 2}, ["split"]),  # 272 parts for 132 blocks
        ("2112x1024x1024", {"stream_k": 1, "tile_m": 256, "tile_n": 128, "stages": 4}, []),
        ("2112x1024x1024", {"schedule": "pingpong"}, []),
        ("1024x1024x1024", {"schedule": "pingpong", "stream_k": 1}, ["taken"]),
        ("4224x2048x1024", {"stream_k": 1}, ["waves"]),  # 528 tiles: four full waves
        ("16384x1024x1024", {"swap_ab": 1}, []),
        ("16385x1024x1024", {"swap_ab": 1}, ["swap"]),
        ("257x21504x3072", {"swap_ab": 1, "tile_m": 256, "tile_n": 88, "stages": 4}, []),
        ("433x3328x9600", {"swap_ab": 1, "tile_n": 88, "raster": "pairs"}, []),
        ("433x3328x9600", {"swap_ab": 1, "tile_n": 88, "raster": "pairs", "swizzle": 4}, ["pairs"]),
        ("282x320x24896", {"raster": "pairs"}, ["pairs"]),  # 9 tiles for 132 multiprocessors
        ("768x3072x12288:e4m3", {"tile_k": 128, "tile_m": 256, "warp_groups": 1, "stages": 4}, ["registers"]),
        ("264x21504x3072:bf16:mk", {"swap_ab": 1, "tile_m": 256, "tile_n": 88, "stages": 4}, ["fine"]),
    ],
)
def test_rules_say_where_a_way_to_share_is_of_use(problem: str, changes: dict[str, Value], broken: list[str]) -> None:
    space = TEMPLATE.space(TEMPLATE.parse(problem), H200)
    assert [rule.name for rule in space.violations(configuration(**changes))] == broken


def test_blocks_that_are_launched_two_by_two_count_as_clusters_of_two() -> None:
    each = Configuration.of(configuration(swap_ab=1, tile_n=88, raster="pairs"))
    assert TEMPLATE.blocks_per_cluster(each) == 2


def test_only_what_shares_tiles_needs_memory() -> None:
    problem = TEMPLATE.parse("282x320x24896")
    assert TEMPLATE.scratch_bytes(configuration(), problem) == 0
    # 9 tiles of 128x128 in 8 parts each, the slots of a part and its tile: 9 * 9 - 1.
    assert TEMPLATE.scratch_bytes(configuration(split=8), problem) == 80 * 128 * 128 * 4


@given(st.integers(3, 32).map(lambda steps: 8 * steps))
def test_the_units_of_a_tile_cover_its_columns(tile_n: int) -> None:
    columns = unit_columns(tile_n)
    assert columns <= tile_n
    assert columns % 16 == 0
    covered = {first + at for first in starts(tile_n, columns) for at in range(columns)}
    assert covered == set(range(tile_n))


@pytest.mark.parametrize(
    ("tile_n", "swapped", "others"),
    [(24, 16, 16), (56, 32, 32), (64, 64, 64), (88, 48, 32), (96, 48, 32), (136, 48, 32), (144, 48, 32), (176, 64, 64)],
)
def test_the_units_of_a_tile_hardly_overlap(tile_n: int, swapped: int, others: int) -> None:
    problem = GemmProblem.parse("257x21504x3072")
    for swap, columns in (1, swapped), (0, others):
        shape = shape_of(configuration(tile_n=tile_n, swap_ab=swap), problem)
        assert shape.unit_n == columns
        assert {first + at for first in shape.starts for at in range(columns)} == set(range(tile_n))
        assert len(shape.starts) * columns - tile_n < 32
        saved = 2 * 2 * 64 * (unit_columns(tile_n) - columns) * 2
        assert SharingShape.shared_memory(shape, 2, 2) - shape.shared_memory(2, 2) == saved
    wide = shape_of(configuration(tile_n=tile_n, swap_ab=1), GemmProblem.parse("257x21504x3072:bf16-fp32"))
    assert wide.unit_n == unit_columns(tile_n)


@pytest.mark.parametrize(
    ("tile", "dtype", "way"),
    [
        ({"tile_n": 128}, "e4m3", "ahead"),
        ({"tile_n": 144}, "e4m3", "ahead"),  # 72 sums and twice 72 products
        ({"tile_n": 160}, "e4m3", "beside"),  # 80 sums and twice 80 products do not fit a thread's registers
        ({"tile_n": 184}, "e4m3", "beside"),
        ({"warp_groups": 3, "tile_m": 192, "tile_n": 96}, "e4m3", "ahead"),
        ({"warp_groups": 3, "tile_m": 192, "tile_n": 120}, "e4m3", "beside"),
        ({"tile_m": 256, "tile_n": 128}, "e4m3", "beside"),
        ({"warp_groups": 1, "tile_m": 64, "tile_n": 176}, "e4m3", "halves"),  # no other warp group multiplies meanwhile
        ({"schedule": "pingpong", "tile_m": 64, "tile_n": 176}, "e4m3", "halves"),
        ({"warp_groups": 1, "tile_m": 64, "tile_n": 184}, "e4m3", "step"),
        ({"tile_n": 128}, "bf16", "step"),
    ],
)
def test_a_product_is_computed_ahead_where_registers_suffice(tile: dict[str, Value], dtype: str, way: str) -> None:
    columns = {name: np.array([value]) for name, value in configuration(tile_k=128, **tile).items()}
    assert promotion_of(columns, GemmProblem.parse(f"768x3072x12288:{dtype}")).tolist() == [way]


@pytest.mark.parametrize("tile_n", range(16, 257, 8))
def test_halves_of_a_tile_are_matrix_instructions_that_differ_by_8_columns_at_most(tile_n: int) -> None:
    first, second = halves(tile_n)
    assert first + second == tile_n
    assert first % 8 == second % 8 == 0
    assert 0 <= first - second <= 8


@pytest.mark.slow
def test_every_way_to_share_compiles_without_spills(tmp_path: Path) -> None:
    wanted: list[tuple[str, dict[str, Value]]] = [
        ("bf16", {"schedule": "pingpong", "tile_m": 128, "tile_n": 192, "stages": 4, "stream_k": 1}),
        ("bf16-fp32:kn:alpha+bias+gelu", {"tile_m": 256, "tile_n": 176, "stages": 2, "split": 4, "swap_ab": 1}),
        ("e4m3-bf16", {"tile_n": 144, "tile_k": 128, "stages": 5, "stream_k": 1, "swap_ab": 1}),
        ("e4m3-bf16:kk:alpha+bias+gelu", {"tile_m": 192, "tile_n": 120, "tile_k": 128, "warp_groups": 3, "stages": 4}),
        ("e4m3-bf16", {"tile_n": 176, "tile_k": 128, "stages": 5, "swap_ab": 1}),
        ("e4m3-bf16", {"tile_m": 256, "tile_n": 128, "tile_k": 128, "stages": 4}),
        ("bf16", {"tile_n": 88, "swap_ab": 1, "raster": "pairs"}),
        ("bf16-fp32", {"tile_n": 136, "swap_ab": 1}),
    ]  # fmt: skip
    store, options = ArtifactStore(tmp_path), CompileOptions(processes=1, timeout=120)
    with CompilePool(TEMPLATE, "bf16", H200.arch, store, options) as pool:
        built = [pool.submit(Configuration.of(configuration(**changes)), signature) for signature, changes in wanted]
        for future in built:
            artifact = future.result()
            assert isinstance(artifact, Artifact), artifact
            assert artifact.resources is not None
            assert artifact.resources.spill_bytes == 0


@pytest.mark.parametrize("signature", ["bf16", "e4m3"])
def test_each_kernel_of_the_portfolio_is_legal_for_some_rows_and_whole(signature: str) -> None:
    listed = TEMPLATE.portfolio(GemmProblem.parse(f"9x3840x1280:{signature}"), H200)
    assert len(set(listed)) == len(listed) > 30
    assert {(each["split"], each["stream_k"], each["schedule"]) for each in listed} == {(1, 0, "pingpong")}
    columns = {knob.name: np.array([each[knob.name] for each in listed]) for knob in TEMPLATE.knobs}
    rules, rows = TEMPLATE.constraints, (512, 4096, 16_384)
    problems = [GemmProblem.parse(f"{m}x3840x1280:{signature}") for m in rows]
    legal = [np.logical_and.reduce([rule.holds(columns, each, H200) for rule in rules]) for each in problems]
    assert np.logical_or.reduce(legal).all()
    assert listed == TEMPLATE.portfolio(GemmProblem.parse(f"999x3840x1280:{signature}"), H200)


@pytest.mark.parametrize("signature", ["bf16", "e4m3"])
def test_each_kernel_to_have_in_a_store_is_legal_for_some_problem_and_many_are_for_a_common_one(signature: str) -> None:
    listed = TEMPLATE.stock(GemmProblem.parse(f"9x3840x1280:{signature}"), H200)
    assert len(set(listed)) == len(listed) > 300
    columns = {knob.name: np.array([each[knob.name] for each in listed]) for knob in TEMPLATE.knobs}
    rows = (3, 16, 48, 100, 200, 300, 425, 600, 900, 1300, 2500, 4000, 9000)
    widths = (32, 64, 128, 160, 320, 640, 2048, 4096, 24_000, 60_000)
    sizes = list(itertools.product(rows, widths, (512, 1024, 5120, 28_672)))
    legal = [
        np.logical_and.reduce([rule.holds(columns, problem, H200) for rule in TEMPLATE.constraints])
        for problem in (GemmProblem.parse(f"{m}x{n}x{k}:{signature}") for m, n, k in sizes)
    ]
    assert np.logical_or.reduce(legal).all()
    assert legal[sizes.index((425, 4096, 5120))].sum() >= 20
    assert listed == TEMPLATE.stock(GemmProblem.parse(f"999x384x1280:{signature}"), H200)


WALKS = """
import json
import torch
from cutlass import Int32, cute
from cutlass.cute.runtime import from_dlpack
from tilescout.spaces.gemm_streamk_sm90.launch import WAY, launch_number
from tilescout.spaces.gemm_streamk_sm90.scheduler import BandedOrder


@cute.jit
def walk(out: cute.Tensor, m: Int32, n: Int32, batches: Int32, number: Int32):
    order = BandedOrder.of(*BandedOrder.passed(m, n, batches, number))
    for work in range(order.count()):
        out[work, 0], out[work, 1], out[work, 2] = order.at(work)


compiled, found = None, []
for case in json.loads(input()):
    m, n, batches, swizzle, raster = case
    tiles = torch.zeros((m * n * batches, 3), dtype=torch.int32)
    number = launch_number({"swizzle": swizzle, "raster": raster, "split": 1, "stream_k": 0}) & ((1 << WAY) - 1)
    arguments = (from_dlpack(tiles).mark_layout_dynamic(), Int32(m), Int32(n), Int32(batches), Int32(number))
    compiled = compiled or cute.compile(walk, *arguments)
    compiled(*arguments)
    found.append(tiles.tolist())
print(json.dumps(found))
"""


def walked(m: int, n: int, batches: int, swizzle: int, raster: str) -> list[list[int]]:
    """The tiles of bands that are `swizzle` wide, one product after the other."""
    along, across = (m, n) if raster == "m" else (n, m)
    tiles = []
    for batch, first in itertools.product(range(batches), range(0, across, swizzle)):
        for position, lane in itertools.product(range(along), range(first, min(first + swizzle, across))):
            tiles.append([*((position, lane) if raster == "m" else (lane, position)), batch])
    return tiles


@pytest.mark.slow
def test_the_tiles_are_walked_in_the_bands_that_a_launch_asks_for(tmp_path: Path) -> None:
    script = tmp_path / "walks.py"  # CuteDSL reads the source of what it compiles
    script.write_text(WALKS)
    sizes = ((5, 7, 1), (8, 8, 2), (1, 13, 1), (13, 1, 3), (3, 17, 2), (257, 3, 1))
    cases = [(*size, swizzle, raster) for size in sizes for swizzle in (1, 2, 4, 8) for raster in ("m", "n")]
    told = subprocess.run(
        [sys.executable, str(script)], input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    for case, found in zip(cases, json.loads(told.stdout), strict=True):
        assert found == walked(*case), case


DIVIDES = """
import json
import torch
from cutlass import Int32, cute
from cutlass.cute.runtime import from_dlpack
from tilescout.spaces.gemm_streamk_sm90.scheduler import SharedTiles


@cute.jit
def divide(out: cute.Tensor, way: Int32, tiles: Int32, steps: Int32, clusters: Int32):
    partition = SharedTiles.of(tiles, SharedTiles.passed(way, tiles, steps, clusters))
    for job in range(partition.jobs):
        step, end = partition.begin(job), partition.begin(job + 1)
        out[job, 0], out[job, 1], out[job, 2], out[job, 3] = step, *partition.segment(step, end)


compiled, found = None, []
for case in json.loads(input()):
    jobs, *numbers = case
    segments = torch.zeros((jobs, 4), dtype=torch.int32)
    arguments = (from_dlpack(segments).mark_layout_dynamic(), *map(Int32, numbers))
    compiled = compiled or cute.compile(divide, *arguments)
    compiled(*arguments)
    found.append(segments.tolist())
print(json.dumps(found))
"""


def test_what_a_launch_passes_divides_the_tiles_as_the_rules_say(tmp_path: Path) -> None:
    script = tmp_path / "divides.py"  # CuteDSL reads the source of what it compiles
    script.write_text(DIVIDES)
    sizes = ((1, 7, 132), (35, 112, 132), (130, 5, 132), (400, 60, 66), (133, 3, 132), (7, 2, 16))
    cases = [(way, *size) for way in (EVENLY, 2, 3, 5, 16, 32) for size in sizes]
    partitions = [divide(case[0], case[0] == EVENLY, *case[1:]) for case in cases]
    given = [(each.jobs, *case) for each, case in zip(partitions, cases, strict=True)]
    told = subprocess.run(
        [sys.executable, str(script)], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    for case, partition, found in zip(cases, partitions, json.loads(told.stdout), strict=True):
        begins = [partition.begin(job) for job in range(partition.jobs + 1)]
        expected = [[step, *partition.segment(step, end)] for step, end in itertools.pairwise(begins)]
        assert found == expected, case


BUILDS = """
import json
from pathlib import Path
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import find_template

folder, template = Path(input()), find_template("gemm_streamk_sm90")
template.warm_up()
for number, values in enumerate(json.loads(input())):
    template.build(Configuration.of(values), "bf16", "sm_90a", folder / f"{number}.o")
"""


@pytest.mark.slow
@pytest.mark.skipif(not TEMPLATE.launched, reason="immediate operands of this processor are not in one piece")
def test_a_kernel_that_is_relaunched_is_to_the_byte_what_is_compiled_for_it(tmp_path: Path) -> None:
    wanted = [
        Configuration.of(configuration(tile_n=128, swizzle=8, raster="n")),
        Configuration.of(configuration(tile_n=128, swizzle=2, split=4)),
        Configuration.of(configuration(tile_n=128, stream_k=1, raster="n")),
    ]
    both = [each for one in wanted for each in (TEMPLATE.compiled_as(one), one)]
    told = subprocess.run(
        [sys.executable, "-c", BUILDS],
        input=f"{tmp_path}\n{json.dumps([dict(each) for each in both])}",
        env={**os.environ, "CUTE_DSL_ARCH": "sm_90a"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    for at, each in enumerate(wanted):
        compiled, anew = ((tmp_path / f"{2 * at + step}.o").read_bytes() for step in (0, 1))
        assert compiled != anew == TEMPLATE.relaunch(compiled, each, "bf16")
        with pytest.raises(BuildError, match=r"0 times, expected"):
            TEMPLATE.relaunch(anew, each, "bf16")  # what is to be replaced is not there


def test_blocks_that_are_launched_two_by_two_are_a_kernel_of_their_own() -> None:
    pairs = Configuration.of(configuration(swap_ab=1, tile_n=88, raster="pairs"))
    assert TEMPLATE.compiled_as(pairs) == pairs


@pytest.mark.parametrize("problem", ["1x128x64:bf16", "5x64000x7168:e4m3", "4096x4096x4096:bf16"])
def test_it_is_searched_beside_the_other_on_products_of_all_rows(problem: str) -> None:
    assert TEMPLATE.complements(GemmProblem.parse(problem), H200)
