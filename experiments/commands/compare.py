"""``tilescout compare``: search strategies side by side on recorded tables."""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click

from tilescout.experiments.commands.completion import TABLE, complete_samplers
from tilescout.experiments.commands.options import (
    Finite,
    Folder,
    Once,
    collected,
    examples,
    json_option,
    mlflow_option,
    processes_option,
    shown_at,
    store_option,
    typed_samplers,
)
from tilescout.experiments.commands.outputs import check_mlflow, check_result, console_beside, write_result
from tilescout.experiments.compare.api import DEFAULT_SEEDS, DEFAULT_TIMEOUT, DEFAULT_TRIALS
from tilescout.experiments.compare.api import compare as run_comparison
from tilescout.experiments.compare.contenders import OTHERS
from tilescout.experiments.compare.held_out import held_out_folder
from tilescout.experiments.compare.play import Trace
from tilescout.experiments.compare.report import log_comparison, print_comparison
from tilescout.experiments.progress import progress_bar, waiting
from tilescout.spaces.terminal import Console
from tilescout.spaces.texts import number_of

DEFAULT_SAMPLERS = "random,tpe,lfbo"


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
    anew: bool
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
    "--table", "tables", multiple=True, type=TABLE, help="Table to search; repeatable. [default: the shipped ones]"
)
@click.option("--problem", "problems", multiple=True, metavar="NAME", help="Only this problem; repeatable.")
@click.option(
    "--samplers",
    cls=Once,
    instead="several stand in one list, A,B",
    callback=typed_samplers,
    default=DEFAULT_SAMPLERS,
    show_default=True,
    metavar="A,B,...",
    shell_complete=complete_samplers,
    help=f"Samplers, {OTHERS}, each with :OPTION=VALUE behind it; :seeds=N is the most searches per problem. A sampler "
    "may be your own, module:Class.",
)
@click.option(
    "--trials", type=click.IntRange(min=1), default=DEFAULT_TRIALS, show_default=True, help="Trials per search."
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    default=DEFAULT_SEEDS,
    show_default=True,
    help="Searches per problem, each with a seed of its own.",
)
@processes_option
@click.option(
    "--timeout",
    type=Finite(min=1),
    default=DEFAULT_TIMEOUT,
    show_default=True,
    help="Most seconds for a search.",
)
@click.option(
    "--out",
    type=Folder(),
    help="Folder to write to. [default: compare in the store]",
)
@click.option("--resume", is_flag=True, help="Keep the searches that the folder has.")
@click.option("--anew", is_flag=True, help="Drop the searches that the folder has.")
@store_option
@mlflow_option
@json_option
@collected(CompareRequest)
def compare(asked: CompareRequest) -> int:
    """Compare search strategies on recorded tables.

    Every strategy searches every problem with every seed, on all cores. None is told the default configuration. The
    scores are those of Willemsen et al.: 0 is the expected result of random search, 1 the table's best from the first
    trial on. The exit code is 1 if every search failed.
    """
    from tilescout.search.tracking import default_store

    if asked.resume and asked.anew:
        raise click.UsageError("give one of --resume and --anew")
    check_result(asked.json_path)
    check_mlflow(asked.mlflow_uri, asked.store)
    names = [name.strip() for name in asked.samplers.split(",") if name.strip()]
    out = asked.out or asked.store / "compare"
    console = Console(stderr=True)
    progress = progress_bar()
    with ExitStack() as shown:

        def begin(searches: int) -> None:  # training models before has a bar of its own
            progress.add_task("start", total=searches)
            shown.enter_context(progress)

        def show(trace: Trace) -> None:
            (task,) = progress.task_ids
            progress.update(task, advance=1, description=trace.run.contender)
            if progress.finished:
                progress.update(task, description="all searched; intervals, tests and plots take some seconds")

        comparison = run_comparison(
            names,
            tables=asked.tables,
            problems=asked.problems,
            trials=asked.trials,
            seeds=asked.seeds,
            processes=asked.processes,
            timeout=asked.timeout,
            out=out,
            resume=asked.resume,
            anew=asked.anew,
            models=held_out_folder(asked.store),
            on_begin=begin,
            on_search=show,
        )
    print_comparison(comparison, console_beside(asked.json_path))
    write_result(asked.json_path, comparison.to_dict())
    uri, root = (asked.mlflow_uri, None) if asked.mlflow_uri else default_store(asked.store)
    about = {
        "name": f"{number_of(len(names), 'strategy', 'strategies')}, {number_of(len(comparison.cases), 'problem')}",
        "samplers": ", ".join(names),
        "tables": ", ".join(comparison.tables),
        "trials": str(asked.trials),
        "seeds": str(asked.seeds),
    }
    with waiting("log to MLflow"):
        page = log_comparison(comparison, out, about, uri, root)
    console.say(f"figures, plots and every search: {out}")
    console.say(shown_at(page, asked.mlflow_uri, asked.store))
    return 0 if any(standing.runs for standing in comparison.standings) else 1
