"""``tilescout export``: hand the results of searches to TorchInductor."""

from collections.abc import Sequence
from pathlib import Path

import click

from tilescout.experiments.commands.completion import TABLE
from tilescout.experiments.commands.grouped_tables import grouped_of_tables
from tilescout.experiments.commands.options import (
    examples,
    json_option,
    own_spaces_option,
    standby_option,
    storage_option,
    store_option,
)
from tilescout.experiments.commands.outputs import check_result, console_beside, write_result
from tilescout.experiments.commands.resuming import how_to_finish
from tilescout.experiments.progress import waiting
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.dispatch.bundling import dispatched
from tilescout.search.dispatch.dispatcher import read_dispatcher
from tilescout.search.export.decisions import Choice, Outcome
from tilescout.search.export.from_studies import (
    Decided,
    describe_left_out,
    describe_unfinished,
    make_bundle,
    read_outcomes,
)
from tilescout.search.export.grouped.dispatch import GroupedDispatch, grouped_family
from tilescout.search.export.inductor_lookup_table import lookup_table, write_lookup_table
from tilescout.search.export.ranges import Dispatch, family
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.studies.places import study_store
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import ExportError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import load_templates
from tilescout.spaces.terminal import Grid
from tilescout.spaces.texts import number_of

BUNDLE, LOOKUP = "bundle", "inductor-lookup-table"
RUNS = {Choice.OURS: "our kernel", Choice.ALGORITHM: "the library's algorithm", Choice.LIBRARY: "the library"}


@click.command(
    epilog=examples(
        "tilescout export --out bundle",
        "tilescout export --study gemm_sm90-4096x4096x4096-bf16-h200-live-sandwich-guided-s0 --out bundle",
        "tilescout export --dispatcher .tilescout/dispatchers/gemm_sm90-h200-6144x4096-bf16.json --out bundle",
        "tilescout export --table experts.parquet --out bundle",
        "tilescout export --format inductor-lookup-table --out table.json",
    )
)
@click.option(
    "--study",
    "names",
    multiple=True,
    metavar="NAME|FILE",
    help="A study of the store, a journal, or what tune --json wrote; repeatable. [default: every study of the store, "
    "or none beside dispatchers]",
)
@click.option(
    "--dispatcher",
    "dispatchers",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    help="A dispatcher of a product: its ranges of m go into the bundle. Repeatable.",
)
@click.option(
    "--table",
    "tables",
    type=TABLE,
    multiple=True,
    help="A table of grouped products: its ranges of tokens go into the bundle. Repeatable; tables of the same product "
    "are taken together.",
)
@click.option(
    "--suite",
    "suites",
    multiple=True,
    metavar="NAME[:PHASE]|FILE.toml",
    help="Only problems of this suite, from any study; repeatable.",
)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="What to write: a directory, or a file.")
@click.option(
    "--format",
    "form",
    type=click.Choice([BUNDLE, LOOKUP]),
    default=BUNDLE,
    show_default=True,
    help="A bundle of decisions and kernels, or a table that pins ATen where that was decided.",
)
@own_spaces_option
@store_option
@storage_option
@standby_option
@json_option
def export(
    names: tuple[str, ...],
    suites: tuple[str, ...],
    out: Path,
    form: str,
    dispatchers: tuple[Path, ...],
    tables: tuple[Path, ...],
    own_spaces: tuple[str, ...],
    store: Path,
    storage: str | None,
    standby: bool,
    json_path: Path | None,
) -> None:
    """Write the decisions of searches, with their kernels, for models that torch.compile compiles.

    A kernel is chosen for a problem only if the race at the end of its search proved it as fast as what the library
    runs: ours, or one of the library's own algorithms where that was faster. All other problems stay with the library.
    Studies that can't be exported are named with the reason. A dispatcher adds ranges of m for its product, each with
    the kernel that serves it. A table of grouped products adds ranges of tokens for each of them.
    """
    check_result(json_path)
    named = load_templates(own_spaces)
    wanted = {problem for name in suites for problem in find_suite(name).parsed(GemmProblem.parse)}
    if (dispatchers or tables) and form != BUNDLE:
        raise ExportError("ranges of sizes go into a bundle: a table of TorchInductor's pins single problems")
    read, console = [read_dispatcher(path) for path in dispatchers], console_beside(json_path)
    only = bool(read or tables) and not names and not suites
    decided = Decided([], {}) if only else read_outcomes(names, studies(store, storage), named)
    outcomes = decided.outcomes
    if suites:
        outcomes = [outcome for outcome in outcomes if outcome.problem in wanted]
        if not outcomes:
            raise ExportError(f"no study of a problem of {', '.join(suites)} ended: run tilescout tune for each first")
        problems = number_of(len(wanted), "problem")
        console.print(f"tuned: {len(outcomes)} of {problems} of {', '.join(suites)}", highlight=False)
    if decided.left_out:
        left_out = f"can't be exported: {describe_left_out(decided.left_out)}"
        console.say(left_out)
    if decided.unfinished:
        todo = how_to_finish(decided.unfinished, study_store(studies(store, storage)).names())
        console.say(f"left out: {describe_unfinished(decided.unfinished)}: {todo}")
    if form == BUNDLE:
        kernels = ArtifactStore(artifacts(store), to_read=True)
        with waiting("choose kernels, and compile those that the store lacks"):
            grouped = grouped_of_tables([Table.read(path, named) for path in tables], kernels, named, standby)
            ranged = dispatched(read, kernels, named, standby)
            bundle = make_bundle(outcomes, kernels, out, named, ranged, grouped, standby)
        algorithms = len(bundle.chosen) - len(bundle.ours)
        others = f"{algorithms} to named algorithms of the library, " if algorithms else ""
        if outcomes:
            console.print(_shown(outcomes))
        write_result(json_path, _records(outcomes))
        for each in bundle.dispatches:
            console.say(_ranges(each))
        for product in bundle.grouped:
            console.say(ranges_of_tokens(product))
        console.say(
            f"{out}: {len(bundle.ours)} of {number_of(len(bundle.decisions), 'problem')} to our kernels, {others}"
            f"{number_of(len(bundle.kernels), 'kernel')} for {bundle.arch}, bundle {bundle.digest[:12]}"
        )
        return
    table: dict[str, list[dict[str, str]]] = {}
    for device in sorted({outcome.device for outcome in outcomes}):
        own = [outcome for outcome in outcomes if outcome.device == device]
        table.update(lookup_table(own, find_device(device).product))
    write_lookup_table(out, table)
    console.print(_shown(outcomes))
    write_result(json_path, _records(outcomes))
    console.say(f"{out}: {number_of(len(table), 'problem')} pinned to ATen")


def _ranges(dispatch: Dispatch) -> str:
    """The ranges of a product, in a line."""
    ours = sum(bool(each.kernel) for each in dispatch.ranges)
    slowest = f", at measured m at most {dispatch.over_library:.3f} of its time" if dispatch.over_library else ""
    return (
        f"{family(dispatch.problem)}: {number_of(len(dispatch.ranges), 'range')} of m, {ours} of them to our kernels "
        f"and the others to the library{slowest}"
    )


def ranges_of_tokens(dispatch: GroupedDispatch) -> str:
    """The ranges of a grouped product, in a line."""
    ours = [each for each in dispatch.ranges if each.kernel]
    proven = sum(each.proven for each in ours)
    return (
        f"{grouped_family(dispatch.problem)}: {number_of(len(dispatch.ranges), 'range')} of tokens, "
        f"{len(ours)} of them to our kernels: {proven} proven at all measured numbers of tokens and routings in them, "
        f"{dispatch.over_library:.3f} of the library's time or less, and {len(ours) - proven} between such numbers, "
        "by an estimate"
    )


def _shown(outcomes: Sequence[Outcome]) -> Grid:
    table = Grid()
    for heading in ("problem", "runs"):
        table.add_column(heading, no_wrap=True)
    for heading in ("why", "configuration"):
        table.add_column(heading, overflow="fold")
    for outcome in outcomes:
        configuration = str(outcome.configuration) if outcome.configuration is not None else ""
        table.add_row(str(outcome.problem), _runs(outcome), outcome.evidence.reason, configuration)
    return table


def _records(outcomes: Sequence[Outcome]) -> list[dict[str, object]]:
    return [
        {
            "problem": str(outcome.problem),
            "device": outcome.device,
            "runs": _runs(outcome),
            "why": outcome.evidence.reason,
            "configuration": dict(outcome.configuration) if outcome.configuration is not None else None,
        }
        for outcome in outcomes
    ]


def _runs(outcome: Outcome) -> str:
    return RUNS[outcome.choice]
