"""``tilescout tables import``, ``from-studies``, ``export-kernel-tuner`` and ``add-binaries``."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import click

from tilescout.experiments.commands.completion import TABLE
from tilescout.experiments.commands.options import examples, space_argument, storage_option, store_option
from tilescout.experiments.commands.outputs import check_apart, check_writable
from tilescout.experiments.commands.studies import read_all
from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore, read_shared_object
from tilescout.search.build.binaries import instruction_count
from tilescout.search.campaigns.from_studies import check_new, comparable, table_of_studies
from tilescout.search.measure.protocol import Objective
from tilescout.search.studies.folders import artifacts
from tilescout.search.studies.folders import studies as place_of
from tilescout.search.tables.card import FORMAT, TableCard
from tilescout.search.tables.kernel_tuner import cache_of
from tilescout.search.tables.result_forms import Told, UntoldError
from tilescout.search.tables.results import merged_text, read_results
from tilescout.search.tables.rows import Row
from tilescout.search.tables.table import Table, card_path, check_table_files, write_table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import StoreError, TableError
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.resources import Resources
from tilescout.spaces.templates import KernelTemplate, find_template, load_template
from tilescout.spaces.terminal import Console
from tilescout.spaces.texts import number_of

_OPTIONS = {"maximize": "--maximize or --minimize"}


@click.command(
    "import",
    epilog=examples(
        "tilescout tables import convolution_A100.json.gz convolution.parquet",
        "tilescout tables import A100_T4.json.gz hotspot.parquet --kernel hotspot --problem 4096x4096 --device A100",
        "tilescout tables import cache.json energy.parquet --objective energy",
    ),
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--kernel", metavar="NAME", help="Name of the kernel. [default: the file's]")
@click.option("--problem", metavar="NAME", help="Name of the problem. [default: its size in the file]")
@click.option("--device", metavar="NAME", help="Device it ran on. [default: the file's]")
@click.option(
    "--objective", metavar="NAME", help="The value that is the objective. [default: the file's, mostly the time]"
)
@click.option(
    "--maximize/--minimize", default=None, help="Whether larger is better. [default: what is known of the objective]"
)
@click.option("--unit", type=click.Choice(["s", "ms", "us", "ns"]), help="Unit of the times. [default: the file's]")
@click.option(
    "--parameters",
    default="",
    callback=lambda context, parameter, text: tuple(name for name in text.split(",") if name),
    metavar="A,B,...",
    help="Which values are parameters. [default: those that the file lists, or that stand before what was measured]",
)
def import_results(file: Path, out: Path, **told: Any) -> None:
    """Convert FILE, results of another tuner, to a table, and write it to OUT, a .parquet file.

    FILE (.json or .json.gz) is a cache or a list of results of Kernel Tuner, T4 results, or results of KTT.
    Options say what it does not name. If the objective is not a time, the table holds the objective relative to that
    of the median configuration, which counts as 100; smaller is better.

    If OUT is an earlier import of the same problem, it is replaced. Any other table is left alone.

    `tilescout tune KERNEL --problem NAME --table OUT` and `tilescout compare --table OUT` replay it.
    """
    check_writable(out)
    check_table_files(out)
    check_apart(file, out, card_path(out))
    try:
        card, rows = read_results(file, Told(**told))
    except UntoldError as error:
        options = ", ".join(_OPTIONS.get(name, f"--{name}") for name in error.fields)
        raise TableError(f"{error.fault}: give {options}") from error
    _check_held(out, lambda held: _told_of(held) == _told_of(card))
    imported = write_table(out, card, rows)
    (summary,) = imported.summarise()
    figure = f" ({card.figure}, no times)" if card.figure else ""
    pruned = f"{summary.pruned:,} pruned (no time is known, only a bound), " if summary.pruned else ""
    Console().say(
        f"{card.space} {summary.problem} on {card.product}: {number_of(summary.rows, 'configuration')} of "
        f"{', '.join(card.knobs)}{figure}, {pruned}{summary.failed:,} failed",
    )
    if merged := merged_text(card):
        Console().say(merged)


def _check_held(out: Path, is_alike: Callable[[TableCard], bool]) -> None:
    """Refuse to replace a table that is not alike: it may be days of measuring."""
    if not out.exists():
        return
    held = Table.read(out).card
    if not is_alike(held):
        about = f"{held.space} on {held.product}, {', '.join(map(str, held.baselines))} ({held.protocol})"
        raise StoreError(f"{out} is a table of {about}: choose another file, or move it away")


def _recorded_of(card: TableCard) -> tuple[object, ...]:
    """The facts that a table and the same one with more of its binaries have in common."""
    return *_told_of(card), card.recorded, card.selection, card.rows


def _told_of(card: TableCard) -> tuple[object, ...]:
    """The facts that two tables of one file of results have in common."""
    return card.space, card.product, card.protocol, list(card.baselines)


@click.command(
    epilog=examples(
        "tilescout tables export-kernel-tuner own.parquet cache.json.gz --problem 512x512x512:bf16",
    )
)
@click.argument("path", metavar="TABLE", type=TABLE)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--problem", metavar="NAME", help="Which problem, if the table has several.")
def export_kernel_tuner(path: Path, out: Path, problem: str | None) -> None:
    """Write a problem of TABLE to OUT as a cache for Kernel Tuner's simulation mode (.json or .json.gz)."""
    check_writable(out)
    if out.is_file() and out.stat().st_size:  # a cache may be days of somebody's measuring, and says nothing of us
        raise StoreError(f"{out} is there already: choose another file, or move it away")
    recorded = Table.read(path)
    if recorded.card.figure:
        raise TableError(f"table {path} has no times: {recorded.card.protocol_text.partition(':')[0]}")
    if problem is None and len(recorded.problems) > 1:
        named = ", ".join(map(str, recorded.problems))
        raise TableError(f"table {path} has several problems, name one with --problem: {named}")
    cache = cache_of(recorded, recorded.problem(problem) if problem is not None else recorded.problems[0])
    text = json.dumps(cache, indent=0)
    write_whole(out, gzip.compress(text.encode(), mtime=0) if out.suffix == ".gz" else text.encode())
    Console().say(f"{number_of(len(cache['cache']), 'configuration')}: {out}")


@click.command(
    epilog=examples(
        "tilescout tables add-binaries own.parquet own-counted.parquet --store results",
    )
)
@click.argument("path", metavar="TABLE", type=TABLE)
@click.argument("out", type=click.Path(path_type=Path))
@store_option
def add_binaries(path: Path, out: Path, store: Path) -> None:
    """Write TABLE to OUT with the instruction counts of its kernels, read from the compiled kernels of a store.

    Tables that an older tilescout recorded lack these counts, and `tilescout evaluate-model --binaries` needs them. A
    row whose kernel is not in the store keeps what it has. If OUT is TABLE with such counts, it is replaced. Any other
    table is left alone.
    """
    check_apart(path, out)
    check_writable(out)
    check_table_files(out)
    recorded = Table.read(path)
    _check_held(out, lambda held: _recorded_of(held) == _recorded_of(recorded.card))
    kernels = ArtifactStore(artifacts(store), to_read=True)
    written = read_binaries(recorded, find_template(recorded.card.space), kernels, out)
    known = written.data.num_rows - written.data["instructions"].null_count
    rows = number_of(len(written), "row")
    Console().say(f"{out}: {known:,} of {rows} with the number of instructions of their kernel")


@click.command(
    epilog=examples(
        "tilescout tables from-studies gemm_sm90 own.parquet",
        "tilescout tables from-studies gemm_sm90 own.parquet --storage postgresql://user@host/name",
    ),
)
@space_argument
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--device", metavar="NAME", help="Only studies of this device, for example h200.")
@click.option("--objective", type=click.Choice([str(each) for each in Objective]), help="Only times by this objective.")
@store_option
@storage_option
def from_studies(
    space: str, out: Path, device: str | None, objective: str | None, store: Path, storage: str | None
) -> None:
    """Write what searches of SPACE have measured to OUT, a .parquet file: a table, as `collect` writes one.

    A cost model learns from it: `tilescout train SPACE --table OUT`. Studies that replayed a table are left out, and
    those of kernels or a protocol that have changed since. Times of several devices or objectives do not go into one
    table.
    """
    check_writable(out)
    check_new(out)
    template = load_template(space)
    found, unreadable = read_all(place_of(store, storage), {template.name: template})
    for message in unreadable:
        Console().say(f"left out: {message}")
    chosen = comparable(found, template, device, Objective(objective) if objective else None)
    table = table_of_studies(chosen, template, out)
    Console().say(f"{out}: {table.extent}, from {number_of(len(chosen), 'study', 'studies')}")


def read_binaries(table: Table, template: KernelTemplate, store: ArtifactStore, out: Path) -> Table:
    """Write a table with the resources that the artifacts of a store state for its rows, and return it.

    Raises
    ------
    ArtifactError
        If an artifact is damaged.
    BuildError
        If an artifact holds no code for a GPU.
    TableError
        If another tuner measured the table, the kernels' source has changed since, or the table can't be written.
    """
    if table.card.is_imported:
        raise TableError(
            f"table {table.path}: another tuner measured it, and no store has the binaries of its kernels: name a "
            "table that `tilescout collect` recorded"
        )
    if table.stale_for(template):
        raise TableError(
            f"table {table.path}: the source of {template.name} has changed since, and so have its kernels"
        )
    arch = find_device(table.card.device).arch

    @cache
    def resources_of(key: ArtifactKey) -> Resources | None:
        artifact = store.find(key)
        return _counted(artifact) if artifact is not None and artifact.ok else None

    def rows() -> Iterator[Row]:
        for problem in table.problems:
            for row in table.rows(problem).tolist():
                configuration, measurement = table.configuration(row), table.measurement(row)
                key = ArtifactKey.of(template, configuration, problem.signature, arch)
                found = resources_of(key) or measurement.resources
                yield configuration, problem, replace(measurement, resources=found)

    return write_table(out, replace(table.card, format=FORMAT), rows())


def _counted(artifact: Artifact) -> Resources | None:
    """The resources of an artifact; the instructions of one that an older tilescout compiled are counted now."""
    resources = artifact.resources
    if resources is None or resources.instructions is not None:
        return resources
    return replace(resources, instructions=instruction_count(read_shared_object(artifact.path, artifact.sha256)))
