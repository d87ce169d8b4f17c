"""Problems that are only names."""

from multiprocessing import Pipe

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.named import NamedProblem


@given(name=st.from_regex(r"[\w.+:-]{1,40}", fullmatch=True))
def test_a_name_prints_and_parses(name: str) -> None:
    problem = NamedProblem.parse(name)
    assert str(problem) == name
    assert problem == NamedProblem(name)
    assert hash(problem) == hash(NamedProblem(name))
    here, there = Pipe()
    with here, there:  # as it goes to a process
        here.send(problem)
        assert there.recv() == problem


def test_a_name_is_no_product_of_that_size() -> None:
    assert NamedProblem("16x16x16:bf16") != GemmProblem(16, 16, 16)  # type: ignore[comparison-overlap]
    assert GemmProblem(16, 16, 16) != NamedProblem("16x16x16:bf16")  # type: ignore[comparison-overlap]


def test_nothing_is_known_of_what_it_computes() -> None:
    problem = NamedProblem("a")
    assert (problem.flops, problem.bytes, dict(problem.sizes)) == (0, 0, {})
    with pytest.raises(ProblemError, match="known by its name only"):
        _ = problem.element


@pytest.mark.parametrize(
    ("name", "dimensions"),
    [
        ("512x4096:bf16", (512, 4096)),
        ("20000000", (20_000_000,)),
        ("0x64", (0, 64)),
        ("a100-4096", ()),
        ("2e7", ()),
        ("1" * 40, ()),
        ("a", ()),
    ],
)
def test_its_dimensions_are_the_numbers_that_its_name_begins_with(name: str, dimensions: tuple[int, ...]) -> None:
    assert NamedProblem(name).dimensions == dimensions


@pytest.mark.parametrize("name", ["", " ", "a/b", "a b", "x" * 201])
def test_what_can_not_be_part_of_a_file_name_is_refused(name: str) -> None:
    with pytest.raises(ProblemError, match="malformed problem"):
        NamedProblem(name)
