"""Tables of what judged tunings had measured: what is taken of a record, and what stays unseen."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.studies.draw_problems import kept_unseen
from tilescout.experiments.research.studies.judged_tables import found_in, main, table_of
from tilescout.search.measure.protocol import Objective
from tilescout.search.tables.table import Table
from tilescout.search.tables.training import samples_of
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import StoreError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.templates import find_template

RESULTS = Path(__file__).resolve().parents[3] / "experiments" / "results"
JUDGED = RESULTS / "tunings-out-of-sample-2026-11-30" / "judged-935.json.gz"
TEMPLATE = find_template("gemm_sm90")
SHIPPED = shipped_model("gemm_sm90", "h200")
assert SHIPPED is not None
MODEL = load_model(SHIPPED)[0]


def written(record: Record, out: Path) -> Table:
    return table_of([record], TEMPLATE, MODEL, out)


def test_no_problem_is_of_a_product_that_stays_unseen() -> None:
    unseen = kept_unseen()
    record = Record.read(JUDGED)

    kept = {str(each.problem) for each in found_in(record, TEMPLATE)}

    assert kept == {name for name in record.result["problems"] if name.partition("x")[2] not in _texts(unseen)}
    assert 0 < len(kept) < len(record.result["problems"])


def _texts(products: set[tuple[int, int]]) -> set[str]:
    return {f"{n}x{k}:bf16" for n, k in products}


def test_each_kernel_that_was_timed_is_a_row_with_its_ratio(tmp_path: Path) -> None:
    record = Record.read(JUDGED)
    table = written(record, tmp_path / "judged.parquet")
    problem = table.problems[0]
    [part] = [one for one in record.result["problems"][str(problem)]["all"] if one["space"] == TEMPLATE.name]
    ratios = {json.dumps(given, sort_keys=True): ratio for given, ratio in part["measured"]}
    found = {
        json.dumps(dict(table.configuration(row)), sort_keys=True): timing.ratio
        for row in table.rows(problem).tolist()
        if (timing := table.measurement(row).timing) is not None
    }

    assert ratios.items() <= found.items()
    assert list(found.values()) == sorted(found.values())
    assert table.card.objective is Objective.SANDWICH


def test_missing_times_of_the_library_are_what_the_model_expects_in_the_median(tmp_path: Path) -> None:
    table = written(Record.read(JUDGED), tmp_path / "judged.parquet")

    for sample in samples_of(table, TEMPLATE):
        error = MODEL.predict(sample.features).mean - sample.log_time
        assert np.median(error) == pytest.approx(0, abs=1e-9)


def test_times_of_the_library_that_a_record_has_are_taken(tmp_path: Path) -> None:
    record = Record.read(JUDGED)
    for found in record.result["problems"].values():
        for part in found["all"]:
            part["library_us"] = 123.5

    table = written(record, tmp_path / "judged.parquet")

    assert {baseline.library_us for baseline in table.card.baselines.values()} == {123.5}


def test_kernels_with_knobs_of_another_day_are_left_out(tmp_path: Path) -> None:
    record = Record.read(JUDGED)
    before = len(written(record, tmp_path / "all.parquet"))
    problem = str(next(found_in(record, TEMPLATE)).problem)
    [part] = [one for one in record.result["problems"][problem]["all"] if one["space"] == TEMPLATE.name]
    part["measured"] = [[{**given, "tile_n": 7}, ratio] for given, ratio in part["measured"]]

    assert len(written(record, tmp_path / "fewer.parquet")) < before


def test_a_record_of_another_device_is_refused(tmp_path: Path) -> None:
    other = Record.read(RESULTS / "tunings-out-of-sample-2026-11-26" / "judged-813.json.gz")

    with pytest.raises(StoreError, match=r"H100.*not on an h200"):
        written(other, tmp_path / "judged.parquet")


def test_what_is_no_record_of_judged_tunings_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    Record.of("other", "python", {"problems": {"1x64x64:bf16": {}}}).write(path)
    content = json.loads(path.read_text())
    content["about"]["machine"] = "one NVIDIA H200"
    path.write_text(json.dumps(content))

    done = CliRunner().invoke(main, [str(path), "--write", str(tmp_path / "tables")])

    assert isinstance(done.exception, StoreError) or done.exit_code == 2
    assert "is not of tunings-judged" in f"{done.exception} {done.output}"


def test_the_study_writes_a_table_of_each_space(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, [str(JUDGED), "--write", str(tmp_path)], catch_exceptions=False)

    assert done.exit_code == 0, done.output
    assert {table.card.space for table in map(Table.read, tmp_path.glob("*.parquet"))} == {
        "gemm_sm90",
        "gemm_streamk_sm90",
    }


def test_problems_of_the_newest_list_of_models_are_never_learned_from() -> None:
    record = Record.read(JUDGED.with_name("judged-941.json.gz"))

    assert not list(found_in(record, TEMPLATE))


def test_records_that_say_no_versions_are_refused_alone(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="by which versions"):
        written(Record.read(JUDGED.with_name("judged-934.json.gz")), tmp_path / "judged.parquet")


def test_the_default_of_a_problem_is_what_runs_without_a_search(tmp_path: Path) -> None:
    table = written(Record.read(JUDGED), tmp_path / "judged.parquet")

    for problem, baseline in table.card.baselines.items():
        assert baseline.default == TEMPLATE.default_in(TEMPLATE.space(problem, find_device("h200")))


def test_what_was_recorded_has_no_unseen_product() -> None:
    unseen = kept_unseen()
    for name in ("gemm_sm90", "gemm_streamk_sm90"):
        table = Table.read(RESULTS / "stream-k-2026-11-30" / f"{name}-h200-judged.parquet")
        assert not {(problem.n, problem.k) for problem in table.problems if isinstance(problem, GemmProblem)} & unseen
