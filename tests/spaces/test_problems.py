"""Problems: what is read, what is refused, what is counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.errors import ProblemError, SpaceError
from tilescout.spaces.problems import DTYPES, Problem
from tilescout.spaces.templates import find_template, template_names
from tilescout.spaces.workloads import find_workload

LARGEST = 2**31 - 1
sizes = st.integers(1, LARGEST)
problems = st.builds(Problem, m=sizes, n=sizes, k=sizes, batch=sizes, dtype=st.sampled_from(list(DTYPES)))


@given(problems)
def test_a_problem_is_read_back_from_its_print(problem: Problem) -> None:
    assert Problem.parse(str(problem)) == problem
    assert Problem.parse(f" {problem}\n") == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("4096x2048x512", Problem(4096, 2048, 512, 1, "bf16")),
        ("4096x2048x512:fp16", Problem(4096, 2048, 512, 1, "fp16")),
        ("4096x2048x512x3", Problem(4096, 2048, 512, 3, "bf16")),
        ("1x8x8x1:bf16", Problem(1, 8, 8)),
    ],
)
def test_what_is_left_out_has_its_default(text: str, problem: Problem) -> None:
    assert Problem.parse(text) == problem


@pytest.mark.parametrize(
    "text",
    [
        "", "4096", "4096x4096", "4096x4096x", "x4096x4096", "4096x4096x4096x2x2", "4096*4096*4096", "axbxc",
        "4096x4096x-8", "4096x4096x4096.0", "1e3x8x8", "4096x4096x4096:", "4096x4096x4096:bf16:fp16",
        "4096X4096X4096", "4096 x 4096 x 4096", "9" * 5000 + "x8x8", "0x10x8x8",
    ],
)  # fmt: skip
def test_a_malformed_problem_is_refused_with_the_form(text: str) -> None:
    if text == "0x10x8x8":  # not hexadecimal: an m of 0 with a batch of 8
        expected = "m is 0, allowed are 1 to 2147483647"
    else:
        expected = r"malformed problem .*: expected MxNxK\[xBATCH\]\[:DTYPE\], for example 4096x4096x4096:bf16"
    with pytest.raises(ProblemError, match=expected):
        Problem.parse(text)


@given(st.text(max_size=30) | st.text("0123456789x:bf16", max_size=20))
def test_whatever_is_typed_is_read_or_refused(text: str) -> None:
    try:
        problem = Problem.parse(text)
    except ProblemError:
        return
    assert Problem.parse(str(problem)) == problem


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("size", [0, -8, LARGEST + 1])
def test_a_size_out_of_range_is_refused_by_name(name: str, size: int) -> None:
    with pytest.raises(ProblemError, match=rf"{name} is {size}, allowed are 1 to {LARGEST}"):
        Problem(**{"m": 8, "n": 8, "k": 8, "batch": 1, name: size})


def test_an_unknown_type_is_refused_with_those_known() -> None:
    with pytest.raises(ProblemError, match="unknown type 'fp64', allowed are bf16, fp16"):
        Problem.parse("8x8x8:fp64")


@given(problems)
def test_work_and_traffic_add_up_over_the_batch(problem: Problem) -> None:
    one = Problem(problem.m, problem.n, problem.k, 1, problem.dtype)

    assert problem.flops == problem.batch * one.flops == problem.batch * 2 * problem.m * problem.n * problem.k
    assert problem.bytes == problem.batch * one.bytes
    assert one.bytes == 2 * (problem.m * problem.k + problem.n * problem.k + problem.m * problem.n)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_type_says_how_it_rounds(dtype: str) -> None:
    import torch

    element = DTYPES[dtype]
    info = torch.finfo(getattr(torch, element.torch_name))

    assert element.bytes * 8 == info.bits
    assert element.unit_roundoff == info.eps / 2


@given(m=sizes, n=sizes, k=sizes)
def test_the_gemm_takes_any_m_and_multiples_of_8(m: int, n: int, k: int) -> None:
    template = find_template("gemm_sm90")
    wrong = [name for name, size in (("n", n), ("k", k)) if size % 8]
    if wrong:
        with pytest.raises(ProblemError, match=rf"gemm_sm90: {wrong[0]} = \d+ is not a multiple of 8"):
            template.check(Problem(m, n, k))
    else:
        template.check(Problem(m, n, k))


def test_an_unknown_space_or_workload_is_refused_with_those_known() -> None:
    assert "gemm_sm90" in template_names()
    with pytest.raises(SpaceError, match="unknown space 'gem_sm90', known are gemm_sm90"):
        find_template("gem_sm90")
    with pytest.raises(SpaceError, match="unknown workload 'conv', known are gemm"):
        find_workload("conv")
