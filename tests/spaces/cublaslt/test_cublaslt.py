"""cuBLASLt as it is told of products and asked for algorithms, by a library in C with the same functions."""

import ctypes
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tilescout.spaces.cublaslt import algorithms
from tilescout.spaces.cublaslt.abi import Algorithm, Desc, Epilogue, Found, Library, LibraryError, loaded_library
from tilescout.spaces.cublaslt.algorithms import KNOBS, VALUES, Setting, listing
from tilescout.spaces.cublaslt.loader import CublasLt, FastCublasLt, describe
from tilescout.spaces.cublaslt.operation import CONFIGURED, WORKSPACE, Operation
from tilescout.spaces.cublaslt.product import Product
from tilescout.spaces.cublaslt.shapes import cluster_shapes, tile_shapes
from tilescout.spaces.cublaslt.template import FAST, TEMPLATE
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import DeviceError, ProblemError, SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.space import SearchSpace


def operation(fake_cublaslt: ModuleType, text: str, fast: bool = False) -> Operation:
    return Operation(fake_cublaslt.load_library(), Product.of(GemmProblem.parse(text), fast))


def test_structures_have_the_sizes_of_the_header():
    assert ctypes.sizeof(Algorithm) == 64
    assert ctypes.sizeof(Found) == 96
    assert Found.workspace.offset == 64


def test_the_library_is_the_one_that_the_process_has_loaded(tmp_path: Path):
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f10 r-xp 0 00:00 7 /opt/a b/libcublas.so.13\n7f10-7f20 r-xp 0 00:00 8 /opt/a b/libcublasLt.so.13\n"
    )
    assert loaded_library(maps) == Path("/opt/a b/libcublasLt.so.13")

    maps.write_text("7f00-7f10 r-xp 0 00:00 7 /opt/libcublas.so.13\n7f10-7f20 rw-p 0 00:00 0 [heap]\n")
    with pytest.raises(DeviceError, match="built for CUDA"):
        loaded_library(maps)


def test_a_version_is_told_as_it_is_written(fake_cublaslt: ModuleType):
    assert fake_cublaslt.load_library().version == "13.1.0"
    assert fake_cublaslt.load_library(120906).version == "12.9.6"


def test_a_refusal_says_which_call_was_refused(fake_cublaslt: ModuleType):
    library = fake_cublaslt.load_library()
    with pytest.raises(LibraryError, match=r"cublasLtMatmulAlgoInit answered 7 \(invalid value\)"):
        library.algorithm([68, 0, 14, 14, 14, 14], 8)
    with pytest.raises(DeviceError, match="can't use"):
        Library(Path(__file__))


@pytest.mark.parametrize(
    ("layout", "left", "right"),
    [
        ("kk", (40, 64, True), (40, 48, False)),
        ("kn", (64, 40, False), (40, 48, False)),
        ("mk", (40, 64, True), (48, 40, True)),
        ("mn", (64, 40, False), (48, 40, True)),
    ],
)
def test_row_major_operands_are_columns_of_the_swapped_product(
    layout: str, left: tuple[int, int, bool], right: tuple[int, int, bool]
):
    product = Product.of(GemmProblem(48, 64, 40, 3, layout=layout), fast=False)

    assert (product.left.rows, product.left.columns, product.left.transposed) == left
    assert (product.right.rows, product.right.columns, product.right.transposed) == right
    assert (product.result.rows, product.result.columns, product.result.transposed) == (64, 48, False)
    assert (product.left.stride, product.right.stride, product.result.stride) == (64 * 40, 48 * 40, 48 * 64)


def test_what_the_library_fuses_is_the_bias_and_relu_and_no_approximate_gelu():
    fused = {
        "8x8x8:bf16": Epilogue.NONE,
        "8x8x8:bf16:bias": Epilogue.BIAS,
        "8x8x8:bf16:relu": Epilogue.RELU,
        "8x8x8:bf16:bias+relu": Epilogue.RELU | Epilogue.BIAS,
        "8x8x8:bf16:bias+gelu": Epilogue.BIAS,
        "8x8x8:bf16:silu": Epilogue.NONE,
    }
    assert {text: Product.of(GemmProblem.parse(text), fast=False).epilogue for text in fused} == fused


def test_alpha_is_a_scale_of_8_bit_operands_and_a_factor_of_others():
    scaled = Product.of(GemmProblem.parse("8x8x16:e4m3:alpha"), fast=False)
    factor = Product.of(GemmProblem.parse("8x8x16:bf16:alpha"), fast=False)
    assert (scaled.scaled, scaled.device_alpha) == (True, False)
    assert (factor.scaled, factor.device_alpha) == (False, True)


def test_everything_legal_is_listed_once_with_the_heuristics_guesses_first(fake_cublaslt: ModuleType):
    found = listing(operation(fake_cublaslt, "48x8x40:bf16"), None)

    assert found.complete
    assert found.version == "13.1.0"
    assert [row[0] for row in found.rows[:4]] == [1, 2, 3, 0]
    assert len({row[1:] for row in found.rows}) == len(found.rows)
    # 3 pairs of tile and cluster, 4 custom options, 2 swizzles, not split or into 2, 3 or 4 parts in 2 ways
    assert sum(row[1] == 7 for row in found.rows) == 3 * 4 * 2 * (1 + 3 * 2)
    assert [dict(zip(KNOBS, row, strict=True)) for row in found.rows if row[1] == 9] == [
        {**dict.fromkeys(KNOBS, 0), "algorithm": 9, "split_k": 1}
    ]


def test_algorithms_of_other_devices_are_not_asked_about(fake_cublaslt: ModuleType):
    asked = operation(fake_cublaslt, "48x64x40:bf16")
    found = listing(asked, None)

    assert 11 in asked.library.identifiers(asked.product.types, 8)
    assert found.asked < 600 * 4  # as many tiles and custom options as that one has


def test_a_split_that_needs_too_much_memory_is_not_listed(fake_cublaslt: ModuleType):
    found = listing(operation(fake_cublaslt, "1024x4096x16:bf16"), None)

    splits = {(row[4], row[5]) for row in found.rows}
    assert splits == {(1, 0), (2, 1), (3, 1), (4, 1), (2, 2)}
    assert WORKSPACE == 4 * 1024 * 4096 * 2


def test_a_listing_that_was_cut_short_says_so(fake_cublaslt: ModuleType):
    found = listing(operation(fake_cublaslt, "48x64x40:bf16"), None, most=300)

    assert not found.complete
    assert found.asked == 300
    assert [row[0] for row in found.rows[:3]] == [1, 2, 3]


def test_guesses_alone_are_asked_for_in_one_call(fake_cublaslt: ModuleType):
    found = listing(operation(fake_cublaslt, "48x64x40:bf16:bias"), 2)

    assert [row[0] for row in found.rows] == [1, 2]
    assert found.asked == 0


def test_a_version_whose_numbers_no_knob_has_is_refused(fake_cublaslt: ModuleType, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(algorithms, "_RANGES", [frozenset({-1})] * len(KNOBS))
    with pytest.raises(SpaceError, match=r"cuBLASLt 13\.1\.0 has algorithms whose numbers no knob here can have"):
        listing(operation(fake_cublaslt, "48x64x40:bf16"), None)


def test_attributes_are_set_by_their_size(fake_cublaslt: ModuleType):
    asked = operation(fake_cublaslt, "16x16x32:e4m3:bias", fast=True)  # every attribute that there is

    assert listing(asked, 1).rows
    with pytest.raises(LibraryError, match="invalid value"):
        asked.library.call("cublasLtMatmulDescSetAttribute", None, Desc.BIAS.number, ctypes.byref(ctypes.c_int8()), 1)


def test_the_problem_says_whether_sums_are_fast_or_the_space_does(fake_cublaslt: ModuleType):
    of_host = {"library": fake_cublaslt.load_library()}
    accurate, fast = (GemmProblem.parse(f"16x16x32:e4m3{part}") for part in ("", ":fast"))
    for loader, expected in ((CublasLt, [False, True]), (FastCublasLt, [True, True])):
        asked = type("OfHost", (loader,), of_host)()
        assert [asked.operation(problem).product.fast for problem in (accurate, fast)] == expected


@pytest.mark.parametrize(
    "description", ["", "{}", "[]", '{"signature": "bf16", "knobs": {"guess": 1}}', '{"signature": 1}']
)
def test_a_description_that_says_something_else_is_refused(description: str):
    with pytest.raises((SpaceError, ProblemError)):
        CublasLt().launch(description)


def test_nothing_is_known_of_a_space_without_the_library():
    problem, device = GemmProblem(64, 64, 64), find_device("h200")
    for ask in (TEMPLATE.space, TEMPLATE.default):
        with pytest.raises(SpaceError, match="where there is a GPU, or replay a table"):
            ask(problem, device)
    with pytest.raises(ProblemError, match="only sums of e4m3"):
        FAST.check(problem)
    FAST.check(GemmProblem(64, 64, 64, dtype="e4m3"))


def test_a_space_of_what_was_listed_has_the_first_guess_as_its_default(fake_cublaslt: ModuleType):
    problem, device = GemmProblem(48, 64, 40), find_device("h200")
    rows = listing(operation(fake_cublaslt, str(problem)), None).rows
    space = TEMPLATE.space_of(SearchSpace.codes_of(TEMPLATE.knobs, rows), problem, device)

    assert space is not None
    assert {tuple(space[index].values()) for index in range(len(space))} == set(rows)
    assert tuple(TEMPLATE.default_in(space).values()) == rows[0]
    assert TEMPLATE.space_of(SearchSpace.codes_of(TEMPLATE.knobs, rows)[:0], problem, device) is None
    with pytest.raises(SpaceError, match="first guess"):
        TEMPLATE.default_in(space.subset((space.columns["guess"] == 0).nonzero()[0]))
    with pytest.raises(SpaceError, match="not for host"):
        TEMPLATE.space_of(space.codes, problem, fake_cublaslt.HOST)


def test_an_artifact_is_a_description_that_depends_on_nothing_else(tmp_path: Path, fake_cublaslt: ModuleType):
    row = listing(operation(fake_cublaslt, "48x64x40:bf16"), 1).rows[0]
    configuration = dict(zip(KNOBS, row, strict=True))

    built = TEMPLATE.build(configuration, "bf16", "sm_90a", tmp_path / "kernel.txt")

    assert built.shared_memory is None
    assert (tmp_path / "kernel.txt").read_text() == describe(dict(reversed(configuration.items())), "bf16")


def test_knobs_are_named_and_in_order():
    assert tuple(knob.name for knob in TEMPLATE.knobs) == KNOBS
    for knob in TEMPLATE.knobs:
        assert all(first < second for first, second in pairwise(VALUES[knob.name]))
        assert knob.values == VALUES[knob.name]
    assert list(CONFIGURED) == list(Setting._fields) == list(KNOBS)[2:]


def test_numbers_of_tiles_and_clusters_have_the_sizes_of_the_header():
    tiles, clusters = tile_shapes(), cluster_shapes()
    named = {1: (8, 8), 20: (128, 128), 35: (256, 32), 36: (8, 128), 134: (80, 64), 209: (192, 192), 248: (320, 128),
             311: (768, 64), 312: (64, 16), 393: (128, 8), 448: (192, 8), 513: (256, 256), 630: (768, 80),
             634: (512, 1024)}  # fmt: skip
    assert {number: tuple(tiles[number]) for number in named} == named
    assert len({tuple(shape) for shape in tiles[1:635]}) == 634
    assert {number: tuple(clusters[number]) for number in (2, 3, 8, 10, 28, 51)} == {
        2: (1, 1), 3: (2, 1), 8: (1, 4), 10: (4, 4), 28: (3, 2), 51: (1, 15),
    }  # fmt: skip
    assert len(VALUES["cluster"]) == len(clusters)


def test_a_tile_is_turned_as_the_product_is():
    problem = GemmProblem(16, 4096, 4096)
    row = dict.fromkeys(KNOBS, 0) | {"algorithm": 66, "tile": 312, "cluster": 4, "split_k": 2, "custom_option": 5}
    columns = {name: np.array([value]) for name, value in row.items()}

    tiling = TEMPLATE.tiling(columns, problem)

    facts = ("rows", "columns", "depth", "cluster_m", "cluster_n", "split_k", "warp_groups", "mma_columns")
    assert [int(getattr(tiling, fact)[0]) for fact in facts] == [16, 64, 64, 1, 4, 2, 2, 16]
    assert not tiling.split_in_cluster
