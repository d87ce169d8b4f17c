r"""Add to a recorded table what the binaries of its kernels say, as far as a store has them.

    python -m tilescout.experiments.research.read_binaries TABLE.parquet --artifacts .tilescout/artifacts \
        --out T.parquet

Tables that were recorded before instructions were counted lack that column. A row gets what the artifact of its
configuration says; a row whose artifact is not there keeps what it has.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore, verify_library
from tilescout.search.build.binaries import instruction_count
from tilescout.search.measure.measurement import Resources
from tilescout.search.tables.card import FORMAT
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TableError
from tilescout.spaces.templates import KernelTemplate, find_template


def read_binaries(table: Table, template: KernelTemplate, store: ArtifactStore, out: Path) -> Table:
    """Write the table with what the artifacts of `store` say of its rows.

    Raises
    ------
    ArtifactError
        If an artifact is damaged.
    BuildError
        If an artifact holds no code for a GPU.
    TableError
        If the kernels are no longer those that were measured, or the table can't be written.
    """
    if table.stale_for(template):
        raise TableError(
            f"table {table.path}: the source of {template.name} has changed since, and so have its kernels"
        )
    arch = find_device(table.card.device).arch

    @cache
    def counted(key: ArtifactKey) -> Resources | None:
        artifact = store.find(key)
        return _counted(artifact) if artifact is not None and artifact.ok else None

    def rows() -> Iterator[Row]:
        for problem in table.problems:
            for row in table.rows(problem).tolist():
                configuration, measurement = table.configuration(row), table.measurement(row)
                key = ArtifactKey.of(template, configuration, problem.signature, arch)
                found = counted(key) or measurement.resources
                yield configuration, problem, replace(measurement, resources=found)

    return write_table(out, replace(table.card, format=FORMAT), rows())


def _counted(artifact: Artifact) -> Resources | None:
    """What an artifact occupies; one of an older tilescout has its instructions counted now."""
    resources = artifact.resources
    if resources is None or resources.instructions is not None:
        return resources
    verify_library(artifact.path, artifact.sha256)
    return replace(resources, instructions=instruction_count(artifact.path.read_bytes()))


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--artifacts", type=Path, required=True, help="folder of the compiled kernels")
    parser.add_argument("--out", type=Path, required=True, help="the table to write")
    arguments = parser.parse_args()
    table = Table.read(arguments.table)
    written = read_binaries(table, find_template(table.card.space), ArtifactStore(arguments.artifacts), arguments.out)
    known = written.data.num_rows - written.data["instructions"].null_count
    print(f"{arguments.out}: {known:,} of {len(written):,} rows say how many instructions their kernel has")


if __name__ == "__main__":
    main()
