"""The kernels of both spaces that are worth having in a store: how they are chosen, and what is shipped."""

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel.features import space_features
from tilescout.experiments.commands.portfolio import Regrets
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.stocked_kernels import (
    FAR,
    Kernel,
    Source,
    chosen,
    compiled_once,
    foreseen,
    known_kernels,
    recorded_together,
    worth,
)
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"
NAMES = ("gemm_sm90", "gemm_streamk_sm90")
H200 = find_device("h200")
PROBLEM = GemmProblem.parse("425x14336x12288:bf16")


@cache
def sources() -> tuple[Source, ...]:
    """Both spaces, each with a table of the same problems."""
    tables = [Table.read(RESULTS / "stream-k-2026-11-29" / f"{name}-h200-live-131-bf16.parquet") for name in NAMES]
    return tuple(Source.of(name, tables) for name in NAMES)


@cache
def some() -> tuple[Kernel, ...]:
    """A few kernels of each space that are legal for a problem."""
    found = list[Kernel]()
    for number, source in enumerate(sources()):
        codes = source.template.space(PROBLEM, H200).codes[::9_000]
        found += [(number, *each) for each in source.codes_of(np.unique(source.numbers_of(codes)))]
    return tuple(found)


def test_what_is_shipped_is_what_was_chosen() -> None:
    kept = {"bf16": "stocked-larger", "e4m3-bf16": "stocked-together"}
    records = {one: Record.read(RESULTS / "stream-k-2026-11-30" / f"{kept[one]}.json.gz").result for one in kept}
    for source in sources():
        name = source.template.name
        shipped = json.loads(files(f"tilescout.spaces.{name}").joinpath("stock.json").read_text())
        names = [knob.name for knob in source.template.knobs]
        assert all(names == found["knobs"][name] for found in records.values())
        assert names == shipped["knobs"]
        for one, record in records.items():
            # Kernels that shared k in different ways were different ones then.
            once = dict.fromkeys(
                source.template.compiled_as(Configuration(tuple(zip(names, each, strict=True))))
                for each in record["of"][one]["kernels"][name]
            )
            assert shipped["of"][one] == [[*each.values()] for each in once]


def test_kernels_that_are_there_anyway_come_first_then_those_that_were_fastest_or_are_expected_to_be() -> None:
    logs = np.full((len(some()), 2), 0.5)
    logs[3, 0] = logs[-2, 1] = 0.0
    drawn = [foreseen(sources(), PROBLEM)]
    best = min((0, 1), key=lambda number: drawn[0].logs[number].min())
    fastest = (best, *sources()[best].codes_of(drawn[0].fastest(best)[:1])[0])
    regrets = Regrets(some(), (PROBLEM, PROBLEM), logs, "invented")
    picked = chosen(sources(), regrets, drawn, [some()[7]], 4)
    assert picked[0] == some()[7]
    assert set(picked[1:]) == {some()[3], some()[-2], fastest}
    assert worth(sources(), picked, drawn)["mean"] == 0
    second = (best, *sources()[best].codes_of(drawn[0].fastest(best)[1:2])[0])
    assert worth(sources(), [second], drawn)["mean"] > 0


def test_configurations_that_differ_in_their_launch_alone_are_one_kernel() -> None:
    source = sources()[1]
    names = [knob.name for knob in source.template.knobs]
    first = next(kernel[1:] for kernel in some() if kernel[0] == 1)
    twin = list(first)
    twin[names.index("swizzle")] = source.template.knobs[names.index("swizzle")].code(8)
    rows, logs = [first, tuple(twin)], np.array([[0.2, np.nan, np.nan], [0.1, 0.3, np.nan]])
    kernels, best = compiled_once(source, rows, logs)
    assert kernels == [first]
    np.testing.assert_array_equal(best, [[0.1, 0.3, np.nan]])


def test_regrets_of_recorded_problems_are_over_the_fastest_kernel_of_both_spaces() -> None:
    regrets = recorded_together(sources(), "bf16")
    tables = [source.tables[0] for source in sources()]
    assert set(regrets.problems) == set(tables[0].problems) & set(tables[1].problems)
    spaces = np.array([kernel[0] for kernel in regrets.kernels])
    for at, problem in enumerate(regrets.problems):
        least = [float(np.nanmin(regrets.logs[spaces == number, at])) for number in (0, 1)]
        ratios = [
            np.log(np.nanmin(table.times_us[table.rows(problem)]) / table.card.baselines[problem].library_us)
            for table in tables
        ]
        assert min(least) == pytest.approx(0)
        assert least[0] - least[1] == pytest.approx(ratios[0] - ratios[1])


def test_types_that_no_problem_of_both_spaces_was_recorded_in_are_refused() -> None:
    first, second = sources()
    other = Table.read(RESULTS / "stream-k-2026-11-28" / "gemm_streamk_sm90-h200-alone-111-bf16.parquet")
    with pytest.raises(TableError, match="bf16 was timed in gemm_sm90 and gemm_streamk_sm90: name tables of both"):
        recorded_together([first, replace(second, tables=(other,))], "bf16")


@pytest.mark.slow
def test_a_problem_expects_of_a_kernel_what_it_does_in_the_order_that_suits_it_best() -> None:
    problem = GemmProblem.parse("300x512x2048:bf16")
    one = foreseen(sources(), problem)
    means = [
        source.model.foresee(space_features(space, source.template)).mean
        for source in sources()
        for space in [source.template.space(problem, H200)]
    ]
    least = min(each.min() for each in means)
    for number, source in enumerate(sources()):
        numbers = source.numbers_of(source.template.space(problem, H200).codes)
        for kernel in one.kernels[number][:: len(one.kernels[number]) // 7]:
            told = one.regrets(number, np.array([kernel]))
            assert told == pytest.approx(means[number][numbers == kernel].min() - least, abs=1e-5)
        assert np.isnan(one.regrets(number, np.array([-1])))
        assert one.logs[number].max() < FAR
        fastest = one.fastest(number).tolist()
        assert len(set(fastest)) == len(fastest) > 0


def test_what_a_template_names_for_a_problem_is_told_as_kernels() -> None:
    stock = known_kernels(sources(), [source.template.stock(PROBLEM, H200) for source in sources()])
    assert {kernel[0] for kernel in stock} == {0, 1}
    assert set(known_kernels(sources()[:1], [sources()[0].template.portfolio(PROBLEM, H200)])) <= set(stock)
