"""The random problems and the kernels of both spaces, which are glanced at before a rule of defaults is fitted."""

from itertools import islice

import numpy as np

from tilescout.experiments.research.studies.default_kernels import (
    DEVICE,
    kernels_of,
    random_problems,
    whole_kernels,
)
from tilescout.experiments.research.studies.default_sweep import problems_of
from tilescout.experiments.research.studies.draw_problems import pooled
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.unmeasured import SHARING
from tilescout.spaces.templates import find_template

SMALL = GemmProblem.small("bf16")


def test_products_of_published_models_stay_to_judge_by() -> None:
    found = list(islice(random_problems("e4m3-bf16", 3), 200))
    assert not {(each.n, each.k) for each in found} & pooled()
    assert len(set(found)) > 190
    assert all(each.n % 16 == 0 for each in found)  # the library computes no others in 8 bits


def test_only_legal_kernels_are_ranked() -> None:
    kernels = whole_kernels(SMALL, DEVICE, 8)
    template = kernels.template
    for problem in islice(random_problems("bf16", 4), 20):
        ranked = kernels.ranked(problem, DEVICE)
        assert len(set(ranked)) == len(ranked)
        space = template.space(problem, DEVICE)
        legal = [kernels.configurations[number] in space for number in range(len(kernels.configurations))]
        assert sorted(ranked) == np.flatnonzero(legal).tolist()


def test_kernels_are_named_once() -> None:
    default = find_template(SHARING).default(SMALL, DEVICE)
    assert kernels_of(find_template(SHARING), [default, default]).configurations == [default]


def test_products_take_turns_at_sizes_that_are_spread() -> None:
    found = list(islice(problems_of(["1152x1152", "4608x4096"], "bf16"), 40))
    assert [(each.n, each.k) for each in found[:2]] == [(1152, 1152), (4608, 4096)]
    assert min(each.m for each in found) < 100
    assert max(each.m for each in found) > 10_000
