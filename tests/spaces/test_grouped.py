"""Grouped products: their problems, how tokens are routed, and the reference."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescout.costmodel.roofline import Roofline
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.experts import read_grouped
from tilescout.spaces.grouped import DRAWS, Grouped, GroupedProblem
from tilescout.spaces.routing import Routing

exponents = st.integers(0, 4000).map(lambda thousandths: thousandths / 1000)
extremes = st.sampled_from([Routing(), Routing("one"), Routing("worst")])
free = extremes | exponents.map(lambda exponent: Routing("zipf", exponent))


@st.composite
def grouped_problems(draw: st.DrawFn) -> GroupedProblem:
    experts = draw(st.integers(1, 300))
    counts = st.lists(st.integers(0, 10**6), min_size=experts, max_size=experts).filter(any)
    routing = draw(free | counts.map(lambda found: Routing("recorded", counts=tuple(found))))
    tokens, n, k = (draw(st.integers(1, 2**20)) for _ in range(3))
    first = draw(st.integers(0, 10**6))
    return GroupedProblem(experts, tokens, n, k, "bf16", routing, first, first + draw(st.integers(0, DRAWS)))


@given(grouped_problems())
def test_a_problem_is_read_back_from_its_one_line(problem: GroupedProblem) -> None:
    assert GroupedProblem.parse(f" {problem}\n") == problem
    assert problem.with_signature(problem.signature) == problem
    assert GroupedProblem.small(problem.signature).signature == problem.signature
    assert len(str(problem).splitlines()) == 1


@pytest.mark.parametrize("signature", ["bf16:balanced", "zipf-1.2", "bf16:swiglu:one", "bf16:draws-0-3"])
def test_a_signature_that_names_a_routing_is_refused(signature: str) -> None:
    problem = read_grouped(f"8x64x64x64:bf16{':swiglu' * ('swiglu' in signature)}:zipf-1")
    with pytest.raises(ProblemError, match="is no signature: a kernel serves all routings"):
        problem.with_signature(signature)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8x64x64", "expected EXPERTSxTOKENSxNxK"),
        ("8x64x64x64:bf16:zipf", "malformed routing"),
        ("8x64x64x64:bf16:uniform", r"unknown 'uniform', allowed are types \(bf16\), routings \(balanced, "),
        ("8x64x64x64:bf16:draws-1", "unknown 'draws-1', allowed are .* and draws-FIRST-LAST"),
        ("8x64x64x64:bf16:zipf-21", "from 0 to 20"),
        ("8x64x64x64:bf16:draws-0-7:zipf-1.2", "expected EXPERTSxTOKENSxNxK"),
        ("8x64x64x64:bf16:zipf-1.2:draws-7-3", "draws go from a number"),
        ("8x64x64x64:bf16:one:draws-0-100000", "draws go from a number"),
        ("2x64x64x64:bf16:recorded-1.2.3", "3 counts for 2 experts"),
        ("2x64x64x64:bf16:recorded-0.0", "add up to 0"),
        ("0x64x64x64", "experts is 0, allowed are 1 to 4096"),
        ("8x2147483648x64x64", "tokens is 2147483648, allowed are 1 to"),
        ("8x64x64x64:e4m3", "unknown type 'e4m3', allowed are bf16"),
    ],
)
def test_what_is_no_problem_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ProblemError, match=reason):
        GroupedProblem.parse(text)


@given(grouped_problems())
def test_every_token_goes_to_an_expert_and_a_seed_decides_to_which(problem: GroupedProblem) -> None:
    for draw in problem.draws[:2]:
        again = draw.routing.groups(draw.experts, draw.tokens, draw.first_draw)
        assert draw.groups == tuple(again.tolist())
        assert sum(draw.groups) == draw.tokens
        assert min(draw.groups) >= 0
    assert len(set(problem.draws)) == problem.last_draw - problem.first_draw + 1


@given(grouped_problems(), st.booleans())
def test_a_race_is_on_as_many_draws_none_of_which_is_the_problems_own(problem: GroupedProblem, last: bool) -> None:
    if last:
        problem = replace(problem, first_draw=10**9 - len(problem.draws), last_draw=10**9 - 1)
    raced = problem.unseen
    assert GroupedProblem.parse(str(raced)) == raced
    if problem.routing.drawn:
        assert len(raced.draws) == len(problem.draws)
        assert not {*raced.draws} & {*problem.draws}
    else:
        assert raced == problem


@given(st.integers(1, 300), st.integers(1, 10**6), st.integers(0, 2**31))
def test_balanced_shares_differ_by_one_and_one_expert_has_all(experts: int, tokens: int, seed: int) -> None:
    even = Routing().groups(experts, tokens, seed)
    assert even.max() - even.min() <= 1
    assert sorted(Routing("one").groups(experts, tokens, seed))[-1] == tokens


@given(st.lists(st.integers(0, 10**4), min_size=1, max_size=64).filter(any), st.integers(1, 300))
def test_no_routing_has_more_tiles_or_reads_more_weights_than_the_worst(counts: list[int], rows: int) -> None:
    worst = Routing("worst").groups(len(counts), sum(counts), 0)
    assert worst.sum() == sum(counts)
    assert np.count_nonzero(worst) >= np.count_nonzero(counts)
    assert (-(-worst // rows)).sum() >= (-(-np.array(counts) // rows)).sum()


@given(st.lists(st.integers(0, 10**4), min_size=1, max_size=64).filter(any), st.integers(1, 10**6))
def test_a_recorded_histogram_is_kept_in_proportion(counts: list[int], tokens: int) -> None:
    routing = Routing("recorded", counts=tuple(counts))
    assert routing.groups(len(counts), sum(counts), 0).tolist() == counts
    exact = np.array(counts) * tokens / sum(counts)
    assert np.abs(routing.groups(len(counts), tokens, 3) - exact).max() < 1


def test_the_more_skewed_the_more_tokens_the_first_expert_has() -> None:
    largest = [Routing("zipf", exponent).groups(64, 10_000, 1).max() for exponent in (0.0, 0.5, 1.0, 2.0, 20.0)]
    assert largest == sorted(largest)
    assert largest[0] < 250
    assert largest[-1] > 9990


def test_the_floor_counts_the_weights_of_the_experts_that_are_reached() -> None:
    one, balanced = (GroupedProblem.parse(f"8x64x512x256:bf16:{routing}") for routing in ("one", "balanced"))
    weights, device = 512 * 256 * 2, find_device("h200")
    assert balanced.bytes - one.bytes == 7 * weights
    assert balanced.flops == one.flops == 2 * 64 * 512 * 256
    assert Roofline.of(balanced, device).time_us == pytest.approx(device.move_us(balanced.bytes))
    assert one.bytes == weights + 64 * (512 + 256) * 2 + 8 * 4


PROBLEM = GroupedProblem.parse("8x64x64x64")
EDGE = Grouped().edge_problem(PROBLEM)


def test_the_edge_problem_has_empty_experts_single_tokens_and_sizes_that_no_tile_divides() -> None:
    groups = np.array(EDGE.groups)
    assert groups[0] == groups[-1] == 0
    assert ((groups[1:] == 0) & (groups[:-1] == 0)).any()
    assert 1 in groups
    assert {63, 64, 65} <= set(groups)
    assert all(EDGE.n % tile and EDGE.tokens % tile for tile in (16, 48, 64, 80))
    assert EDGE.k % 16
    (other,) = (each for each in Grouped().edge_problems(PROBLEM) if each != EDGE)
    assert sorted(other.groups)[-2:] == [0, EDGE.tokens]  # all to one


@pytest.mark.parametrize(
    "text",
    [str(EDGE), "4x1x16x24:bf16:balanced", "3x50x16x24:bf16:one", "5x40x24x16:bf16:zipf-1", "9x4x16x16:bf16:zipf-0"],
)
def test_the_reference_is_the_product_of_each_token_with_its_expert(text: str) -> None:
    import torch

    workload, problem = Grouped(), GroupedProblem.parse(text)
    inputs = workload.inputs(problem, torch.Generator().manual_seed(0))
    a, b, ends = inputs
    expert = torch.repeat_interleave(torch.arange(problem.experts), torch.tensor(problem.groups))
    exact = torch.einsum("tk,tnk->tn", a.double(), b.double()[expert])
    output = workload.output(problem, torch.device("cpu"))
    workload.run_library(problem, inputs, output)

    assert ends.dtype == torch.int32
    assert ends.tolist() == np.cumsum(problem.groups).tolist()
    assert ends.as_strided((1,), (1,), ends.storage_offset() - 1).item() == 0
    assert (workload.reference(problem, inputs) - exact).norm() <= 1e-6 * exact.norm()
    assert (output - exact).norm() <= problem.tolerance * exact.norm()


def test_inputs_take_the_draws_in_turn_and_the_generator_decides_the_numbers_alone() -> None:
    import torch

    workload, problem = Grouped(), GroupedProblem.parse("6x40x16x16:bf16:zipf-1:draws-3-5")
    first = workload.inputs(problem, torch.Generator().manual_seed(0))
    more = workload.more_inputs(problem, torch.Generator().manual_seed(1), [first], 5)
    found = [torch.diff(ends, prepend=ends.new_zeros(1)).tolist() for _, _, ends in (first, *more)]
    assert found == 2 * [list(draw.groups) for draw in problem.draws]
    assert found[0] != found[1] != found[2]
    assert workload.draws(problem) == 3
