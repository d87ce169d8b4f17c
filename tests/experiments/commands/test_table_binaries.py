"""The resources in a recorded table's binaries, and models that learn from them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilescout.costmodel.features import BINARY_PREFIX
from tilescout.experiments.commands.table import read_binaries
from tilescout.search.build.artifacts import SHARED_OBJECT, Artifact, ArtifactKey, ArtifactStore
from tilescout.search.measure.provenance import FOREIGN
from tilescout.search.tables.shipped import largest_table
from tilescout.search.tables.table import Table, write_table
from tilescout.search.tables.training import problem_space, samples_of
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.errors import ArtifactError, TableError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.resources import Resources
from tilescout.spaces.templates import find_template

TEMPLATE = find_template("gemm_sm90")
COUNTED = Resources(registers=168, spill_bytes=16, shared_memory=4096, instructions=920)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Thirty configurations on two problems, as a tilescout that counted no instructions recorded them."""
    whole = largest_table(TEMPLATE)
    problems = whole.problems[:2]
    rows = [(whole.configuration(r), p, whole.measurement(r)) for p in problems for r in whole.rows(p)[:30].tolist()]
    rows = [(c, p, replace(m, resources=m.resources and replace(m.resources, instructions=None))) for c, p, m in rows]
    baselines = {problem: whole.card.baselines[problem] for problem in problems}
    card = replace(whole.card, format=3, source_hash=TEMPLATE.source_hash, baselines=baselines)
    return write_table(tmp_path_factory.mktemp("table") / "part.parquet", card, rows)


def keep(store: ArtifactStore, configuration: Configuration, resources: Resources) -> None:
    """Put an artifact that was read when it was made into a store."""
    key = ArtifactKey.of(TEMPLATE, configuration, "bf16", DEVICES["h200"].arch)
    with store.scratch() as scratch:
        (scratch / SHARED_OBJECT).write_bytes(b"a library")
        store.publish(key, Artifact(scratch / SHARED_OBJECT, "00", "entry", resources, 1.0), scratch)


def test_rows_whose_artifact_is_there_get_what_its_binary_says(table: Table, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    chosen = {table.configuration(row) for row in table.rows(table.problems[0])[:10].tolist()}
    for configuration in chosen:
        keep(store, configuration, COUNTED)
    written = read_binaries(table, TEMPLATE, store, tmp_path / "out.parquet")
    assert len(written) == len(table)
    for row in range(len(written)):
        before, after = table.measurement(row), written.measurement(row)
        expected = COUNTED if written.configuration(row) in chosen else before.resources
        assert after == replace(before, resources=expected)

    samples = samples_of(written, TEMPLATE, binaries=True)
    assert sum(map(len, samples)) == sum(written.configuration(row) in chosen for row in range(len(written)))
    assert len(samples[0]) == len(problem_space(written, TEMPLATE, written.problems[0], binaries=True)) == 10
    names = samples[0].features.names[-3:]
    assert names == tuple(BINARY_PREFIX + name for name in ("registers", "spill_bytes", "instructions"))
    read = samples[0].features.only(names).values
    np.testing.assert_allclose(read, np.tile(np.log2([168, 17, 920]), (10, 1)))
    plain = samples_of(written, TEMPLATE)
    assert plain[0].features.names == samples[0].features.names[:-3]


def test_a_table_that_does_not_say_is_refused_with_what_adds_it(table: Table) -> None:
    with pytest.raises(TableError, match="to be counted in the artifacts"):
        samples_of(table, TEMPLATE, binaries=True)


def test_an_older_artifact_is_counted_only_if_it_is_whole(table: Table, tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "artifacts")
    keep(store, table.configuration(0), replace(COUNTED, instructions=None))
    with pytest.raises(ArtifactError, match="damaged"):
        read_binaries(table, TEMPLATE, store, tmp_path / "out.parquet")


def test_kernels_of_another_source_are_refused(table: Table, tmp_path: Path) -> None:
    other = Table(replace(table.card, source_hash="00"), table.data, table.path)
    with pytest.raises(TableError, match="has changed since"):
        read_binaries(other, TEMPLATE, ArtifactStore(tmp_path / "artifacts"), tmp_path / "out.parquet")


def test_the_command_writes_a_table_with_the_counts_and_says_how_many_rows_have_them(
    table: Table, tmp_path: Path, run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = table.configuration(0)
    keep(ArtifactStore(tmp_path / "artifacts"), chosen, COUNTED)
    run("tables", "add-binaries", str(table.path), str(tmp_path / "out.parquet"), "--store", str(tmp_path))
    written = Table.read(tmp_path / "out.parquet")
    counted = sum(written.configuration(row) == chosen for row in range(len(written)))
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'out.parquet'}: {counted} of 60 rows with the number")


def test_the_command_replaces_what_it_wrote_and_no_other_table(
    table: Table, tmp_path: Path, run: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    keep(ArtifactStore(tmp_path / "artifacts"), table.configuration(0), COUNTED)
    out = tmp_path / "out.parquet"
    given = ("tables", "add-binaries", str(table.path), str(out), "--store", str(tmp_path))
    for _ in range(2):
        run(*given)

    some = [(problem, row) for problem in table.problems for row in table.rows(problem)[:9].tolist()]
    rows = [(table.configuration(row), problem, table.measurement(row)) for problem, row in some]
    write_table(out, table.card, rows)  # another campaign of the same problems
    before = out.read_bytes()
    capsys.readouterr()
    run(*given, code=2)
    assert "out.parquet is a table of gemm_sm90 on NVIDIA H200" in capsys.readouterr().err
    assert out.read_bytes() == before


def test_a_table_of_another_tuner_gets_nothing_of_our_binaries(table: Table, tmp_path: Path) -> None:
    card = replace(table.card, protocol=FOREIGN, source_hash="")
    imported = write_table(tmp_path / "imported.parquet", card, table.data)
    with pytest.raises(TableError, match="another tuner measured it"):
        read_binaries(imported, TEMPLATE, ArtifactStore(tmp_path / "artifacts"), tmp_path / "out.parquet")
    assert not (tmp_path / "out.parquet").exists()
