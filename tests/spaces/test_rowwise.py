"""Operations on rows: their problems, and what kernels are compared with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.costmodel.roofline import Roofline
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.problems import TERABYTES, TERAFLOPS
from tilescout.spaces.rowwise import TYPES, RowwiseProblem, Softmax
from tilescout.spaces.workloads import COPY

sizes = st.integers(1, 2**31 - 1)
problems = st.builds(RowwiseProblem, sizes, sizes, st.sampled_from(TYPES))


@given(problems)
def test_a_problem_is_read_back_from_its_print(problem: RowwiseProblem) -> None:
    assert RowwiseProblem.parse(f" {problem}\n") == problem
    assert RowwiseProblem.small(problem.signature).signature == problem.signature


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8192", "expected ROWSxCOLUMNS"),
        ("8x8x8:bf16", "expected ROWSxCOLUMNS"),
        ("0x8", "rows is 0, allowed are 1 to"),
        ("8x2147483648", "columns is 2147483648, allowed are 1 to"),
        ("8x8:e4m3", "unknown type 'e4m3', allowed are bf16, fp16, fp32"),
    ],
)
def test_what_is_no_problem_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ProblemError, match=reason):
        RowwiseProblem.parse(text)


@given(problems)
def test_its_speed_is_what_it_must_read_and_write(problem: RowwiseProblem) -> None:
    moved = 2 * problem.rows * problem.columns * problem.element.bytes
    device = find_device("h200")
    roofline = Roofline.of(problem, device)

    assert problem.bytes == moved
    assert problem.rate.unit is TERABYTES
    assert problem.rate.at(1e6) == pytest.approx(moved / 1e12)
    assert roofline.bound == "memory"
    assert problem.rate.at(roofline.time_us) == pytest.approx(device.bandwidth / 1e12)


def test_the_speed_of_a_product_is_its_operations() -> None:
    problem = GemmProblem(64, 32, 16)

    assert problem.rate.unit is TERAFLOPS
    assert problem.rate.at(2.0) == problem.flops / 2.0 / 1e6


@given(st.builds(RowwiseProblem, st.integers(1, 10**6), st.integers(1, 10**6), st.sampled_from(TYPES)))
def test_the_edge_problem_is_a_little_narrower_and_as_aligned(problem: RowwiseProblem) -> None:
    edge = Softmax().edge_problem(problem)

    assert edge.signature == problem.signature
    assert edge.columns <= problem.columns
    assert edge.columns < problem.columns or problem.columns <= 8
    assert edge.rows % 2 == 1
    for access in (1, 2, 4, 8):
        if access * problem.element.bytes <= 16 and problem.columns % access == 0:
            assert edge.columns % access == 0


@pytest.mark.parametrize("text", ["7x33:bf16", "16x256:fp16", "5x1000:fp32", "3x1:fp32"])
def test_the_reference_is_a_softmax_and_the_library_a_copy(text: str) -> None:
    import torch

    softmax, problem = Softmax(), RowwiseProblem.parse(text)
    inputs = softmax.inputs(problem, torch.Generator().manual_seed(0))
    output = softmax.output(problem, torch.device("cpu"))
    softmax.run_library(problem, inputs, output)
    x = inputs[0].double()
    exact = (x - x.amax(1, keepdim=True)).exp()
    exact /= exact.sum(1, keepdim=True)

    assert softmax.library(problem) == COPY
    assert torch.equal(output, inputs[0])
    assert softmax.arguments(inputs, output, 132) == (*inputs, output)
    reference = softmax.reference(problem, inputs)
    assert reference.dtype == torch.float32
    assert (reference - exact).norm() <= 2.0**-20 * exact.norm()
    # Rounded to the output's type it is within the tolerance, which rounding alone then explains.
    rounded = reference.to(output.dtype).double()
    assert (rounded - exact).norm() <= problem.tolerance * exact.norm()


def test_inputs_lie_where_a_careless_softmax_overflows() -> None:
    import torch

    (x,) = Softmax().inputs(RowwiseProblem(64, 16, "fp32"), torch.Generator().manual_seed(0))

    assert x.amax() > 89  # whose exponential is more than fp32 holds
