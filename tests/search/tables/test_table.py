import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.measure.measurement import LARGEST, Clocks, Measurement, Raced, Status, Timing
from tilescout.search.measure.provenance import FOREIGN
from tilescout.search.tables.card import Baseline, TableCard
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import ProblemSummary, Table, find_tables, write_table
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import TableError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration, Knob
from tilescout.spaces.problems import Problem
from tilescout.spaces.resources import Resources
from tilescout.spaces.templates import KernelTemplate, find_template

Alter = Callable[..., KernelTemplate]
TEMPLATE = find_template("gemm_sm90")

positive = st.floats(min_value=0, exclude_min=True, max_value=LARGEST)
costs = st.floats(min_value=0, max_value=LARGEST)
counts = st.integers(0, 2**31 - 1)
readings = st.floats(allow_nan=False, allow_infinity=False)
clocks = st.builds(Clocks, readings, readings, readings, st.text(st.characters(codec="utf-8")))
failures = st.builds(
    Measurement,
    status=st.sampled_from([status for status in Status if status not in (Status.OK, Status.PRUNED)]),
    error=st.text(),
    pilot_us=st.none() | positive,
    resources=st.none() | st.builds(Resources, counts, counts, counts),
    clocks=st.none() | clocks,
    relative_error=st.none() | st.floats(),
    compile_seconds=costs,
    gpu_seconds=costs,
    verify_seconds=costs,
)
pruned = st.builds(replace, failures, status=st.just(Status.PRUNED), pilot_us=positive)


def with_ends(ratios: tuple[float, float, float], q25: float, q75: float, library_us: float) -> Timing:
    """Times whose ratio is within its interval."""
    low, ratio, high = sorted(ratios)
    return Timing(ratio, q25, q75, low, high, library_us, pairs=7)


successes = st.builds(
    Measurement,
    status=st.just(Status.OK),
    timing=st.builds(with_ends, st.tuples(positive, positive, positive), positive, positive, positive),
    pilot_us=st.none() | positive,
    resources=st.none() | st.builds(Resources, counts, counts, counts),
    clocks=st.none() | clocks,
    relative_error=st.none() | st.floats(min_value=0, allow_infinity=False),
    compile_seconds=costs,
    gpu_seconds=costs,
    verify_seconds=costs,
)


# Round trips


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(measurements=st.lists(failures | pruned | successes, min_size=1, max_size=12))
def test_what_is_read_is_exactly_what_was_written(
    measurements: list[Measurement], invented_card: TableCard, invented_rows: list[Row]
) -> None:
    rows = [(c, p, m) for (c, p, _), m in zip(invented_rows, measurements, strict=False)]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        write_table(path, invented_card, rows)
        table = Table.read(path)
    assert len(table) == len(rows)
    for number, (configuration, problem, measurement) in enumerate(rows):
        assert number in table.rows(problem)
        assert table.configuration(number) == configuration
        assert repr(table.measurement(number)) == repr(measurement)  # nan is not equal to itself, its repr is


def test_characters_that_utf8_lacks_are_kept_as_escapes(
    tmp_path: Path, invented_card: TableCard, invented_rows: list[Row]
) -> None:
    configuration, problem, _ = invented_rows[0]
    failed = Measurement(Status.COMPILE_ERROR, "bad byte \udcff in the log")
    table = write_table(tmp_path / "t.parquet", invented_card, [(configuration, problem, failed)])
    assert table.measurement(0).error == r"bad byte \udcff in the log"


def test_a_table_without_rows_can_be_read(tmp_path: Path, invented_card: TableCard) -> None:
    write_table(tmp_path / "t.parquet", invented_card, [])
    table = Table.read(tmp_path / "t.parquet")
    assert len(table) == 0
    assert [(s.rows, s.ok, s.best, s.default_timing) for s in table.summarise()] == [(0, 0, None, None)] * 3


def test_the_written_table_is_the_one_that_is_read(invented_table: Table) -> None:
    again = Table.read(invented_table.path)
    assert again.card == invented_table.card
    assert again.data.equals(invented_table.data)
    assert invented_table.card.size == invented_table.path.stat().st_size


def test_seven_thousand_rows_take_less_than_a_megabyte(invented_table: Table) -> None:
    assert invented_table.card.size / len(invented_table) * 7200 < 1_000_000


# Lookups


def test_rows_are_found_by_problem_and_configuration(invented_table: Table, invented_rows: list[Row]) -> None:
    for number, (configuration, problem, _) in enumerate(invented_rows):
        assert invented_table.row(configuration, problem) == number
    for problem in invented_table.problems:
        expected = [number for number, row in enumerate(invented_rows) if row[1] == problem]
        assert invented_table.rows(problem).tolist() == expected


def test_rows_that_are_changed_are_found_again_as_they_were(invented_table: Table) -> None:
    for problem in invented_table.problems:
        before = invented_table.rows(problem)
        expected = before.tolist()
        before[:] = 0
        assert invented_table.rows(problem).tolist() == expected


def test_a_problem_is_summarised_once(invented_table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Problem] = []
    summarise = Table._summarise

    def noted(table: Table, problem: Problem) -> ProblemSummary:
        asked.append(problem)
        return summarise(table, problem)

    monkeypatch.setattr(Table, "_summarise", noted)
    assert invented_table.summarise() == invented_table.summarise()
    assert asked == invented_table.problems


def test_a_configuration_that_was_not_tried_has_no_row(invented_table: Table, invented_rows: list[Row]) -> None:
    configuration, problem, _ = invented_rows[0]
    tried = {c for c, p, _ in invented_rows if p == problem}
    space = TEMPLATE.space(problem, DEVICES["h200"])
    untried = next(space[index] for index in range(len(space)) if space[index] not in tried)
    assert invented_table.row(untried, problem) is None
    assert invented_table.row({**configuration, "tile_m": 65}, problem) is None
    assert invented_table.row({"tile_m": 64}, problem) is None
    assert invented_table.row({**configuration, "more": 1}, problem) is None


def test_a_problem_that_the_table_lacks_is_refused_with_those_it_holds(invented_table: Table) -> None:
    with pytest.raises(TableError, match=r"nothing of 8x8x8:bf16, only 4096x4096x4096:bf16, 16x.*, 512x512x512:fp16"):
        invented_table.rows(GemmProblem(8, 8, 8))
    with pytest.raises(TableError, match=r"nothing of 8x8x8:bf16, only 4096x4096x4096:bf16, 16x.*, 512x512x512:fp16"):
        invented_table.problem("8x8x8:bf16")


def test_a_problem_is_found_as_it_is_written(invented_table: Table) -> None:
    assert [invented_table.problem(str(problem)) for problem in invented_table.problems] == invented_table.problems


def test_times_are_those_of_the_measurements(invented_table: Table, invented_rows: list[Row]) -> None:
    expected = [measurement.time_us for _, _, measurement in invented_rows]
    assert invented_table.times_us.tolist() == expected
    assert inf in expected


def test_pilots_are_those_of_the_measurements(invented_table: Table, invented_rows: list[Row]) -> None:
    measured = [measurement for _, _, measurement in invented_rows]
    expected = [nan if each.pilot_us is None else each.pilot_us for each in measured]
    assert invented_table.pilots_us == pytest.approx(expected, rel=0, nan_ok=True)
    assert invented_table.pruned.tolist() == [each.status is Status.PRUNED for each in measured]
    assert 0 < invented_table.pruned.sum() < len(measured)


def test_a_summary_counts_and_finds_the_best(invented_table: Table, invented_rows: list[Row]) -> None:
    for summary in invented_table.summarise():
        rows = [(c, m) for c, p, m in invented_rows if p == summary.problem]
        best = min(rows, key=lambda row: row[1].time_us)
        default = invented_table.card.baselines[summary.problem].default
        assert (summary.rows, summary.ok) == (200, sum(m.ok for _, m in rows))
        assert summary.ok + summary.pruned + summary.failed == 200
        assert (summary.best, summary.best_timing) == (best[0], best[1].timing)
        assert summary.default_timing == dict(rows)[default].timing
        assert summary.library_us == invented_table.card.baselines[summary.problem].library_us


def test_tables_are_found_damaged_or_not(tmp_path: Path, invented_table: Table) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "broken.parquet").write_bytes(b"")
    (other / "notes.txt").write_text("not a table")
    found = find_tables([other, tmp_path, other])
    assert found == [other / "broken.parquet", invented_table.path]
    with pytest.raises(TableError, match=r"can't look for tables in .*nowhere: No such file"):
        find_tables([tmp_path / "nowhere"])


# Writing


@pytest.mark.parametrize(
    ("measurement", "fault"),
    [
        (Measurement(Status.OK), "has a ratio if, and only if, its status is ok"),
        (Measurement(Status.PRUNED), "has a pilot_us if its status is pruned"),
        (Measurement(Status.PRUNED, pilot_us=inf), "pilot_us must be a number"),
        (
            Measurement(Status.WRONG, timing=Timing(1, 1, 1, 1, 1, 1, 7)),
            "has a ratio if, and only if, its status is ok",
        ),
        (Measurement(Status.OK, timing=Timing(nan, 1, 1, 1, 1, 1, 7)), "ratio must be a number"),
        (Measurement(Status.OK, timing=Timing(0, 1, 1, 1, 1, 1, 7)), "ratio must be more than 0"),
        (Measurement(Status.OK, timing=Timing(1, 1, inf, 1, 1, 1, 7)), "ratio_q75 must be a number"),
        (Measurement(Status.OK, timing=Timing(1, 1, 1, 1, 1, 1, 0)), "pairs must be more than 0"),
        (Measurement(Status.WRONG, raced=Raced(1, 1, 1, 7)), "only a row of status ok has a raced_ratio"),
        (
            Measurement(Status.OK, timing=Timing(1, 1, 1, 1, 1, 1, 7), raced=Raced(0, 1, 1, 7)),
            "raced_ratio must be more than 0",
        ),
        (Measurement(Status.WRONG, resources=Resources(2**31, 0, 0)), "column registers: "),
        (Measurement(Status.WRONG, resources=Resources(-1, 0, 0)), "registers must be a number of at least 0"),
        (Measurement(Status.OK, timing=Timing(1, 1, 1, 1, inf, 1, 7)), "ratio_high must be a number"),
        (Measurement(Status.WRONG, verify_seconds=-1), "verify_seconds must be a number of at least 0"),
        (Measurement(Status.WRONG, gpu_seconds=nan), "gpu_seconds must be a number"),
        (Measurement(Status.WRONG, gpu_seconds=None), "column gpu_seconds has missing values"),  # type: ignore[arg-type]
    ],
)
def test_a_measurement_that_can_not_be_is_not_written(
    tmp_path: Path, invented_card: TableCard, invented_rows: list[Row], measurement: Measurement, fault: str
) -> None:
    configuration, problem, _ = invented_rows[0]
    with pytest.raises(TableError, match=fault):
        write_table(tmp_path / "t.parquet", invented_card, [(configuration, problem, measurement)])
    assert list(tmp_path.iterdir()) == []


def test_rows_that_do_not_fit_the_card_are_not_written(
    tmp_path: Path, invented_card: TableCard, invented_rows: list[Row]
) -> None:
    write = partial(write_table, tmp_path / "t.parquet")
    configuration, problem, measurement = invented_rows[0]
    with pytest.raises(TableError, match="rows 0 and 3 are of the same configuration and problem"):
        write(invented_card, [*invented_rows[:3], invented_rows[0]])
    with pytest.raises(TableError, match="other knobs than schedule, warp_groups"):
        write(invented_card, [({"tile_m": 64}, problem, measurement)])
    with pytest.raises(TableError, match="row 0: tile_m is 65"):
        write(invented_card, [({**configuration, "tile_m": 65}, problem, measurement)])
    with pytest.raises(TableError, match="column tile_m: "):
        write(invented_card, [({**configuration, "tile_m": "wide"}, problem, measurement)])
    with pytest.raises(TableError, match="row 0: problem is 8x8x8:bf16, which the card does not list"):
        write(invented_card, [(configuration, GemmProblem(8, 8, 8), measurement)])
    clash = replace(
        invented_card, knobs={"ratio": (1,)}, baselines={problem: Baseline(Configuration.of({"ratio": 1}), 1)}
    )
    with pytest.raises(TableError, match="knob ratio has the name of another column"):
        write(clash, [({"ratio": 1}, problem, measurement)])
    with pytest.raises(TableError, match="its default is not a configuration"):
        write(replace(clash, knobs={"tile": (1,)}), [])
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_can_not_be_written_says_so(
    tmp_path: Path, invented_card: TableCard, invented_rows: list[Row]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TableError, match=r"t\.parquet: can't be written: (Not a directory|File exists)"):
        write_table(tmp_path / "file" / "t.parquet", invented_card, invented_rows)
    (tmp_path / "folder.parquet").mkdir()
    with pytest.raises(TableError, match=r"folder\.parquet: can't be written: Is a directory"):
        write_table(tmp_path / "folder.parquet", invented_card, invented_rows)
    assert {entry.name for entry in tmp_path.iterdir()} == {"file", "folder.parquet"}
    with pytest.raises(TableError, match=r"a table is a \.parquet file"):
        write_table(tmp_path / "t.csv", invented_card, invented_rows)


def test_a_refused_write_leaves_the_old_table(invented_table: Table, invented_rows: list[Row]) -> None:
    with pytest.raises(TableError):
        write_table(invented_table.path, invented_table.card, [invented_rows[0], invented_rows[0]])
    assert Table.read(invented_table.path).data.equals(invented_table.data)


# Which spaces a table fits


def test_a_table_fits_the_space_it_was_recorded_on(invented_table: Table) -> None:
    invented_table.check_space(TEMPLATE)
    assert not invented_table.stale_for(TEMPLATE)


def test_a_changed_source_is_accepted_and_visible(invented_table: Table, alter_template: Alter) -> None:
    changed = alter_template(source_hash="another")
    invented_table.check_space(changed)
    assert invented_table.stale_for(changed)


def test_what_another_tuner_measured_is_of_no_source_that_could_have_changed(
    tmp_path: Path, invented_card: TableCard, invented_rows: list[Row]
) -> None:
    imported = replace(invented_card, protocol=FOREIGN, source_hash="")
    table = write_table(tmp_path / "imported.parquet", imported, invented_rows)
    assert not table.stale_for(TEMPLATE)
    assert "has changed since" not in ReplayEngine(table, TEMPLATE).provenance.description


def test_a_table_of_another_space_is_refused(invented_table: Table, alter_template: Alter) -> None:
    with pytest.raises(TableError, match="of the space gemm_sm90, not of conv_sm90"):
        invented_table.check_space(alter_template(name="conv_sm90"))


def test_a_table_of_other_knobs_is_refused(invented_table: Table, alter_template: Alter) -> None:
    knobs = TEMPLATE.knobs
    narrower = (replace(knobs[0], values=("cooperative",)), *knobs[1:])
    with pytest.raises(TableError, match=r"gemm_sm90 has no knob schedule, its knobs are warp_groups, .*raster$"):
        invented_table.check_space(alter_template(knobs=knobs[1:]))
    with pytest.raises(TableError, match=r"knob schedule of gemm_sm90 can't be pingpong, allowed are cooperative$"):
        invented_table.check_space(alter_template(knobs=narrower))
    with pytest.raises(TableError, match=r"it lacks the knob unroll of gemm_sm90$"):
        invented_table.check_space(alter_template(knobs=(*knobs, Knob("unroll", (1, 2), "unrolling"))))


def test_configurations_are_coded_as_the_template_orders_its_knobs(invented_table: Table) -> None:
    knobs = tuple(replace(knob, values=knob.values[::-1]) for knob in TEMPLATE.knobs[::-1])
    codes = invented_table.codes(knobs)
    assert codes.shape == (len(invented_table), len(knobs))
    for row in range(0, len(invented_table), 17):
        values = {knob.name: knob.values[code] for knob, code in zip(knobs, codes[row], strict=True)}
        assert values == dict(invented_table.configuration(row))
    some = invented_table.rows(invented_table.problems[1])[::-3]
    assert invented_table.codes(knobs, some).tolist() == codes[some].tolist()


def test_importing_the_table_does_not_import_arrow() -> None:
    check = "import sys, tilescout.search.engines.replay; sys.exit('pyarrow' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False, timeout=60).returncode == 0


def test_a_file_may_be_named_by_a_text(invented_table: Table) -> None:
    named = str(invented_table.path)
    assert Table.read(named).path == invented_table.path
    assert Table.read_card(named) == invented_table.card
    with pytest.raises(TableError, match="a table is a"):
        Table.read("table")
