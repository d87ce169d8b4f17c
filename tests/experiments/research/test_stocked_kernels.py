"""The kernels of the second space that are worth having in a store: how they are chosen, and what is shipped."""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.commands.portfolio import Regrets
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.stocked_kernels import chosen, compiled_once, foreseen, numbers_of, worth
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"
TEMPLATE, H200 = find_template("gemm_streamk_sm90"), find_device("h200")
SOME = TEMPLATE.space(GemmProblem.parse("425x14336x12288:bf16"), H200).codes[::5_000]


@cache
def model() -> CostModel:
    """The shipped model of the space."""
    path = shipped_model(TEMPLATE.name, H200.name)
    assert path is not None
    return load_model(path)[0]


def compiled(codes: NDArray[np.int16]) -> tuple[tuple[int, ...], ...]:
    """Configurations as they are compiled, each once, as codes."""
    rows = Regrets(tuple(map(tuple, codes.tolist())), (), np.empty((len(codes), 0)), "invented")
    return compiled_once(TEMPLATE, rows).kernels


def test_what_is_shipped_is_what_was_chosen() -> None:
    shipped = json.loads(files("tilescout.spaces.gemm_streamk_sm90").joinpath("stock.json").read_text())
    record = Record.read(RESULTS / "stream-k-2026-11-29" / "stocked-kernels-anew.json.gz").result
    assert shipped["knobs"] == record["knobs"] == [knob.name for knob in TEMPLATE.knobs]
    assert shipped["of"] == {signature: of["kernels"] for signature, of in record["of"].items()}


def test_kernels_that_were_the_fastest_are_chosen_and_the_one_that_is_expected_to_be() -> None:
    problem, rows = GemmProblem.parse("425x14336x12288:bf16"), compiled(SOME)
    logs = np.full((len(rows), 2), 0.5)
    logs[3, 0] = logs[5, 1] = 0.0
    drawn = [foreseen(TEMPLATE, model(), problem)]
    picked = chosen(TEMPLATE, Regrets(rows, (problem, problem), logs, "invented"), drawn, 3)
    assert set(picked) == {rows[3], rows[5], drawn[0].fastest[0]}
    assert worth(TEMPLATE, picked, drawn)["mean"] == 0
    assert worth(TEMPLATE, [drawn[0].fastest[1]], drawn)["mean"] > 0


def test_configurations_that_differ_in_their_launch_alone_are_one_kernel() -> None:
    names = [knob.name for knob in TEMPLATE.knobs]
    twin = list(compiled(SOME)[0])
    twin[names.index("swizzle")] = TEMPLATE.knobs[names.index("swizzle")].code(8)
    rows, logs = [compiled(SOME)[0], tuple(twin)], np.array([[0.2, np.nan, np.nan], [0.1, 0.3, np.nan]])
    found = compiled_once(TEMPLATE, Regrets(tuple(rows), (GemmProblem(64, 64, 64),) * 3, logs, "invented"))
    assert found.kernels == (rows[0],)
    np.testing.assert_array_equal(found.logs, [[0.1, 0.3, np.nan]])


def test_a_problem_expects_of_a_kernel_what_it_does_in_the_order_that_suits_it_best() -> None:
    problem = GemmProblem.parse("300x512x2048:bf16")
    one, space = foreseen(TEMPLATE, model(), problem), TEMPLATE.space(problem, H200)
    means = model().foresee(space_features(space, TEMPLATE)).mean
    numbers = numbers_of(TEMPLATE, space.codes)
    for number in one.kernels[:: len(one.kernels) // 7]:
        assert one.regrets(np.array([number])) == pytest.approx(means[numbers == number].min() - means.min())
    assert np.isnan(one.regrets(np.array([-1])))
    assert one.regrets(numbers_of(TEMPLATE, np.array(one.fastest[:1]))) == 0
    assert len(set(one.fastest)) == len(one.fastest)
