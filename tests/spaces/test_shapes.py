"""Problems of one shape: those of which one tells of the other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.problems import Problem
from tilescout.spaces.rowwise import RowwiseProblem
from tilescout.spaces.shapes import shape_groups

SIZES = st.integers(1, 10**5)


def are_one(first: str, second: str) -> bool:
    return len(set(shape_groups([GemmProblem.parse(first), GemmProblem.parse(second)]))) == 1


@given(SIZES, SIZES, SIZES)
def test_element_types_layouts_epilogues_and_transposing_make_no_other_shape(m: int, n: int, k: int) -> None:
    others = [f"{m}x{n}x{k}:e4m3-bf16", f"{m}x{n}x{k}:fp16:mn", f"{m}x{n}x{k}:bf16:bias+gelu", f"{n}x{m}x{k}:bf16"]
    problems = [GemmProblem.parse(text) for text in (f"{m}x{n}x{k}:bf16", *others)]
    assert set(shape_groups(problems)) == {f"{m}x{n}x{k}:bf16"}


@pytest.mark.parametrize(
    ("first", "second", "one"),
    [
        ("1000x1000x1000", "1024x1024x1024", True),
        ("64x8192x8192", "64x8192x8960", True),
        ("64x8192x8192", "64x8192x16384", False),
        ("1x4096x4096", "2x4096x4096", False),
        ("64x8192x8192", "64x8192x8192x8", False),
        ("4096x1024x256", "4096x256x1024", False),  # another product
    ],
)
def test_sizes_that_are_near_make_no_other_shape(first: str, second: str, one: bool) -> None:
    assert are_one(first, second) == one


def test_a_chain_of_near_problems_is_one_shape() -> None:
    chain: list[Problem] = [GemmProblem(n, 512, 512) for n in (1000, 1180, 1090)]
    assert set(shape_groups(chain)) == {str(chain[0])}


def test_problems_of_other_kinds_and_without_sizes_are_alone() -> None:
    problems = [NamedProblem("convolution"), NamedProblem("hotspot"), NamedProblem("convolution"),
                RowwiseProblem(64, 64), GemmProblem(64, 64, 64)]  # fmt: skip
    assert shape_groups(problems) == ["convolution", "hotspot", "convolution", "64x64:bf16", "64x64x64:bf16"]
