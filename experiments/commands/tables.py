"""``tilescout tables``: what was recorded, and its conversions."""

from pathlib import Path

import click

from tilescout.experiments.commands.completion import TABLE
from tilescout.experiments.commands.listing import LIST, ListingGroup
from tilescout.experiments.commands.options import examples, json_option, own_spaces_option
from tilescout.experiments.commands.outputs import check_result, console_beside, write_result
from tilescout.experiments.commands.printing import library_best_cell
from tilescout.experiments.commands.table import add_binaries, export_kernel_tuner, from_studies, import_results
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table, find_tables
from tilescout.spaces.errors import SpaceError, TableError
from tilescout.spaces.templates import Named, find_template, load_templates
from tilescout.spaces.terminal import Console, Grid
from tilescout.spaces.texts import plain


@click.group(
    cls=ListingGroup,
    epilog=examples(
        "tilescout tables",
        "tilescout tables own.parquet --space own_kernel:RmsNorm",
        "tilescout tables import convolution_A100.json.gz convolution.parquet",
    ),
)
def tables() -> None:
    """List recorded tables, as `list` does, or make, import, export and complete them."""


@tables.command(
    LIST,
    epilog=examples(
        "tilescout tables list own.parquet campaigns/may",
        "tilescout tables list own.parquet --space own_kernel:RmsNorm",
    ),
)
@click.argument("paths", nargs=-1, type=TABLE)
@own_spaces_option
@json_option
def list_tables(paths: tuple[Path, ...], own_spaces: tuple[str, ...], json_path: Path | None) -> None:
    """List recorded tables: those that come with tilescout, or the files and folders in PATHS."""
    among = {path: find_tables([path]) if path.is_dir() else [path] for path in paths}
    check_result(json_path)
    console, named = console_beside(json_path), load_templates(own_spaces)
    damaged, records = [f"no table lies in {path}" for path, held in among.items() if not held], []
    for path in [file for held in among.values() for file in held] if paths else shipped_tables():
        try:
            table = Table.read(path, named)
            _show(table, console, named)
            records.append(record_of(table))
        except TableError as error:
            damaged.append(str(error))
    write_result(json_path, records)
    if damaged:
        raise TableError("; ".join(damaged))


for _command in (import_results, from_studies, export_kernel_tuner, add_binaries):
    tables.add_command(_command)


def _show(table: Table, console: Console, named: Named) -> None:
    card = table.card
    console.say(plain(table.path), style="bold")
    versions = ", ".join(f"{name} {value}" for name, value in {"driver": card.driver, **card.versions}.items())
    console.say(
        f"{card.space} on {card.product}, recorded {card.recorded}, {versions}; "
        f"protocol {card.protocol}{_staleness(table, named)}"
    )
    grid = Grid(
        title=f"speed-ups over {card.library}; the default is that of the day of recording",
        title_justify="left",
        show_edge=False,
        pad_edge=False,
    )
    grid.add_column("problem", overflow="fold")
    summaries = table.summarise()
    pruned = any(summary.pruned for summary in summaries)
    listed = any(baseline.library_best is not None for baseline in card.baselines.values())
    headings = ("rows", *["pruned"] * pruned, "failed", f"library\n{card.unit}", "best", "default")
    for heading in (*headings, *["library's\nbest"] * listed):
        grid.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        best, default = summary.best_timing, summary.default_timing
        grid.add_row(
            str(summary.problem),
            f"{summary.rows:,}",
            *[f"{summary.pruned:,}"] * pruned,
            f"{summary.failed:,}",
            f"{summary.library_us:.2f}",
            f"{1 / best.ratio:.3f}" if best else "none",
            f"{1 / default.ratio:.3f}" if default else "failed",
            *[library_best_cell(card.baselines[summary.problem])] * listed,
        )
    console.print(grid)


def record_of(table: Table) -> dict[str, object]:
    """The form in which --json tells of a table."""
    card = table.card
    problems = [
        {
            "problem": str(summary.problem),
            "rows": summary.rows,
            "pruned": summary.pruned,
            "failed": summary.failed,
            "library_us": summary.library_us,
            "best_speedup_over_library": 1 / summary.best_timing.ratio if summary.best_timing else None,
            "default_speedup_over_library": 1 / summary.default_timing.ratio if summary.default_timing else None,
            "library_best_speedup_over_library": card.baselines[summary.problem].library_best_speedup,
        }
        for summary in table.summarise()
    ]
    about = {"space": card.space, "product": card.product, "recorded": str(card.recorded), "protocol": card.protocol}
    return {"table": str(table.path), **about, "library": card.library, "problems": problems}


def _staleness(table: Table, named: Named) -> str:
    try:
        template = find_template(table.card.space, named)
    except SpaceError:
        return "; this tilescout does not know the space"
    try:
        stale = table.stale_for(template)
    except SpaceError as error:  # of an extra that is not installed
        return f"; whether the kernel's source has changed since is not known: {error}"
    return "; the kernel's source has changed since" if stale else ""
