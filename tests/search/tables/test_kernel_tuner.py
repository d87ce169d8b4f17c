"""Kernel Tuner's cache files: there and back, and what Kernel Tuner itself makes of what is exported."""

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import Status
from tilescout.search.tables.kernel_tuner import cache_of, key_of, restored, stored
from tilescout.search.tables.recorded_template import RecordedTemplate
from tilescout.search.tables.results import read_results
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.errors import BuildError, TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.named import NamedProblem

CACHE: dict[str, Any] = {
    "device_name": "NVIDIA A100-PCIE-40GB",
    "kernel_name": "convolution_kernel",
    "problem_size": [4096, 4096],
    "tune_params_keys": ["block_size_x", "unroll", "alpha", "mode"],
    "tune_params": {
        "block_size_x": [128, 16, 32], "unroll": [True, False], "alpha": [0.5, 10.0, 2.0], "mode": ["slow", "fast"],
    },
    "objective": "time",
    "cache": {},
}  # fmt: skip


def entry(values: tuple[Any, ...], **outcome: Any) -> dict[str, dict[str, Any]]:
    named = dict(zip(CACHE["tune_params_keys"], values, strict=True))
    return {key_of(values): named | outcome}


ENTRIES = {
    **entry((16, True, 0.5, "slow"), time=2.0, times=[1.0, 3.0], compile_time=500.0, verification_time=100.0,
            benchmark_time=50.0, timestamp="2023-12-22 13:17:14.751935+00:00"),
    **entry((128, True, 10.0, "fast"), time=1.0, times=[1.0], timestamp="2023-12-24 00:00:00+00:00"),
    **entry((32, False, 2.0, "fast"), time=4.0),
    **entry((32, True, 2.0, "fast"), time="RuntimeFailedConfig", compile_time=10.0),
    **entry((16, False, 2.0, "fast"), time="CompilationFailedConfig"),
    **entry((16, False, 2.0, "slow"), __error__="InvalidConfig"),
    **entry((16, False, 10.0, "slow"), time=1e400),
}  # fmt: skip


@pytest.fixture
def imported(tmp_path: Path) -> Callable[[dict[str, Any]], Table]:
    def imported(cache: dict[str, Any], name: str = "cache.json") -> Table:
        path = tmp_path / name
        text = json.dumps(cache)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return write_table(tmp_path / "table.parquet", *read_results(path))

    return imported


def test_a_cache_becomes_a_table_with_its_failures(imported: Callable[..., Table]) -> None:
    table = imported(CACHE | {"cache": ENTRIES}, "cache.json.gz")
    assert table.card.space == "convolution_kernel"
    assert table.card.product == "NVIDIA A100-PCIE-40GB"
    assert table.card.recorded.isoformat() == "2023-12-24"
    assert table.card.knobs == {
        "block_size_x": (16, 32, 128), "unroll": ("False", "True"), "alpha": ("0.5", "2.0", "10.0"),
        "mode": ("slow", "fast"),
    }  # fmt: skip
    assert [str(problem) for problem in table.problems] == ["4096x4096"]
    assert table.times_us.tolist() == [2000, 1000, 4000] + [math.inf] * 4
    statuses = [table.measurement(row).status for row in range(len(table))]
    failed = [Status.LAUNCH_ERROR, Status.COMPILE_ERROR, Status.COMPILE_ERROR, Status.LAUNCH_ERROR]
    assert statuses == [Status.OK] * 3 + failed
    first = table.measurement(0)
    assert (first.compile_seconds, first.gpu_seconds, first.verify_seconds) == pytest.approx((0.5, 0.15, 0.1))
    assert first.timing is not None
    assert first.timing.pairs == 2
    assert first.timing.ratio_low < first.timing.ratio < first.timing.ratio_high
    baseline = table.card.baselines[table.problems[0]]
    assert baseline.library_us == 2000  # the median of what was timed
    assert baseline.default == table.configuration(0)


VALUES: dict[str, list[Any]] = {
    "int": [1, 2, 3, 64], "large": [2**40, 2**41, 7, 9], "real": [0.25, 1.5, 3.0, 1e-8], "flag": [True, False],
    "word": ["a", "b c", "1a", "x=y"], "mixed": [1, "auto", 2.5, True],
}  # fmt: skip
OUTCOME = st.one_of(
    st.builds(lambda time: {"time": time, "compile_time": 3.0}, st.floats(1e-3, 1e5)),
    st.builds(lambda time: {"time": time, "censored": True}, st.floats(1e-3, 1e5)),
    st.sampled_from(["RuntimeFailedConfig", "CompilationFailedConfig", "InvalidConfig", "ErrorConfig"]).map(
        lambda name: {"time": name}
    ),
)


@settings(max_examples=40)
@given(data=st.data())
def test_there_and_back_nothing_is_lost(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    knobs = data.draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4, unique=True))
    chosen = data.draw(st.lists(st.tuples(*(st.sampled_from(VALUES[knob]) for knob in knobs)), min_size=1, max_size=9))
    entries = {key_of(values): dict(zip(knobs, values, strict=True)) | data.draw(OUTCOME) for values in chosen}
    first = next(iter(entries))
    entries[first] |= {"time": 1.0, "censored": False}
    cache = CACHE | {"tune_params_keys": knobs, "tune_params": {k: VALUES[k] for k in knobs}, "cache": entries}
    folder = tmp_path_factory.mktemp("cache")
    (folder / "c.json").write_text(json.dumps(cache))
    table = write_table(folder / "t.parquet", *read_results(folder / "c.json"))
    again = cache_of(table, table.problems[0])
    assert list(again["cache"]) == list(entries)
    for key, before in entries.items():
        after = again["cache"][key]
        assert after["time"] == (pytest.approx(before["time"]) if isinstance(before["time"], float) else before["time"])
        assert after.get("censored", False) == before.get("censored", False)
        assert {str(after[knob]) for knob in knobs} == {str(before[knob]) for knob in knobs}
        if "mixed" not in knobs:
            assert {knob: after[knob] for knob in knobs} == {knob: before[knob] for knob in knobs}


def test_a_recorded_table_that_is_exported_and_imported_has_the_same_times_and_bounds(
    invented_table: Table, tmp_path: Path
) -> None:
    problem = GemmProblem(16, 4096, 4096)
    cache = cache_of(invented_table, problem)
    (tmp_path / "cache.json").write_text(json.dumps(cache))
    again = write_table(tmp_path / "table.parquet", *read_results(tmp_path / "cache.json"))
    pruned = 0
    for row, own in zip(invented_table.rows(problem).tolist(), range(len(again)), strict=True):
        before, after = invented_table.measurement(row), again.measurement(own)
        assert after.time_us == pytest.approx(before.time_us)  # infinite where there is none
        if before.status is Status.PRUNED:
            pruned += 1
            assert after.status is Status.PRUNED
            assert after.pilot_us == pytest.approx(before.pilot_us)
    assert pruned > 10
    assert again.summarise()[0].pruned == pruned
    assert f"{pruned:,} rows are marked as censored" in again.card.protocol_text
    assert cache_of(again, again.problems[0])["cache"].keys() == cache["cache"].keys()


@pytest.mark.parametrize("values", [[3, 1, 2], [True, False], [0.5, 0.25], ["b", "a"], [2**40, 1]])
def test_what_is_stored_as_text_is_restored(values: list[Any]) -> None:
    table = stored(values)
    read = restored(tuple(table.values()))
    assert dict(zip(table, read, strict=True)) == {str(value): value for value in values}
    assert [type(value) for value in read] == [type(values[0])] * len(values)


@pytest.mark.parametrize(
    ("size", "written"),
    [([4096, 3], [4096, 3]), ([4096], [4096]), (["²", 3], "²x3"), (["٣", 3], "٣x3"), ("conv2d", "conv2d")],
)
def test_a_size_is_written_as_numbers_where_it_is_nothing_else(
    imported: Callable[..., Table], size: object, written: object
) -> None:
    table = imported(CACHE | {"problem_size": size, "cache": ENTRIES})
    assert cache_of(table, table.problems[0])["problem_size"] == written


def test_configurations_that_a_cache_could_not_tell_apart_are_refused(imported: Callable[..., Table]) -> None:
    entries = [(16, True, "0.5,slow", "x"), (16, True, "0.5", "slow,x")]
    named = [dict(zip(CACHE["tune_params_keys"], values, strict=True)) for values in entries]
    cache = {str(number): each | {"time": 1.0 + number} for number, each in enumerate(named)}
    table = imported(CACHE | {"cache": cache})
    assert len(table) == 2
    with pytest.raises(TableError, match=r"two configurations would have the key 16,True,0\.5,slow,x in a cache"):
        cache_of(table, table.problems[0])
    assert len(cache_of(table, table.problems[0], [1])["cache"]) == 1


def test_a_cache_that_was_not_finished_is_read(tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    path.write_text(json.dumps(CACHE | {"cache": ENTRIES})[:-2] + ",\n")
    assert len(read_results(path)[1]) == len(ENTRIES)


def test_an_unknown_kernel_is_replayed_from_its_table_alone(imported: Callable[..., Table]) -> None:
    table = imported(CACHE | {"cache": ENTRIES})
    template = RecordedTemplate(table)
    problem = template.parse("4096x4096")
    assert problem == table.problems[0] == NamedProblem("4096x4096")
    with Evaluator(ReplayEngine(table, template), problem) as evaluator:
        space = evaluator.space
        assert len(space) == len(ENTRIES)
        assert [knob.values for knob in space.knobs] == list(table.card.knobs.values())
        for index in range(len(space)):
            assert space.index(space[index]) == index
            evaluator.submit(index)
            ((found, measurement),) = evaluator.wait()
            row = table.row(space[index], problem)
            assert (found, measurement) == (index, table.measurement(row if row is not None else -1))
        assert template.default(problem, evaluator.device) in space
    with pytest.raises(TableError, match="it holds nothing of 1x1"):
        Evaluator(ReplayEngine(table, template), NamedProblem("1x1"))
    with pytest.raises(BuildError, match="there is no kernel to build"):
        template.build(space[0], "", "", Path())


@pytest.mark.slow
def test_kernel_tuner_runs_an_exported_table(invented_table: Table, tmp_path: Path) -> None:
    """Every configuration, by Kernel Tuner's own enumeration, with the outcome that the table has."""
    from constraint import FunctionConstraint
    from kernel_tuner import tune_kernel
    from kernel_tuner.util import ErrorConfig

    problem = GemmProblem(16, 4096, 4096)
    # One schedule and one direction: of all, Kernel Tuner would go through ten million combinations.
    rows = [
        row
        for row in invented_table.rows(problem).tolist()
        if (known := invented_table.configuration(row))["schedule"] == "cooperative" and known["raster"] == "m"
    ]
    cache = cache_of(invented_table, problem, rows)
    for name in ("schedule", "raster"):
        cache["tune_params"][name] = [invented_table.configuration(rows[0])[name]]
    path = tmp_path / "cache.json"
    path.write_text(json.dumps(cache))
    legal = {tuple(found[name] for name in cache["tune_params_keys"]) for found in cache["cache"].values()}
    results, environment = tune_kernel(
        cache["kernel_name"], "", cache["problem_size"], [], cache["tune_params"],
        restrictions=[FunctionConstraint(lambda *values: values in legal)],
        cache=str(path), simulation_mode=True, quiet=True,
    )  # fmt: skip
    assert environment["simulation"]
    assert environment["device_name"] == invented_table.card.product
    found = {tuple(result[name] for name in cache["tune_params_keys"]): result for result in results}
    assert set(found) == legal
    failed = 0
    for row in rows:
        measurement = invented_table.measurement(int(row))
        result = found[tuple(invented_table.configuration(int(row)).values())]
        if measurement.failed:
            failed += 1
            assert isinstance(result["__error__"], ErrorConfig)
            assert (type(result["__error__"]).__name__ == "CompilationFailedConfig") == (
                measurement.status is Status.COMPILE_ERROR
            )
        else:
            expected = measurement.time_us if measurement.ok else measurement.pilot_us
            assert result["time"] == pytest.approx(expected / 1e3 if expected else None)
            assert result["compile_time"] == pytest.approx(measurement.compile_seconds * 1e3)
    assert failed > 10


def test_kernel_tuner_reads_what_it_needs_from_an_imported_and_exported_cache(
    imported: Callable[..., Table], tmp_path: Path
) -> None:
    from kernel_tuner import tune_cache

    table = imported(CACHE | {"cache": ENTRIES})
    path = tmp_path / "again.json"
    path.write_text(json.dumps(cache_of(table, table.problems[0])))
    results, environment = tune_cache(str(path), quiet=True)
    assert sorted(result["time"] for result in results) == pytest.approx([1.0, 2.0, 4.0])
    assert environment["best_config"]["alpha"] == 10.0
    assert environment["best_config"]["unroll"] is True
