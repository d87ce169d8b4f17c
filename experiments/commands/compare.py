"""``tilescout compare``: search strategies side by side on recorded tables."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tilescout.experiments.commands.options import check_writable, collected, examples, json_option, store_option
from tilescout.experiments.compare.held_out import FOLDER
from tilescout.experiments.compare.play import (
    Case,
    FinishedRuns,
    Trace,
    check_contenders,
    open_case,
    played_for,
    run_all,
    runs_of,
)
from tilescout.experiments.compare.processes import processes_option
from tilescout.experiments.compare.report import log_comparison, print_comparison, write_comparison
from tilescout.experiments.compare.result import compare as compare_traces
from tilescout.search.build.cores import available_cores
from tilescout.search.tables.shipped import shipped_tables
from tilescout.search.tables.table import Table
from tilescout.spaces.errors import TableError

DEFAULT_SAMPLERS = "random,tpe,lfbo"
WIDTH = 140
"""Characters a line where the output is not a terminal."""


@dataclass(frozen=True)
class CompareRequest:
    """The parameters of the command; its help text says what each means."""

    tables: tuple[Path, ...]
    problems: tuple[str, ...]
    samplers: str
    trials: int
    seeds: int
    processes: int | None
    timeout: float
    out: Path | None
    resume: bool
    store: Path
    mlflow_uri: str | None
    json_path: Path | None


@click.command(
    epilog=examples(
        "tilescout compare --samplers random,tpe,guided --trials 60 --seeds 20",
        "tilescout compare --samplers tpe,lfbo:copies=5 --problem 512x512x512:bf16 --seeds 3",
        "tilescout compare --table convolution.parquet --samplers lfbo,kernel_tuner.hybrid_vndx --resume",
    )
)
@click.option(
    "--table", "tables", multiple=True, type=click.Path(path_type=Path), help="Repeatable. [default: the shipped ones]"
)
@click.option("--problem", "problems", multiple=True, metavar="NAME", help="Only this problem; repeatable.")
@click.option(
    "--samplers",
    default=DEFAULT_SAMPLERS,
    show_default=True,
    metavar="A,B,...",
    help="Samplers, kernel_tuner.STRATEGY, ranking.NAME or ranking.FILE.json, each with :OPTION=VALUE behind it.",
)
@click.option("--trials", type=click.IntRange(min=1), default=200, show_default=True, help="Trials a search.")
@click.option("--seeds", type=click.IntRange(min=1), default=20, show_default=True, help="Searches a problem.")
@processes_option
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=3600.0, show_default=True, help="Seconds of a search at most."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="[default: compare in the store]")
@click.option("--resume", is_flag=True, help="Keep the searches that the folder has.")
@store_option
@click.option("--mlflow", "mlflow_uri", metavar="URI", help="MLflow server. [default: a SQLite file in the store]")
@json_option
@collected(CompareRequest)
def compare(asked: CompareRequest) -> None:
    """Compare search strategies on recorded tables.

    Every strategy searches every problem with every seed, on all cores, from nothing: the default configuration is not
    given to it. Scores are those of Willemsen et al.: 0 is what random search is expected to reach, 1 the table's best
    from the first trial on.
    """
    from tilescout.search.tracking import default_store

    if asked.json_path is not None:
        check_writable(asked.json_path)
    names = [name.strip() for name in asked.samplers.split(",") if name.strip()]
    models = (asked.store / "models" / FOLDER).absolute()
    contenders = check_contenders(names, models)
    cases = find_cases(asked.tables or shipped_tables(), asked.problems)
    truths = {case: open_case(case)[0] for case in cases}
    out = asked.out or asked.store / "compare"
    finished = FinishedRuns(out / "runs.jsonl", asked.resume)
    runs = runs_of(contenders, cases, asked.trials, asked.seeds)
    fixed = [contender.name for contender in contenders if contender.deterministic]
    played = list(dict.fromkeys(played_for(run, fixed) for run in runs))
    workers = asked.processes or available_cores()
    for contender in contenders:
        for table in dict.fromkeys(case.table for case in cases):
            contender.prepare(Path(table), [case.problem for case in cases if case.table == table], workers)
    console = Console(stderr=True)
    with finished, _progress(console) as progress:
        left = finished.left(played)
        task = progress.add_task("", total=len(left))

        def show(trace: Trace) -> None:
            progress.update(task, advance=1, description=trace.run.contender)

        finished.take(run_all(left, min(workers, max(len(left), 1)), asked.timeout, models), show)
    latest = {trace.run: trace for trace in finished.traces}
    traces = [replace(latest[played_for(run, fixed)], run=run) for run in runs]
    comparison = compare_traces(truths, traces, asked.trials, asked.seeds)
    write_comparison(comparison, out)
    print_comparison(comparison, Console(width=None if sys.stdout.isatty() else WIDTH))
    if asked.json_path is not None:
        asked.json_path.write_text(json.dumps(comparison.to_dict(), indent=1) + "\n")
    uri, root = (asked.mlflow_uri, None) if asked.mlflow_uri else default_store(asked.store)
    about = {
        "name": f"{len(names)} strategies, {len(cases)} problems",
        "samplers": ", ".join(names),
        "tables": ", ".join(sorted({case.table for case in cases})),
        "trials": str(asked.trials),
        "seeds": str(asked.seeds),
    }
    log_comparison(comparison, out, about, uri, root)
    console.print(f"figures, plots and every search: {out}", highlight=False, soft_wrap=True)


def find_cases(tables: Sequence[Path], problems: Sequence[str]) -> list[Case]:
    """The problems of some tables, all or those named.

    Raises
    ------
    TableError
        If a table can't be read, a named problem is in none, or nothing is left.
    """
    cases = []
    for path in tables:
        table = Table.read(path)
        cases += [Case(str(path.absolute()), table.card.sha256, str(problem)) for problem in table.problems]
    held = [case.problem for case in cases]
    missing = [name for name in problems if name not in held]
    if missing:
        raise TableError(f"no table holds {missing[0]}, held are {', '.join(dict.fromkeys(held))}")
    chosen = [case for case in cases if not problems or case.problem in problems]
    if not chosen:
        raise TableError("there is no table to compare on: name one with --table")
    return chosen


def _progress(console: Console) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console)
