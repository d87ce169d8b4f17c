"""``tilescout table``: bring tables here from elsewhere, and take them there."""

import gzip
import json
from pathlib import Path

import click
from rich.console import Console

from tilescout.experiments.commands.options import check_writable, examples
from tilescout.search.tables.kernel_tuner import cache_of, read_cache
from tilescout.search.tables.table import Table, write_table
from tilescout.spaces.errors import TableError


@click.group(
    epilog=examples(
        "tilescout table import-kernel-tuner convolution_A100.json.gz convolution.parquet",
    )
)
def table() -> None:
    """Import and export recorded tables; `tilescout tables` lists them."""


@table.command(
    epilog=examples(
        "tilescout table import-kernel-tuner convolution_A100.json.gz convolution.parquet",
    )
)
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--problem", metavar="NAME", help="What to call the problem. [default: its size]")
def import_kernel_tuner(file: Path, out: Path, problem: str | None) -> None:
    """Make a table of FILE, a cache of Kernel Tuner (.json or .json.gz), and write it to OUT, a .parquet file.

    `tilescout tune KERNEL --problem NAME --table OUT` and `tilescout compare --table OUT` replay it.
    """
    card, rows = read_cache(file, problem)
    imported = write_table(out, card, rows)
    (summary,) = imported.summarise()
    Console().print(
        f"{card.space} {summary.problem} on {card.product}: {summary.rows:,} configurations, {summary.failed:,} failed",
        highlight=False,
        soft_wrap=True,
    )


@table.command(
    epilog=examples(
        "tilescout table export-kernel-tuner own.parquet cache.json.gz --problem 512x512x512:bf16",
    )
)
@click.argument("path", metavar="TABLE", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--problem", metavar="NAME", help="Which problem, if the table has several.")
def export_kernel_tuner(path: Path, out: Path, problem: str | None) -> None:
    """Write a problem of TABLE to OUT as a cache that Kernel Tuner's simulation mode runs (.json or .json.gz)."""
    check_writable(out)
    recorded = Table.read(path)
    if problem is None and len(recorded.problems) > 1:
        named = ", ".join(map(str, recorded.problems))
        raise TableError(f"table {path} has several problems, name one with --problem: {named}")
    cache = cache_of(recorded, recorded.problem(problem) if problem is not None else recorded.problems[0])
    text = json.dumps(cache, indent=0)
    out.write_bytes(gzip.compress(text.encode(), mtime=0) if out.suffix == ".gz" else text.encode())
    Console().print(f"{len(cache['cache']):,} configurations: {out}", highlight=False, soft_wrap=True)
