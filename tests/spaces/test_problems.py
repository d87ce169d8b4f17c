"""Problems: what is read, what is refused, what is counted."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.costmodel.features import space_features
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ProblemError, SpaceError
from tilescout.spaces.gated import GatedProblem
from tilescout.spaces.gathered import GatheredProblem
from tilescout.spaces.gemm import ACTIVATIONS, LAYOUTS, OUTPUTS, GemmProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.problems import DTYPES, Problem
from tilescout.spaces.rowwise import RowwiseProblem
from tilescout.spaces.templates import find_template, template_names
from tilescout.spaces.workloads import load_workload

LARGEST = 2**31 - 1
sizes = st.integers(1, 2**16)
problems = st.builds(
    GemmProblem,
    m=sizes,
    n=sizes,
    k=sizes,
    batch=sizes,
    dtype=st.sampled_from(["bf16", "fp16"]),
    out=st.sampled_from(["", *OUTPUTS]),
    layout=st.sampled_from(LAYOUTS),
    alpha=st.booleans(),
    bias=st.booleans(),
    activation=st.sampled_from(["", *ACTIVATIONS]),
) | st.builds(
    GemmProblem, m=sizes, n=sizes, k=sizes, dtype=st.just("e4m3"), out=st.sampled_from(OUTPUTS), fast=st.booleans()
)


@given(problems)
def test_a_problem_is_read_back_from_its_print(problem: GemmProblem) -> None:
    assert GemmProblem.parse(str(problem)) == problem
    assert GemmProblem.parse(f" {problem}\n") == problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("4096x2048x512", GemmProblem(4096, 2048, 512, 1, "bf16")),
        ("4096x2048x512:fp16", GemmProblem(4096, 2048, 512, 1, "fp16")),
        ("4096x2048x512x3", GemmProblem(4096, 2048, 512, 3, "bf16")),
        ("1x8x8x1:bf16", GemmProblem(1, 8, 8)),
        ("8x8x8:kn", GemmProblem(8, 8, 8, layout="kn")),
        ("8x8x8:bias", GemmProblem(8, 8, 8, bias=True)),
        ("8x8x8:e4m3", GemmProblem(8, 8, 8, dtype="e4m3", out="bf16")),
        ("8x8x8:e4m3:fast:bias", GemmProblem(8, 8, 8, dtype="e4m3", bias=True, fast=True)),
        ("8x8x8:bf16-fp32:mn:alpha+bias+silu", GemmProblem(8, 8, 8, 1, "bf16", "fp32", "mn", True, True, "silu")),
        ("8x8x8:bf16-bf16:kk", GemmProblem(8, 8, 8)),
    ],
)
def test_what_is_left_out_has_its_default(text: str, problem: GemmProblem) -> None:
    assert GemmProblem.parse(text) == problem


@pytest.mark.parametrize(
    "text",
    [
        "", "4096", "4096x4096", "4096x4096x", "x4096x4096", "4096x4096x4096x2x2", "4096*4096*4096", "axbxc",
        "4096x4096x-8", "4096x4096x4096.0", "1e3x8x8", "4096x4096x4096:", "4096x4096x4096:bf16:fp16",
        "8x8x8:bf16-", "8x8x8:bias:bf16", "8x8x8:bf16:bias+alpha", "8x8x8:bf16:kn:kn",
        "8x8x8:bf16:bias:relu", "8x8x8:bf16:+bias", "8x8x8:bf16:bias+",
        "8x8x8:e4m3:bias:fast", "8x8x8:e4m3:fast:fast", "8x8x8:fast:e4m3",
        "4096X4096X4096", "4096 x 4096 x 4096", "9" * 5000 + "x8x8", "0x10x8x8",
    ],
)  # fmt: skip
def test_a_malformed_problem_is_refused_with_the_form(text: str) -> None:
    if text == "0x10x8x8":  # not hexadecimal: an m of 0 with a batch of 8
        expected = "m is 0, allowed are 1 to 2147483647"
    elif text.endswith("bias+alpha"):
        expected = "malformed problem .*: write its epilogue as alpha[+]bias"
    else:
        expected = r"malformed problem .*: expected MxNxK\[xBATCH\]\[:DTYPE\[-OUT\]\]\[:fast\]\[:LAYOUT\]"
    with pytest.raises(ProblemError, match=expected):
        GemmProblem.parse(text)


@given(st.text(max_size=30) | st.text("0123456789x:bf16+kn-alphrelu", max_size=20))
def test_whatever_is_typed_is_read_or_refused(text: str) -> None:
    try:
        problem = GemmProblem.parse(text)
    except ProblemError:
        return
    assert GemmProblem.parse(str(problem)) == problem


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("size", [0, -8, LARGEST + 1])
def test_a_size_out_of_range_is_refused_by_name(name: str, size: int) -> None:
    with pytest.raises(ProblemError, match=rf"{name} is {size}, allowed are 1 to {LARGEST}"):
        GemmProblem(**{"m": 8, "n": 8, "k": 8, "batch": 1, name: size})  # type: ignore[arg-type]


def test_a_size_may_be_a_whole_number_of_numpy_and_nothing_else() -> None:
    problem = GemmProblem(np.int32(2**30), np.int64(16), np.uint8(16))  # type: ignore[arg-type]
    assert problem == GemmProblem(2**30, 16, 16)
    assert {type(size) for size in problem.sizes.values()} == {int}
    assert problem.flops == 2**39, "in 32 bits it is 0"
    assert type(GatheredProblem(8, 512, 64, 64, chosen=np.int64(2)).chosen) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [512.0, np.float64(512), "512", None, True, np.True_, [512]])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda size: GemmProblem(16, 16, size), "k"),
        (lambda size: GemmProblem(16, 16, 16, batch=size), "batch"),
        (lambda size: RowwiseProblem(16, size), "columns"),
        (lambda size: GroupedProblem(8, size, 64, 64), "tokens"),
        (lambda size: GroupedProblem(8, 512, 64, 64, last_draw=size), "last_draw"),
        (lambda size: GatedProblem(size, 512, 64, 64), "experts"),
        (lambda size: GatheredProblem(8, 512, 64, 64, chosen=size), "chosen"),
    ],
)
def test_a_size_that_is_no_whole_number_is_refused_by_name(
    make: Callable[[object], Problem], name: str, size: object
) -> None:
    with pytest.raises(ProblemError, match=f"the {name} of a problem can't be .*: allowed are whole numbers"):
        make(size)


@pytest.mark.parametrize("sizes", ["2147483640x2147483640x8x4096", "8x8x2147483640x2147483640", "1x67108864x67108864"])
def test_sizes_that_no_memory_holds_together_are_refused_before_tiles_are_counted(sizes: str) -> None:
    with pytest.raises(ProblemError, match=r"its matrices have \d+ bytes, 4503599627370496 at most"):
        GemmProblem.parse(sizes)


@pytest.mark.parametrize("sizes", ["2147483647x500000x500000", "1x8x8x2147483647", "27000000x27000000x27000000"])
def test_of_the_largest_problems_all_features_are_numbers(sizes: str) -> None:
    for name in ("gemm_sm90", "gemm_streamk_sm90"):
        template = find_template(name)
        problem = template.parse(f"{sizes}:bf16")
        space = template.space(problem, DEVICES["h200"])
        few = space.subset(np.arange(0, len(space), 50))
        with np.errstate(all="raise"):
            assert np.isfinite(space_features(few, template).values).all()
            assert template.default(problem, space.device) in space


def test_an_unknown_type_is_refused_with_those_known() -> None:
    with pytest.raises(ProblemError, match="unknown type 'fp64', allowed are bf16, fp16, e4m3"):
        GemmProblem.parse("8x8x8:fp64")
    with pytest.raises(ProblemError, match="unknown type 'e4m3', allowed are bf16, fp16, fp32"):
        GemmProblem.parse("8x8x8:bf16-e4m3")


@pytest.mark.parametrize("text", ["512x512x512:fp32", "512x512x512:bf16:kx"])
def test_a_type_of_outputs_alone_is_said_to_be_one(text: str) -> None:
    allowed = r"bf16, fp16, e4m3; fp32 is for outputs only, as in bf16-fp32"
    with pytest.raises(ProblemError, match=allowed):
        GemmProblem.parse(text)
    assert GemmProblem.parse("512x512x512:bf16-fp32").out == "fp32"


def test_a_malformed_problem_is_quoted_in_full_unless_it_is_long() -> None:
    grouped = find_template("grouped_gemm_sm90")
    with pytest.raises(ProblemError, match="malformed problem '128x8x1536x2048:bf16:blanced:draws-0-10'"):
        grouped.parse("128x8x1536x2048:bf16:blanced:draws-0-10")
    with pytest.raises(ProblemError, match=r"malformed problem '(?=.{80}')9+\.\.\.9+'"):
        GemmProblem.parse("9" * 5000)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("64x64x64:bf16:kx", r"unknown 'kx', allowed are types \(bf16.*layouts \(kk, kn, mk, mn\) and ep.*alpha"),
        ("64x64x64:bf16:kn:bais+gelu", "unknown 'bais', allowed"),
        ("64x64:bf16:kn", "expected MxNxK"),
        ("64x64x64:bf16:bias:kn", "expected MxNxK"),  # the order is wrong, not a word
        ("64x64x64:bf16:gelu+bias", r"write its epilogue as bias\+gelu"),
        ("64x64x64:bf16:gelu+relu", "it has the activations gelu and relu"),
    ],
)
def test_what_is_wrong_with_a_problem_is_said(text: str, why: str) -> None:
    with pytest.raises(ProblemError, match=f"malformed problem '{re.escape(text)}': {why}"):
        GemmProblem.parse(text)


def test_fp8_operands_have_one_layout() -> None:
    with pytest.raises(ProblemError, match="e4m3 operands have layout kk, not kn"):
        GemmProblem.parse("16x16x16:e4m3:kn")


@pytest.mark.parametrize("text", ["16x16x16:fast", "16x16x16:fp16:fast:kn"])
def test_sums_of_8_bit_products_alone_are_fast(text: str) -> None:
    with pytest.raises(ProblemError, match=r"only sums of e4m3 are fast, not those of (bf16|fp16): leave"):
        GemmProblem.parse(text)


@given(problems)
def test_a_signature_is_all_but_the_sizes(problem: GemmProblem) -> None:
    small = GemmProblem.small(problem.signature)

    assert small.signature == problem.signature
    assert replace(small, m=problem.m, n=problem.n, k=problem.k, batch=problem.batch) == problem
    assert problem.sizes == {"m": problem.m, "n": problem.n, "k": problem.k, "batch": problem.batch}


@given(problems, problems)
def test_a_problem_with_another_signature_has_its_sizes(problem: GemmProblem, other: GemmProblem) -> None:
    changed = problem.with_signature(other.signature)

    assert (changed.sizes, changed.signature) == (problem.sizes, other.signature)
    assert changed.with_signature(problem.signature) == problem
    assert RowwiseProblem(3, 5).with_signature("fp32") == RowwiseProblem(3, 5, "fp32")
    with pytest.raises(ProblemError, match="unknown type 'int4'"):
        problem.with_signature("int4")


@given(problems)
def test_work_and_traffic_add_up_over_the_batch(problem: GemmProblem) -> None:
    one = replace(problem, batch=1)
    shared = 4 * problem.alpha + problem.n * problem.result.bytes * problem.bias

    assert problem.flops == problem.batch * one.flops == problem.batch * 2 * problem.m * problem.n * problem.k
    assert problem.bytes - shared == problem.batch * (one.bytes - shared)
    read, written = problem.m * problem.k + problem.n * problem.k, problem.m * problem.n
    assert one.bytes - shared == read * problem.element.bytes + written * problem.result.bytes


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
            template.check(GemmProblem(m, n, k))
    else:
        template.check(GemmProblem(m, n, k))


def test_an_unknown_space_or_workload_is_refused_with_those_known() -> None:
    assert "gemm_sm90" in template_names()
    with pytest.raises(
        SpaceError, match=r"unknown space 'gem_sm90', known are gemm_sm90, gemm_streamk_sm90, .*lists all"
    ):
        find_template("gem_sm90")
    with pytest.raises(SpaceError, match=r"no workload 'tilescout.spaces.gemm:Conv'.*: expected module:Class"):
        load_workload("tilescout.spaces.gemm:Conv")
    with pytest.raises(SpaceError, match="no workload 'gemm'"):
        load_workload("gemm")
