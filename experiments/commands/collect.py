"""``tilescout collect``: measure many configurations on many problems, into a table."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short

import click
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bars
from rich.text import Text

from tilescout.experiments.commands.completion import SUBSPACE, TABLE, complete_suites
from tilescout.experiments.commands.options import (
    Once,
    cluster_option,
    collected,
    examples,
    gpus_option,
    json_option,
    measured_on_option,
    mlflow_option,
    objective_option,
    seed_option,
    shown_at,
    signature_option,
    space_argument,
    standby_option,
    store_option,
    suite_problems,
)
from tilescout.experiments.commands.outputs import check_apart, check_mlflow, check_result, console_beside, write_result
from tilescout.experiments.commands.printing import library_best_cell
from tilescout.experiments.commands.tables import record_of
from tilescout.experiments.progress import LineProgress, waiting
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.campaigns.campaign import CampaignOptions, Progress
from tilescout.search.campaigns.collection import check_unfinished, journal_path
from tilescout.search.campaigns.collection import collect as run_campaign
from tilescout.search.campaigns.plan import make_plan
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.selection import make_engine
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.shipped import named_template
from tilescout.search.tables.table import SUFFIX, Table, card_path
from tilescout.spaces.errors import StoreError, TableError, one_line
from tilescout.spaces.inputs import SMALL, parse_json, read_regular
from tilescout.spaces.knobs import Configuration, Knob, listed_configurations
from tilescout.spaces.problems import Problem
from tilescout.spaces.subspace import SubSpace, parse_restrictions, read_subspace
from tilescout.spaces.terminal import Console, Grid
from tilescout.spaces.texts import number_of, plain

PRUNE = CampaignOptions().prune


def parse_prune(context: click.Context, parameter: click.Parameter, text: str) -> float | None:
    """Parse the factor, or None for ``full``."""
    if text == "full":
        return None
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 1 < ratio < math.inf:
        raise click.BadParameter(f"{text!r} is neither full nor a ratio above 1")
    return ratio


@dataclass(frozen=True)
class CollectRequest:
    """The parameters of the command; its help text says what each means."""

    space: str
    suite: str
    signature: str | None
    exhaustive: bool
    sample: int | None
    only: tuple[str, ...]
    subspace: Path | None
    also: Path | None
    prune: float | None
    compile_first: bool
    races: int
    device: str
    gpus: int | None
    cluster: str | None
    table: Path | None
    objective: Objective | None
    standby: bool
    seed: int
    store: Path
    mlflow_uri: str | None
    out: Path
    json_path: Path | None


@click.command(
    epilog=examples(
        "tilescout collect gemm_sm90 --suite squares --sample 500 --out squares.parquet",
        "tilescout collect gemm_sm90 --suite ground-truth --sample 4000 --cluster auto --out truth.parquet",
        "tilescout collect gemm_sm90 --suite odd --exhaustive --only cluster_m=1 --only cluster_n=1 --out odd.parquet",
    )
)
@space_argument
@click.option(
    "--suite",
    cls=Once,
    required=True,
    shell_complete=complete_suites,
    help="Problems: NAME, NAME:PHASE or FILE.toml; `tilescout suites` lists them.",
)
@signature_option
@click.option("--exhaustive", is_flag=True, help="Measure every legal configuration.")
@click.option(
    "--sample", type=click.IntRange(min=1), help="This many at random, with every value of every knob and all defaults."
)
@click.option(
    "--only",
    multiple=True,
    metavar="KNOB=VALUE[,...]",
    help="Only these values of a knob; max is the largest legal one. Repeatable.",
)
@click.option(
    "--subspace",
    type=SUBSPACE,
    metavar="NAME|FILE.toml",
    help="Only what is in one of the parts that a file lists; grouped_gemm_sm90-subspace is shipped.",
)
@click.option(
    "--also",
    type=click.Path(path_type=Path),
    help="Also measure those of a table (.parquet) or a JSON list; --sample counts them. A JSON object has lists of "
    "single problems.",
)
@click.option(
    "--prune",
    metavar="RATIO|full",
    default=f"{PRUNE:g}",
    show_default=True,
    callback=parse_prune,
    help="Don't time what is this many times slower than the best so far; full times everything.",
)
@click.option(
    "--compile-first", is_flag=True, help="Measure once all is compiled: it takes longer, but no compiler disturbs it."
)
@click.option(
    "--races",
    type=click.IntRange(min=0),
    default=CampaignOptions().finals,
    show_default=True,
    help="Most races among the fastest rows of a problem.",
)
@measured_on_option
@gpus_option
@cluster_option
@click.option("--table", type=TABLE, help="Table to replay. [default: the shipped one]")
@objective_option
@seed_option
@standby_option
@store_option
@mlflow_option
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The .parquet file to write."
)
@json_option
@collected(CollectRequest)
def collect(asked: CollectRequest) -> None:
    """Measure configurations of SPACE on every problem of a suite, on all GPUs, into a table.

    Every outcome is written to a journal beside the table at once, and the same command resumes an interrupted
    campaign. A configuration that is slower than the best so far by the factor of --prune is not timed; its row is
    marked pruned. At the end the fastest rows of each problem race each other, so that the best is no lucky draw.
    """
    check_result(asked.json_path)
    if asked.exhaustive == (asked.sample is not None):
        raise click.UsageError("give one of --exhaustive and --sample N")
    if asked.only and asked.subspace:
        raise click.UsageError("give --only or --subspace, not both")
    if asked.out.suffix != SUFFIX:
        raise TableError(f"a table is a {SUFFIX} file, not {asked.out}")
    if not asked.out.parent.is_dir():
        raise StoreError(f"can't write {asked.out}: its folder does not exist")
    check_mlflow(asked.mlflow_uri, asked.store)
    if asked.json_path is not None and asked.json_path.resolve() == card_path(asked.out).resolve():
        raise StoreError(f"{asked.json_path} becomes the card of the table {asked.out}: choose another file for --json")
    for given in (asked.also, asked.table):
        if given is not None:
            check_apart(given, asked.out, card_path(asked.out))
    check_unfinished(asked.out)
    template = named_template(asked.space, asked.table)
    problems = suite_problems(template, asked.suite, asked.signature)
    options = CampaignOptions(prune=asked.prune, compile_first=asked.compile_first, seed=asked.seed, finals=asked.races)
    # By the first pilot alone: a second one would cost as much as it saves where each row is to be known.
    protocol = ProtocolOptions(prune=math.inf, prune_at_once=math.inf if asked.prune is None else asked.prune)
    live = LiveOptions(CompileOptions(standby=asked.standby), protocol)
    console = Console(stderr=True)
    with make_engine(
        template,
        problems[0],
        artifacts(asked.store),
        device=asked.device,
        cluster=asked.cluster,
        gpus=asked.gpus,
        table=asked.table,
        options=live,
        objective=asked.objective,
    ) as engine:
        console.say(engine.provenance.description)
        spaces = [engine.space(problem) for problem in problems]
        defaults = [engine.default(problem) for problem in problems]
        plan = make_plan(
            spaces,
            defaults,
            asked.sample,
            asked.seed,
            _within(asked.only, asked.subspace, spaces[0].knobs),
            *_given(asked.also, problems),
        )
        console.say(f"{plan.how}; {number_of(len(problems), 'problem')}, {number_of(plan.rows, 'row')}")
        if journal_path(asked.out).exists():
            console.say(f"going on with {journal_path(asked.out)}")
        with _bars(console) as bars:
            task = bars.add_task("", total=plan.rows, doing="")

            def show(progress: Progress) -> None:
                if bars.tasks[0].completed == 0:  # what was there before says nothing of the rate
                    bars.reset(task, completed=progress.rows)
                compiling = [f"{progress.compiling:,} to compile"] if progress.compiling else []
                raced = [f"{progress.races} raced"] if progress.races else []
                bars.update(task, completed=progress.rows, doing=", ".join(compiling + raced))

            found = run_campaign(engine, plan, asked.out, options, show)
    _print_best(found, console_beside(asked.json_path))
    write_result(asked.json_path, record_of(found))
    from tilescout.experiments.commands.collect_log import log_campaign

    with waiting("log to MLflow"):
        params = {"suite": asked.suite, "sample": asked.sample or "all", "seed": asked.seed, "prune": asked.prune}
        page = log_campaign(found, asked.mlflow_uri or asked.store, params).page
    console.say(shown_at(page, asked.mlflow_uri, asked.store))


def _within(only: tuple[str, ...], subspace: Path | None, knobs: tuple[Knob, ...]) -> SubSpace | None:
    if subspace:
        return read_subspace(subspace, knobs)
    return parse_restrictions(only, knobs) if only else None


def _given(
    also: Path | None, problems: Sequence[Problem]
) -> tuple[Sequence[Configuration], Sequence[Sequence[Configuration]]]:
    """The configurations of a file, each once: those for all problems, and those of each problem alone."""
    if also is None:
        return (), ()
    if also.suffix == SUFFIX:
        table = Table.read(also)
        return list(dict.fromkeys(table.configuration(row) for row in range(len(table)))), ()
    try:
        found = parse_json(read_regular(also, 16 * SMALL))
        if not isinstance(found, dict):
            return listed_configurations(found), ()
        if unknown := sorted(set(found) - set(map(str, problems))):
            raise ValueError(f"{short(unknown[0])} is no problem of the suite")
        return (), [listed_configurations(found.get(str(problem), [])) for problem in problems]
    except OSError as error:
        raise StoreError(f"can't read {also}: {error.strerror}") from error
    except ValueError as error:
        raise StoreError(f"can't read {also} as configurations: {one_line(error)}") from error


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f} rows/s" if task.speed else "")


def _bars(console: Console) -> Bars:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[doing]}"),
    )
    kind = Bars if console.is_terminal else LineProgress
    return kind(*columns, console=console, speed_estimate_period=60)


def _print_best(table: Table, console: Console) -> None:
    """Print the best and the default of each problem."""
    grid = Grid(title=str(table), title_justify="left")
    grid.add_column("problem", no_wrap=True)
    baselines = table.card.baselines
    listed = any(baseline.library_best is not None for baseline in baselines.values())
    speeds = ("best", "default", *["library's best"] * listed)
    for heading in (f"{table.card.library} µs", *speeds, "rows", "pruned", "failed"):
        grid.add_column(heading, justify="right")
    for summary in table.summarise():
        best = f"{1 / summary.best_timing.ratio:.3f}" if summary.best_timing else "none"
        default = f"{1 / summary.default_timing.ratio:.3f}" if summary.default_timing else "none"
        counts = (summary.rows, summary.pruned, summary.failed)
        library_best = [library_best_cell(baselines[summary.problem])] * listed
        grid.add_row(str(summary.problem), f"{summary.library_us:.2f}", best, default, *library_best, *map(str, counts))
    console.print(grid)
    console.say(f"speeds are over {table.card.library}'s; {table.card.selection}")
    console.say(f"table: {plain(table.path)}")
