"""Dispatchers of an invented GPU, whose true times are known at every m."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.search.dispatch.invented_gpu import CLIFF, MOST, InventedGpu
from tilescout.costmodel.analytic import AnalyticModel, shipped_calibration
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.dispatch.building import (
    DispatchOptions,
    candidates,
    measure_dispatcher,
    predict_dispatcher,
    regret_over_m,
)
from tilescout.search.dispatch.bundling import dispatched, kernels_of
from tilescout.search.dispatch.dispatcher import Dispatcher, read_dispatcher
from tilescout.search.dispatch.kernels import portfolios_of
from tilescout.search.dispatch.measuring import Sweep
from tilescout.search.dispatch.plan import Stretch
from tilescout.search.dispatch.points import Point, Ratio
from tilescout.search.dispatch.recorded import Recorded
from tilescout.search.dispatch.steps import Steps
from tilescout.search.dispatch.vendored import python_text
from tilescout.spaces.errors import ExportError, SpaceError, StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import find_template

OPTIONS = DispatchOptions(kernels=6, most_rows=MOST, candidates=32, explored=16)


@pytest.fixture(scope="module")
def invented_gpu() -> InventedGpu:
    """One whose library is slow at some m that nobody would look at."""
    return InventedGpu(6144, 4096, 32, noise=0.01, seed=5, cliff=CLIFF)


@pytest.fixture(scope="module")
def points() -> list[Point]:
    """The points of `built`, as they came."""
    return []


@pytest.fixture(scope="module")
def built(invented_gpu: InventedGpu, points: list[Point]) -> Dispatcher:
    sweep = Sweep(invented_gpu, invented_gpu.kernels, most_rows=MOST)
    versions = {"torch": "2.11.0", "nvidia-cutlass-dsl": "4.8.1"}
    return measure_dispatcher(sweep, OPTIONS, "measured on an invented GPU", versions, points.append)


def served(gpu: InventedGpu, made: Dispatcher) -> list[int]:
    """The row of what serves each m, in the logs of the GPU."""
    rows = [list(gpu.kernels.configurations).index(kernel) for kernel in made.kernels]
    found = [made.find(m) for m in range(1, MOST + 1)]
    return [len(gpu.kernels) if kernel is None else rows[kernel] for kernel in found]


@pytest.mark.slow
def test_at_every_m_it_serves_nearly_the_best(invented_gpu: InventedGpu, built: Dispatcher) -> None:
    regret = [invented_gpu.true_regret(row, m) for m, row in enumerate(served(invented_gpu, built), start=1)]
    assert len(built.kernels) <= OPTIONS.kernels
    assert np.mean(regret) < 0.02
    assert max(regret) < 0.1
    cliff = [regret[m - 1] for m in CLIFF]  # where nothing but a look tells that the library is slow
    assert max(cliff) < 0.05
    alone = [invented_gpu.true_regret(len(invented_gpu.kernels), m) for m in range(1, MOST + 1)]
    assert np.mean(regret) < np.mean(alone) / 2  # of the library alone


def test_it_was_measured_at_few_m_and_is_as_fast_as_the_library_at_each(built: Dispatcher, points: list[Point]) -> None:
    assert len(built.points) == len({point.m for point in points}) < MOST / 8
    assert len(built.ratios()) > 0.9 * len(built.points)
    assert max(each for each in built.ratios() if each != 1) <= 1 / (1 + OPTIONS.caution)
    assert {1, MOST} <= {point.m for point in built.points}
    assert built.regret is not None
    assert built.bound is not None
    assert built.bound.worst >= built.regret.worst
    assert all(built.is_proven(each) for each in built.stretches)


def test_each_kernel_raced_the_library_alone_at_every_m_that_it_serves(built: Dispatcher, points: list[Point]) -> None:
    alone = {point.m for point in points if len(point.ratios) == 1}
    assert {point.m for point in built.points if built.find(point.m) is not None} <= alone


def test_it_survives_its_file(built: Dispatcher, tmp_path: Path) -> None:
    built.write(tmp_path / "d.json")
    assert read_dispatcher(tmp_path / "d.json") == built


def test_the_python_file_serves_the_same_and_imports_nothing_of_ours(built: Dispatcher) -> None:
    text = python_text(built)
    assert "tilescout" not in text.replace("written by tilescout", "")
    names: dict[str, Any] = {}
    exec(compile(text, "vendored", "exec"), names)
    for m in (*range(1, MOST + 1, 7), MOST):
        kernel = built.find(m)
        assert names["kernel_of"](m) == (None if kernel is None else dict(built.kernels[kernel]))
    assert names["kernel_of"](0) is None
    assert names["kernel_of"](MOST + 1) is None
    assert [names["ENDS"][at] for at in names["PROVEN"]] == [
        each.high for each in built.stretches if built.is_proven(each)
    ]


def test_its_regret_at_every_m_is_computed_again_from_its_points(invented_gpu: InventedGpu, built: Dispatcher) -> None:
    kernels = kernels_of(built)
    sizes, estimate, bound = regret_over_m(built, kernels)
    assert len(sizes) == MOST
    assert (estimate <= bound + 1e-9).all()


def _old(made: Dispatcher) -> dict[str, Any]:
    """The mapping of one as the first format had it, without a checksum."""
    record = made.to_dict()
    [record["space_hash"]] = record.pop("hashes").values()
    return {**record, "format": 1}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kind": "something"}, "tilescout dispatcher of format"),
        ({"format": 6}, "tilescout dispatcher of format"),
        ({"format": 4, "measured_by": "a faster GPU"}, "its digest is wrong"),
        ({"ranges": []}, "do not go from 1"),
        ({"kernels": []}, "a kernel that it lacks"),
        ({"points": [{}]}, "is missing"),
        ({"counts": [{"kernels": 1, "mean": "x", "worst": 0.1}]}, "mean is not float"),
        ({"regret": {"mean": 10**400, "worst": 0.1, "at": 1}}, "mean is not float"),
        ({"problem": "nothing"}, "malformed problem"),
        ({"named": {"kernels": [], "starts": [2], "numbers": [0]}}, "in no rising order from 1"),
        ({"named": {"kernels": [], "starts": [1, 1], "numbers": [0, 0]}}, "in no rising order from 1"),
        ({"named": {"kernels": [], "starts": [1, MOST + 1], "numbers": [0, 0]}}, "in no rising order from 1"),
        ({"named": {"kernels": [], "starts": [1], "numbers": [0]}}, "a kernel of the library that is not there"),
        ({"named": {"kernels": [{"tile": 1}], "starts": [1], "numbers": [0.5]}}, "something else than whole numbers"),
        ({"named": {"kernels": [1], "starts": [1], "numbers": [0]}}, "no dispatcher"),
    ],
)
def test_what_is_damaged_is_refused(built: Dispatcher, tmp_path: Path, change: dict[str, Any], why: str) -> None:
    path = tmp_path / "d.json"
    path.write_text(json.dumps({**_old(built), **change}))
    with pytest.raises(StoreError, match=why):
        read_dispatcher(path)


def test_the_library_kernels_of_another_template_tell_nothing(built: Dispatcher) -> None:
    assert built.named is not None
    kernels = (Configuration.of({"tile": 1}),) * len(built.named.kernels)
    with pytest.raises(SpaceError, match="has other knobs than cublaslt"):
        regret_over_m(replace(built, named=replace(built.named, kernels=kernels)), kernels_of(built))


def test_it_holds_which_kernel_the_library_names_at_every_m(invented_gpu: InventedGpu, built: Dispatcher) -> None:
    assert built.named is not None
    which = built.named.at(np.arange(1, MOST + 1))
    assert {m for m, number in enumerate(which.tolist(), start=1) if number != which[0]} == {*CLIFF}


def test_what_was_timed_one_by_one_proves_nothing(built: Dispatcher) -> None:
    point = next(each for each in built.points if built.find(each.m) is not None and built.over_library(each))
    assert built.over_library(replace(point, raced=())) is None
    assert built.over_library(replace(point, raced=None)) == built.over_library(point)


def test_a_dispatcher_no_kernel_of_which_raced_where_it_serves_is_not_exported(
    built: Dispatcher, tmp_path: Path
) -> None:
    served = tuple(replace(each, raced=()) for each in built.points if built.find(each.m) is not None)
    with pytest.raises(ExportError, match="raced at an m that it serves"):
        dispatched([replace(built, points=served)], ArtifactStore(tmp_path / "artifacts"))


def test_of_a_dispatcher_without_a_kernel_there_is_nothing_to_export(built: Dispatcher, tmp_path: Path) -> None:
    library = replace(built, kernels=(), spaces=(), hashes={}, stretches=(Stretch(1, MOST, None),), glances=())
    library = replace(library, points=tuple(point.only([]) for point in built.points))
    library.check()
    with pytest.raises(ExportError, match=f"the library serves all rows of {built.name}: there is no kernel to export"):
        dispatched([library], ArtifactStore(tmp_path / "artifacts"))


def test_ranges_that_contradict_what_was_measured_are_refused(built: Dispatcher, tmp_path: Path) -> None:
    record = json.loads(json.dumps(_old(built)))
    proven = next(each for each in record["ranges"] if each["kernel"] is not None and each["proven"])
    for point in record["points"]:
        for ratio in point["ratios"].values():
            if proven["low"] <= point["m"] <= proven["high"]:
                ratio.update(value=1.2, low=1.2, high=1.2)
    (tmp_path / "d.json").write_text(json.dumps(record))
    with pytest.raises(StoreError, match="more than 1% slower than the library"):
        read_dispatcher(tmp_path / "d.json")


@pytest.mark.parametrize("held", ["points", "glances"])
@pytest.mark.parametrize("change", [{"slower": {"99": 1.5}}, {"failed": {"-1": "wrong"}}, {"m": MOST + 1}])
def test_times_of_kernels_and_of_rows_that_it_lacks_are_refused(
    built: Dispatcher, tmp_path: Path, held: str, change: dict[str, Any]
) -> None:
    record = _old(built)
    record[held][-1].update(change)
    (tmp_path / "d.json").write_text(json.dumps(record))
    with pytest.raises(StoreError, match=rf"of {MOST} rows, or of kernels beyond its {len(built.kernels)}"):
        read_dispatcher(tmp_path / "d.json")


@pytest.mark.parametrize("faster", [1e-3, 1.0])
def test_times_that_no_kernel_has_are_refused(built: Dispatcher, tmp_path: Path, faster: float) -> None:
    record = json.loads(json.dumps(_old(built)))
    for point in record["points"]:
        point["library_us"] *= faster
    (tmp_path / "d.json").write_text(json.dumps(record))
    if faster == 1:
        assert replace(read_dispatcher(tmp_path / "d.json"), glances=built.glances) == built
    else:
        with pytest.raises(StoreError, match="below the roofline"):
            read_dispatcher(tmp_path / "d.json")


def test_a_kernel_serves_no_m_for_which_it_is_not_legal(built: Dispatcher, tmp_path: Path) -> None:
    kernel = next(iter(built.kernels))
    changed = replace(
        built, kernels=(Configuration.of({**kernel, "stages": 99}), *built.kernels[1:]), versions={"a": "b"}
    )
    with pytest.raises(ExportError, match="stages can't be 99"):
        dispatched([changed], ArtifactStore(tmp_path / "artifacts"))


@pytest.mark.parametrize(("fast", "refusal"), [(False, "fewer bits than torch._scaled_mm"), (True, "not in the store")])
def test_kernels_that_keep_fewer_bits_of_sums_serve_products_with_fast_sums_alone(
    fast: bool, refusal: str, tmp_path: Path
) -> None:
    problem, template = GemmProblem(1, 1280, 1280, dtype="e4m3", fast=fast), find_template("cutlass_operators")
    kernel, spaces = template.default(problem, InventedGpu.device), (template.name,)
    made = Dispatcher(
        *(problem, 64, template.name, {template.name: template.source_hash}, "h200", (kernel,), spaces),
        *((Stretch(1, 64, 0),), "a test"),
        versions={"nvidia-cutlass-dsl": "of another day"},
        points=(Point(1, 9.0),),
    )
    with pytest.raises(ExportError, match=refusal):
        dispatched([made], ArtifactStore(tmp_path / "artifacts"))


def test_recorded_times_are_replayed_at_their_m_alone(invented_gpu: InventedGpu) -> None:
    sweep = Sweep(invented_gpu, invented_gpu.kernels)
    sizes = [1, 9, 40, 64, 65, 150, 300, 500, 700, 1000, 1500, MOST]
    held = Recorded(invented_gpu.kernels, {m: sweep.at(m, range(len(sweep.kernels))) for m in sizes})
    made = measure_dispatcher(held, OPTIONS, "replayed", {})
    assert {point.m for point in made.points} <= set(sizes)
    assert not made.versions


def test_a_kernel_that_was_wrong_at_one_m_serves_none(invented_gpu: InventedGpu, built: Dispatcher) -> None:
    kernels = invented_gpu.kernels
    wrong = list(kernels.configurations).index(built.kernels[0])

    class Failing(Sweep):
        def at(self, m: int, numbers: Sequence[int], race: bool = False) -> Point:
            found = super().at(m, numbers, race)
            if m < 1000 or wrong not in numbers or not kernels.legal(m)[wrong]:
                return found
            right = replace(found, ratios={at: each for at, each in found.ratios.items() if at != wrong})
            return replace(right, slower={}, failed={wrong: "an element is off"})

    made = measure_dispatcher(Failing(invented_gpu, kernels), OPTIONS, "a test", {})
    assert kernels.configurations[wrong] in built.kernels
    assert kernels.configurations[wrong] not in made.kernels


def test_a_model_chooses_kernels_for_every_m_and_proves_nothing(invented_gpu: InventedGpu) -> None:
    calibration = shipped_calibration("h200")
    assert calibration is not None
    models = {"gemm_sm90": AnalyticModel(calibration)}
    few = candidates(invented_gpu.kernels, models, replace(OPTIONS, candidates=12))
    assert len(few) == 12
    made = predict_dispatcher(few, models, OPTIONS, "a model")
    assert made.points == ()
    assert made.measured_by == "nothing was measured: a model"
    assert not any(made.is_proven(each) for each in made.stretches)
    assert all(each.kernel is not None for each in made.stretches)
    for m in (1, 100, 1000):
        kernel = made.find(m)
        assert kernel is not None
        assert invented_gpu.kernels.legal(m)[list(invented_gpu.kernels.configurations).index(made.kernels[kernel])]


def test_products_of_several_batches_have_names_of_their_own(built: Dispatcher) -> None:
    name = f"gemm_sm90-h200-{built.problem.n}x{built.problem.k}-bf16"
    assert built.name == name
    assert replace(built, problem=replace(built.problem, batch=33)).name == name.replace("-bf16", "x33-bf16")


def test_a_space_none_of_whose_kernels_is_legal_for_so_few_rows_has_no_candidates() -> None:
    both = portfolios_of(InventedGpu.template, GemmProblem(1, 6144, 4096), InventedGpu.device)
    calibration = shipped_calibration("h200")
    assert calibration is not None
    models = {template.name: AnalyticModel(calibration) for template in set(both.templates)}
    few = candidates(both, models, replace(OPTIONS, candidates=4, most_rows=16))
    assert len(set(both.templates)) == 2
    assert set(few.templates) == {InventedGpu.template}
    other = next(template for template in both.templates if template is not InventedGpu.template)
    alone = both.take([number for number, each in enumerate(both.templates) if each is other])
    none = candidates(alone, models, replace(OPTIONS, candidates=4, most_rows=16))
    with pytest.raises(SpaceError, match="no candidate is legal for 1 to 16 rows"):
        predict_dispatcher(none, models, replace(OPTIONS, most_rows=16), "a model")
    assert few.legal(16).any()


def test_kernels_of_two_spaces_have_what_each_has_alone() -> None:
    both = portfolios_of(InventedGpu.template, GemmProblem(1, 1280, 1280), InventedGpu.device)
    shown = np.random.default_rng(3).permutation(len(both))[:60].tolist()
    mixed, first = both.take(shown), both.templates[0]
    steps = Steps.of(mixed)
    assert set(mixed.templates) == {first, find_template(first.complement)}
    for template in set(mixed.templates):
        numbers = [number for number, each in enumerate(mixed.templates) if each is template]
        alone = mixed.take(numbers)
        assert (mixed.legal(700)[numbers] == alone.legal(700)).all()
        for name in ("rows", "across", "at_once"):
            assert (getattr(steps, name)[numbers] == getattr(Steps.of(alone), name)).all()
    assert both.and_others(mixed).configurations == both.configurations


def test_a_dispatcher_of_two_spaces_survives_its_file_and_is_checked_for_both(tmp_path: Path) -> None:
    gpu = InventedGpu(1280, 1280, 8, noise=0.0, seed=1)
    other = find_template(gpu.template.complement)
    shared = other.portfolio(GemmProblem(1, 1280, 1280), gpu.device)[0]
    hashes = {each.name: each.source_hash for each in (gpu.template, other)}
    kernels, ranges = (gpu.kernels.configurations[0], shared), (Stretch(1, 999, None), Stretch(1000, MOST, 1))
    made = Dispatcher(
        GemmProblem(1, 1280, 1280), MOST, "gemm_sm90", hashes, "h200", kernels, tuple(hashes), ranges, "a test"
    )
    made.write(tmp_path / "d.json")
    assert read_dispatcher(tmp_path / "d.json") == made
    assert [each.name for each in kernels_of(made).templates] == ["gemm_sm90", other.name]
    assert "SPACES = ('gemm_sm90', 'gemm_streamk_sm90')" in python_text(made)
    swapped = replace(made, spaces=made.spaces[::-1], versions={"a": "b"}, points=(Point(1, 9.0),))
    with pytest.raises(ExportError, match="are none of gemm_sm90 and gemm_streamk_sm90"):
        dispatched([swapped], ArtifactStore(tmp_path / "artifacts"))
    with pytest.raises(ValueError, match="not each of its kernels has a space"):
        replace(made, spaces=("gemm_sm90",)).check()


def timed(m: int, *ratios: float | str) -> Point:
    """A point at which each kernel has a ratio, or fails for a reason."""
    told = {at: Ratio(each, each, each) for at, each in enumerate(ratios) if isinstance(each, float)}
    return Point(m, 10.0 + m, told, failed={at: each for at, each in enumerate(ratios) if isinstance(each, str)})


def test_candidates_of_which_none_works_are_told_and_no_library_serves_in_their_place(
    invented_gpu: InventedGpu,
) -> None:
    kernels, options = invented_gpu.kernels.take([0, 1]), replace(OPTIONS, most_rows=64)
    failed = {m: timed(m, "no linker", "no linker") for m in (1, 64)}
    with pytest.raises(SpaceError, match="none of 2 kernels to choose among works: no linker"):
        measure_dispatcher(Recorded(kernels, failed), options, "a test", {})


def test_where_all_kernels_that_were_kept_fail_later_the_best_of_the_others_serves(invented_gpu: InventedGpu) -> None:
    kernels, options = invented_gpu.kernels.take([0, 1]), replace(OPTIONS, most_rows=64, kernels=1, explored=0)
    found, heard = {m: timed(m, 0.8, 0.9) for m in (1, 9, 33, 64)}, list[int]()

    def fail_in_its_race(point: Point) -> None:
        heard.append(point.m)
        if len(heard) == len(found):
            found.update({m: timed(m, "an element is off", 0.9) for m in found})

    made = measure_dispatcher(Recorded(kernels, found), options, "a test", {}, fail_in_its_race)
    assert len(heard) > len(found)
    assert made.kernels == kernels.configurations[1:]
    assert made.find(33) == 0
