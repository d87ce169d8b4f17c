"""The references that kernels are compared with."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tilescout.spaces.gemm import Gemm, GemmProblem
from tilescout.spaces.templates import find_template

if TYPE_CHECKING:
    import torch

SIGNATURES = [
    "bf16", "fp16", "bf16-fp32", "fp16:kn", "bf16:mk", "bf16:mn", "bf16:alpha", "fp16:bias", "bf16:alpha+bias+relu",
    "bf16:bias+gelu", "fp16-bf16:mn:silu",
]  # fmt: skip
PROBLEMS = [
    GemmProblem.parse(f"{sizes}:{signature}") for sizes in ("5x8x24", "33x16x40x3") for signature in SIGNATURES
] + [
    GemmProblem.parse("16x32x48:e4m3"),
    GemmProblem.parse("16x32x48x2:e4m3-fp32:alpha"),
    GemmProblem.parse("16x32x48:e4m3:fast"),
]
ACTIVATIONS: dict[str, "Callable[[torch.Tensor], torch.Tensor]"] = {
    "": lambda x: x,
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * (1 + (x / 2**0.5).erf()) / 2,
    "silu": lambda x: x / (1 + (-x).exp()),
}


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_reference_is_exact_and_the_library_right(problem: GemmProblem) -> None:
    import torch

    gemm = Gemm()
    inputs = gemm.inputs(problem, torch.Generator().manual_seed(0))
    output = gemm.output(problem, torch.device("cpu"))
    gemm.run_library(problem, inputs, output)
    a, b, *rest = inputs
    exact = torch.einsum("bmk,bnk->bmn", a.double(), b.double())
    if problem.alpha:
        exact *= rest.pop(0).double()
    if problem.bias:
        exact += rest.pop(0).double()
    exact = ACTIVATIONS[problem.activation](exact)

    assert not rest
    assert a.shape == (problem.batch, problem.m, problem.k)
    assert b.shape == (problem.batch, problem.n, problem.k)
    assert a.stride(" mk".index(problem.layout[0])) == b.stride(" nk".index(problem.layout[1])) == 1
    assert output.shape == exact.shape
    assert output.is_contiguous()
    assert {a.dtype, b.dtype} == {getattr(torch, problem.element.torch_name)}
    assert output.dtype == getattr(torch, problem.result.torch_name)
    reference = gemm.reference(problem, inputs)
    assert reference.dtype == torch.float32
    assert (reference - exact).norm() <= 1e-6 * exact.norm()
    # The library rounds before each operation that it does not fuse, here to the inputs' type if that is 16 bits wide.
    steps = 1 + problem.alpha + problem.bias + bool(problem.activation)
    rounding = problem.tolerance + problem.element.unit_roundoff * (problem.element.bytes == 2)
    assert (output - exact).norm() <= steps * rounding * exact.norm()


def test_inputs_depend_on_the_generator_alone_and_differ_each_time() -> None:
    import torch

    gemm, generator = Gemm(), torch.Generator().manual_seed(7)
    first, second = gemm.inputs(PROBLEMS[0], generator), gemm.inputs(PROBLEMS[0], generator)
    again = gemm.inputs(PROBLEMS[0], torch.Generator().manual_seed(7))

    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("signature", ["bf16", "fp16"])
def test_no_tile_divides_the_edge_problem(signature: str) -> None:
    edge = Gemm().edge_problem(GemmProblem.parse(f"4096x4096x4096:{signature}"))
    template = find_template("gemm_sm90")
    values = {knob.name: [int(value) for value in knob.values] for knob in template.knobs if knob.name[:4] == "tile"}

    template.check(edge)
    assert edge.signature == signature
    assert edge.batch > 1
    for size, knob in ((edge.m, "tile_m"), (edge.n, "tile_n"), (edge.k, "tile_k")):
        assert all(size % tile for tile in values[knob])
        assert size > max(values[knob])  # more than one tile, the last of them cut
