"""What kernels are compared with."""

import pytest

from tilescout.spaces.problems import DTYPES, Problem
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import Gemm

PROBLEMS = [Problem(m, n, k, batch, dtype) for m, n, k, batch in [(5, 8, 24, 1), (33, 16, 40, 3)] for dtype in DTYPES]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_reference_is_exact_and_the_library_right(problem: Problem) -> None:
    import torch

    gemm = Gemm()
    a, b = gemm.inputs(problem, torch.Generator().manual_seed(0))
    output = gemm.output(problem, torch.device("cpu"))
    gemm.run_library((a, b), output)
    exact = torch.einsum("bmk,bnk->bmn", a.double(), b.double())

    assert a.shape == (problem.batch, problem.m, problem.k)
    assert b.shape == (problem.batch, problem.n, problem.k)
    assert output.shape == exact.shape
    assert {tensor.dtype for tensor in (a, b, output)} == {getattr(torch, problem.element.torch_name)}
    assert all(tensor.is_contiguous() for tensor in (a, b, output))
    reference = gemm.reference((a, b))
    assert reference.dtype == torch.float32
    assert (reference - exact).norm() <= 1e-6 * exact.norm()
    assert (output - exact).norm() <= problem.element.unit_roundoff * exact.norm()


def test_inputs_depend_on_the_generator_alone_and_differ_each_time() -> None:
    import torch

    gemm, generator = Gemm(), torch.Generator().manual_seed(7)
    first, second = gemm.inputs(PROBLEMS[0], generator), gemm.inputs(PROBLEMS[0], generator)
    again = gemm.inputs(PROBLEMS[0], torch.Generator().manual_seed(7))

    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_tile_divides_the_edge_problem(dtype: str) -> None:
    edge = Gemm().edge_problem(Problem(4096, 4096, 4096, dtype=dtype))
    template = find_template("gemm_sm90")
    values = {knob.name: knob.values for knob in template.knobs}

    template.check(edge)
    assert edge.dtype == dtype
    assert edge.batch > 1
    for size, knob in ((edge.m, "tile_m"), (edge.n, "tile_n"), (edge.k, "tile_k")):
        assert all(size % tile for tile in values[knob])
        assert size > max(values[knob])  # more than one tile, the last of them cut
