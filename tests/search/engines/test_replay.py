import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest

from tilescout.search.engines.engine import Task, failed_future
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import Measurement
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.constraints import Constraint
from tilescout.spaces.errors import DeviceError, ProblemError, TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template

TEMPLATE = find_template("gemm_sm90")
PROBLEM = GemmProblem(16, 4096, 4096)


Alter = Callable[..., KernelTemplate]


def recorded(rows: list[Row], problem: Problem) -> dict[str, str]:
    return {str(configuration): repr(measurement) for configuration, p, measurement in rows if p == problem}


def replayed(evaluator: Evaluator) -> dict[str, str]:
    """Every configuration of the space with its outcome, asked for in a random order."""
    outcomes = {}
    for index in np.random.default_rng(1).permutation(len(evaluator.space)):
        evaluator.submit(int(index))
        [(returned, measurement)] = evaluator.wait()
        assert returned == index
        outcomes[str(evaluator.space[returned])] = repr(measurement)
    return outcomes


def test_a_replay_returns_exactly_what_was_recorded(invented_table: Table, invented_rows: list[Row]) -> None:
    for problem in invented_table.problems:
        engine = ReplayEngine(invented_table, TEMPLATE)
        with Evaluator(engine, problem) as evaluator:
            assert engine.recording(problem).dropped == 0
            assert evaluator.space.problem == problem
            assert replayed(evaluator) == recorded(invented_rows, problem)


def test_the_order_of_knobs_and_values_does_not_matter(
    invented_table: Table, invented_rows: list[Row], alter_template: Alter
) -> None:
    knobs = tuple(replace(knob, values=knob.values[::-1]) for knob in TEMPLATE.knobs[::-1])
    with Evaluator(ReplayEngine(invented_table, alter_template(knobs=knobs)), PROBLEM) as evaluator:
        got = {frozenset(text.split()): outcome for text, outcome in replayed(evaluator).items()}
    assert got == {frozenset(text.split()): outcome for text, outcome in recorded(invented_rows, PROBLEM).items()}


def test_values_that_the_template_gained_since_do_not_matter(
    invented_table: Table, invented_rows: list[Row], alter_template: Alter
) -> None:
    knobs = tuple(replace(knob, values=(1, *knob.values)) if knob.name == "stages" else knob for knob in TEMPLATE.knobs)
    with Evaluator(ReplayEngine(invented_table, alter_template(knobs=knobs)), PROBLEM) as evaluator:
        assert replayed(evaluator) == recorded(invented_rows, PROBLEM)


def test_configurations_that_became_illegal_are_dropped_and_counted(
    invented_table: Table, invented_rows: list[Row], alter_template: Alter
) -> None:
    rule = Constraint("shallow", "for this test", ("stages",), lambda columns, problem, device: columns["stages"] <= 3)
    narrowed = alter_template(constraints=(*TEMPLATE.constraints, rule))
    kept = [row for row in invented_rows if int(row[0]["stages"]) <= 3]
    engine = ReplayEngine(invented_table, narrowed)
    with Evaluator(engine, PROBLEM) as evaluator:
        assert replayed(evaluator) == recorded(kept, PROBLEM)
        assert engine.recording(PROBLEM).dropped == 200 - len(evaluator.space) > 0


def test_a_table_with_nothing_legal_left_is_refused(
    invented_table: Table, invented_rows: list[Row], alter_template: Alter
) -> None:
    some = [knob for knob in TEMPLATE.knobs if knob.name in ("tile_n", "stages", "swizzle")]
    names = tuple(knob.name for knob in some)
    tried = {tuple(row[0][name] for name in names) for row in invented_rows if row[1] == PROBLEM}
    only = next(values for values in itertools.product(*(knob.values for knob in some)) if values not in tried)
    rule = Constraint(
        "only",
        "for this test",
        names,
        lambda columns, problem, device: np.all([columns[n] == v for n, v in zip(names, only, strict=True)], axis=0),
    )
    with pytest.raises(TableError, match="none of its 200 configurations for 16x4096x4096:bf16 is legal in gemm_sm90"):
        Evaluator(ReplayEngine(invented_table, alter_template(constraints=(rule,))), PROBLEM)


def test_a_problem_that_was_not_recorded_is_refused_with_those_that_were(invented_table: Table) -> None:
    with pytest.raises(
        TableError, match=r"nothing of 64x64x64:bf16, only 4096x4096x4096:bf16, 16x4096x4096:bf16, 512x"
    ):
        Evaluator(ReplayEngine(invented_table, TEMPLATE), GemmProblem(64, 64, 64))


def test_a_table_of_another_space_is_refused(invented_table: Table, alter_template: Alter) -> None:
    with pytest.raises(TableError, match="of the space gemm_sm90, not of conv"):
        Evaluator(ReplayEngine(invented_table, alter_template(name="conv")), PROBLEM)


def test_a_table_of_an_unknown_device_is_refused(invented_table: Table, invented_rows: list[Row]) -> None:
    table = write_table(invented_table.path, replace(invented_table.card, device="h300"), invented_rows)
    with pytest.raises(TableError, match="recorded on an unknown device 'h300', known are h100"):
        Evaluator(ReplayEngine(table, TEMPLATE), PROBLEM)


def test_a_problem_that_the_template_can_no_longer_compute_is_refused(
    invented_table: Table, invented_rows: list[Row]
) -> None:
    odd = GemmProblem(16, 4096, 4097)
    card = replace(invented_table.card, baselines={odd: invented_table.card.baselines[PROBLEM]})
    table = write_table(invented_table.path, card, [(invented_rows[0][0], odd, invented_rows[0][2])])
    with pytest.raises(ProblemError, match="not a multiple of 8"):
        Evaluator(ReplayEngine(table, TEMPLATE), odd)


def test_one_configuration_at_a_time(invented_table: Table) -> None:
    with Evaluator(ReplayEngine(invented_table, TEMPLATE), PROBLEM) as evaluator:
        assert evaluator.capacity == 1
        with pytest.raises(RuntimeError, match="nothing to wait for"):
            evaluator.wait()
        for index in (-1, len(evaluator.space)):
            with pytest.raises(IndexError, match=f"no configuration {index}, the space holds 200"):
                evaluator.submit(index)
        with pytest.raises(IndexError):
            evaluator.submit(0.5)  # type: ignore[arg-type]
        evaluator.submit(0)
        with pytest.raises(RuntimeError, match="one configuration at a time"):
            evaluator.submit(1)
        evaluator.close()
        with pytest.raises(RuntimeError, match="was closed"):
            evaluator.submit(1)
    with Evaluator(evaluator.engine, PROBLEM) as again:
        again.submit(1)
        assert [index for index, _ in again.wait()] == [1]


def test_people_are_told_that_no_gpu_was_used(invented_table: Table) -> None:
    provenance = Evaluator(ReplayEngine(invented_table, TEMPLATE), PROBLEM).provenance
    assert provenance.kind == "replay"
    assert provenance.description == (
        "replayed from invented.parquet, recorded on NVIDIA H200 on 2026-11-21, in chains; no GPU was used"
    )
    assert provenance.versions["torch"] == "2.11.0"
    assert provenance.versions["driver"] == "580.0"
    assert provenance.versions["protocol"] == "invented-1"


def test_people_are_told_that_another_tuner_measured_and_that_figures_are_no_times(invented_table: Table) -> None:
    told = {"kernel-tuner": "by another tuner", "kernel-tuner, energy": "by another tuner: no times, but energy"}
    for protocol, words in told.items():
        table = Table(replace(invented_table.card, protocol=protocol), invented_table.data, invented_table.path)
        provenance = Evaluator(ReplayEngine(table, TEMPLATE), PROBLEM).provenance
        assert provenance.description.endswith(f"on NVIDIA H200 on 2026-11-21 {words}; no GPU was used")


def test_people_are_told_that_the_kernel_has_changed(invented_table: Table, alter_template: Alter) -> None:
    provenance = Evaluator(ReplayEngine(invented_table, alter_template(source_hash="another")), PROBLEM).provenance
    assert provenance.description.endswith("; the source of gemm_sm90 has changed since")


def test_device_and_library_are_those_of_the_card(invented_table: Table) -> None:
    evaluator = Evaluator(ReplayEngine(invented_table, TEMPLATE), PROBLEM)
    assert evaluator.device.name == "h200"
    assert evaluator.library_us() == 9.5


def test_what_is_measured_when_a_gpu_is_lost_comes_back_before_the_error(invented_table: Table) -> None:
    class Failing(ReplayEngine):
        def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
            return super().measure(gpu, tasks) if gpu == 0 else failed_future(DeviceError("GPU 1 fell off"))

    with Evaluator(Failing(invented_table, TEMPLATE, gpus=2, ahead=4), PROBLEM) as evaluator:
        evaluator._on_gpu = {1: 0}
        evaluator.submit(0)
        evaluator._on_gpu = {0: 0}
        evaluator.submit(1)
        assert [index for index, _ in evaluator.wait()] == [1]
        with pytest.raises(DeviceError, match="fell off"):
            evaluator.wait()
        with pytest.raises(RuntimeError, match="nothing to wait for"):
            evaluator.wait()
