"""The study of SwiGLU behind grouped products, as far as it runs without a GPU."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tilescout.experiments.research.studies import expert_order, grouped_forms, grouped_gathered, grouped_swiglu
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.verification import WrongResultError
from tilescout.search.measure.worker import Worker
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.gated import Gated, GatedProblem
from tilescout.spaces.gathered import Gathered, GatheredProblem
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

PROBLEM = GatedProblem.parse("4x40x64x64:bf16:swiglu:zipf-1")


def rounded_once(place: str, inputs: Tensors, output: "torch.Tensor") -> None:
    """A product with SwiGLU that is rounded at its end alone, as kernels do; torch's is rounded before SwiGLU too."""
    tokens, width = output.shape
    output.copy_(Gated().reference(replace(PROBLEM, place=place, tokens=tokens, n=2 * width), inputs))


def test_contenders_are_verified_and_judged_on_draws_that_nothing_was_chosen_on() -> None:
    options = ProtocolOptions(heating_us=1000.0)
    right = partial(rounded_once, PROBLEM.place)
    found = grouped_swiglu.judged(Worker("cpu"), Gated(), PROBLEM, {"right": right}, options)
    assert found["judged_on"] == f"{PROBLEM}:draws-1000-1007"
    speed = found["speedup_over_library"]["right"]
    assert 0 < speed["low"] <= speed["value"] <= speed["high"]
    # The other place of gate and up is another result.
    wrong = partial(rounded_once, "swiglu-pairs")
    with pytest.raises(WrongResultError):
        grouped_swiglu.judged(Worker("cpu"), Gated(), PROBLEM, {"wrong": wrong}, options)


def test_the_edges_are_problems_of_the_space_and_candidates_are_legal_configurations() -> None:
    for form, space in grouped_forms.SPACES.items():
        problems = grouped_forms.edges(form)
        for problem in problems:
            find_template(space).check(problem)
        assert len(set(problems)) == len(problems)
    template = find_template("grouped_swiglu_sm90")
    problem = GatedProblem.parse("128x512x1536x2048:bf16:swiglu:zipf-1")
    found = grouped_swiglu.candidates(template, problem)
    assert len(found) == len(set(found)) > 20
    assert found[0] == template.default(problem, DEVICES["h200"])
    plain = grouped_swiglu.candidates(find_template("grouped_gemm_sm90"), GroupedProblem.like(problem))
    assert set(found) <= set(plain)


def test_the_orders_of_the_experts_are_of_the_same_groups() -> None:
    problem = GroupedProblem.parse("7x300x64x64:bf16:zipf-1")
    found = {name: each.groups for name, each in expert_order.ordered(problem).items()}
    drawn = found["as drawn"]
    assert drawn == problem.groups
    assert found["most first"] == tuple(sorted(drawn, reverse=True)) == found["fewest first"][::-1]
    ranks = [sorted(drawn, reverse=True).index(size) for size in found["in turns"]]
    assert sorted(found["in turns"]) == sorted(drawn)
    assert ranks[0] < ranks[2] < ranks[4] < ranks[5] < ranks[3] < ranks[1]


def test_a_product_of_gathered_rows_is_that_of_the_rows_that_the_index_names() -> None:
    problem = GatheredProblem.parse("4x40x64x64:bf16:gathered-8:zipf-1")
    plain = GroupedProblem.like(problem)
    run = grouped_gathered.behind_gathering(partial(Grouped().run_library, plain))
    options = ProtocolOptions(heating_us=10.0, pairs_us=100.0, settling_us=0.0)
    found = grouped_swiglu.judged(Worker("cpu"), Gathered(), problem, {"torch's": run}, options)
    assert found["judged_on"].endswith("draws-1000-1007")
    tried = grouped_gathered.of_quack(
        grouped_gathered.GATHERING, GatheredProblem.parse("128x512x1536x2048:bf16:gathered-8:zipf-1")
    )
    assert len(tried) == len(set(tried)) > 10
