"""Grouped products with SwiGLU: their problems, the reference, and which tiles can be halved."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gated import PLACES, Gated, GatedProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.routing import Routing
from tilescout.spaces.templates import find_template

TEMPLATE, H200 = find_template("grouped_swiglu_sm90"), DEVICES["h200"]
sizes = st.integers(1, 2**16)
problems = st.builds(
    GatedProblem, st.integers(1, 300), sizes, sizes.map(lambda half: 2 * half), sizes,
    routing=st.sampled_from([Routing(), Routing("one"), Routing("zipf", 1.2)]), last_draw=st.integers(0, 9),
    place=st.sampled_from(PLACES),
)  # fmt: skip


@given(problems)
def test_a_problem_is_read_back_from_its_one_line(problem: GatedProblem) -> None:
    assert GatedProblem.parse(f" {problem}\n") == problem
    assert problem.with_signature(problem.signature) == problem
    assert str(problem).replace(f":{problem.place}", "") == str(
        GroupedProblem.parse(str(problem).replace(f":{problem.place}", ""))
    )


@given(problems)
def test_half_of_the_product_is_written(problem: GatedProblem) -> None:
    plain = GroupedProblem.parse(str(problem).replace(f":{problem.place}", ""))
    assert plain.bytes - problem.bytes == problem.tokens * problem.n // 2 * problem.result.bytes
    assert plain.flops == problem.flops


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8x64x64x64:bf16:zipf-1", "names no SwiGLU"),
        ("8x64x65x64:bf16:swiglu", "n is 65"),
        ("8x64x64x64:bf16:swiglu-both", "unknown epilogue 'swiglu-both', allowed are swiglu, swiglu-pairs"),
        ("8x64x64x64:bf16:swiglu:zipf", "malformed routing"),
    ],
)
def test_what_is_no_problem_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ProblemError, match=reason):
        GatedProblem.parse(text)


def test_gate_and_up_in_turn_are_the_same_as_one_behind_the_other_with_the_rows_moved() -> None:
    import torch

    halves = GatedProblem.parse("3x40x32x48:bf16:swiglu:zipf-1")
    pairs, workload = replace(halves, place="swiglu-pairs"), Gated()
    a, b, ends = workload.inputs(halves, torch.Generator().manual_seed(0))
    moved = b.reshape(3, 2, 16, 48).transpose(1, 2).reshape(3, 32, 48).contiguous()
    expected = workload.reference(halves, (a, b, ends))
    torch.testing.assert_close(workload.reference(pairs, (a, moved, ends)), expected)
    first = int(ends[0])
    gate, up = (a[:first].float() @ b[0].float().t()).chunk(2, dim=1)
    torch.testing.assert_close(expected[:first], gate / (1 + (-gate).exp()) * up)


def test_the_library_is_timed_without_swiglu_and_run_with_it() -> None:
    import torch

    problem, workload = GatedProblem.parse("3x40x32x48:bf16:swiglu:zipf-1"), Gated()
    inputs = workload.inputs(problem, torch.Generator().manual_seed(0))
    output = workload.output(problem, inputs[0].device)
    product = torch._grouped_mm(inputs[0], inputs[1].transpose(1, 2), offs=inputs[2])
    torch.testing.assert_close(workload.time_library(problem, inputs, output), product[:, :16])
    workload.run_library(problem, inputs, output)
    torch.testing.assert_close(output.float(), workload.reference(problem, inputs), rtol=0.02, atol=0.02)


def test_tiles_that_can_not_be_halved_are_illegal_unless_operands_are_swapped() -> None:
    problem = TEMPLATE.parse("128x4096x1536x2048:bf16:swiglu:zipf-1")
    space = TEMPLATE.space(problem, H200)
    odd = space.columns["tile_n"] % 32 != 0
    assert odd.any()
    assert (space.columns["swap_ab"][odd] == 1).all()
    with pytest.raises(ProblemError, match="n = 72 is not a multiple of 16"):
        TEMPLATE.check(TEMPLATE.parse("8x64x72x64:bf16:swiglu"))
