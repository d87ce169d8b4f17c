"""Grouped products whose rows are scaled, or gathered: their problems, the inputs, the reference."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.experts import read_grouped
from tilescout.spaces.gated import GatedProblem
from tilescout.spaces.gathered import Gathered, GatheredProblem
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.routing import Routing
from tilescout.spaces.scaled import Scaled, ScaledProblem
from tilescout.spaces.templates import find_template

sizes = st.integers(1, 2**16)
routings = st.sampled_from([Routing(), Routing("one"), Routing("zipf", 1.2)])
plain = st.builds(
    GroupedProblem, st.integers(1, 300), sizes, sizes, sizes, routing=routings, last_draw=st.integers(0, 9)
)


@given(plain, st.integers(1, 64))
def test_a_problem_is_read_back_from_its_one_line(plain: GroupedProblem, chosen: int) -> None:
    for problem in (ScaledProblem.like(plain), GatheredProblem.like(plain, chosen=chosen)):
        assert type(problem).parse(f" {problem}\n") == problem
        assert problem.with_signature(problem.signature) == problem
        assert GroupedProblem.like(problem) == plain
        assert problem.flops == plain.flops
    assert ScaledProblem.like(plain).bytes == plain.bytes + 4 * plain.tokens
    assert GatheredProblem.like(plain, chosen=1).bytes == plain.bytes + 4 * plain.tokens


@given(plain)
def test_a_line_says_what_is_behind_a_product(plain: GroupedProblem) -> None:
    assert read_grouped(str(plain)) == plain
    assert read_grouped(str(ScaledProblem.like(plain))) == ScaledProblem.like(plain)
    if plain.n % 2 == 0:
        assert read_grouped(str(GatedProblem.like(plain))) == GatedProblem.like(plain)


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (ScaledProblem, "8x64x64x64:bf16:zipf-1", "names no scale"),
        (ScaledProblem, "8x64x64x64:bf16:scaled-2", "names no scale"),
        (ScaledProblem, "8x64x64x64:bf16:scaled:zipf", "malformed routing"),
        (GatheredProblem, "8x64x64x64:bf16:gathered", "gathers no rows"),
        (GatheredProblem, "8x64x64x64:bf16:gathered-0", "a token goes to 1 to 4096 experts"),
    ],
)
def test_what_is_no_problem_is_refused(kind: type[GroupedProblem], text: str, reason: str) -> None:
    with pytest.raises(ProblemError, match=reason):
        kind.parse(text)


def test_each_row_has_its_scale() -> None:
    problem, workload = ScaledProblem.parse("3x40x32x48:bf16:scaled:zipf-1"), Scaled()
    a, b, ends, scale = inputs = workload.inputs(problem, torch.Generator().manual_seed(0))
    product = Grouped().reference(problem, (a, b, ends))
    torch.testing.assert_close(workload.reference(problem, inputs), product * scale[:, None])
    output = workload.output(problem, a.device)
    torch.testing.assert_close(workload.time_library(problem, inputs, output).float(), product, rtol=0.02, atol=0.02)
    workload.run_library(problem, inputs, output)
    torch.testing.assert_close(output.float(), product * scale[:, None], rtol=0.02, atol=0.02)


def test_each_token_goes_to_as_many_experts_as_it_chose() -> None:
    problem, workload = GatheredProblem.parse("3x40x32x48:bf16:gathered-8:zipf-1"), Gathered()
    a, b, ends, index = inputs = workload.inputs(problem, torch.Generator().manual_seed(0))
    assert a.shape == (5, 48)
    assert index.bincount().tolist() == [8] * 5
    start = 0
    for end in ends.tolist():
        assert index[start:end].tolist() == sorted(index[start:end].tolist())
        start = end
    expected = Grouped().reference(problem, (a[index], b, ends))
    torch.testing.assert_close(workload.reference(problem, inputs), expected)
    output = workload.output(problem, a.device)
    workload.run_library(problem, inputs, output)
    torch.testing.assert_close(output.float(), expected, rtol=0.02, atol=0.02)


def test_gathering_kernels_leave_out_what_quack_does() -> None:
    template = find_template("quack_gathered")
    space = template.space(template.parse("128x512x1536x2048:bf16:gathered-8:zipf-1"), DEVICES["h200"])
    assert set(space.columns["cluster_n"]) == {1}
    assert 208 not in space.columns["tile_n"]
