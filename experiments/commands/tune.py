"""``tilescout tune``: search for the fastest configuration."""

import logging
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import click

from tilescout.experiments.commands.completion import TABLE, complete_samplers, complete_suites
from tilescout.experiments.commands.options import (
    Finite,
    Named,
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
    signature_option,
    space_argument,
    standby_option,
    storage_option,
    store_option,
    typed_samplers,
)
from tilescout.experiments.commands.outputs import write_result
from tilescout.experiments.commands.tune_request import TuneRequest
from tilescout.experiments.compare.rankings import RANKINGS, ranked
from tilescout.search import tuning
from tilescout.search.api import DEFAULT_TRIALS
from tilescout.search.api import tune as run_tune
from tilescout.search.build.early import hold_for_next
from tilescout.search.measure.library_best import CANDIDATES
from tilescout.search.samplers import SAMPLERS
from tilescout.spaces.peers import peer_names

if TYPE_CHECKING:
    from tilescout.search.studies.records import StudyResult

_LOG = logging.getLogger(__name__)
_SEARCHES = "tilescout.search.tuning.study"


class _TuneCommand(click.Command):
    """Its help describes the samplers too, whose classes say what they do."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        from tilescout.experiments.commands.samplers import summary_of  # what a search needs less

        super().format_options(context, formatter)
        with formatter.section("Samplers"):
            formatter.write_dl([(name, summary_of(name)) for name in SAMPLERS])


@click.command(
    cls=_TuneCommand,
    epilog=examples(
        "tilescout tune gemm_sm90 --problem 4096x4096x4096:bf16",
        "tilescout tune gemm_sm90 --problem 16x4096x4096:bf16 --sampler guided --device replay",
        "tilescout tune gemm_sm90 --problem 4096x4096x4096:bf16 --sampler gp --gpu-seconds 2 --json result.json",
        "tilescout tune gemm_sm90 --problem 4096x4096x4096:bf16 --trials 200 --resume",
        "tilescout tune gemm_sm90 --suite llama3-8b:decode --sampler guided",
    ),
)
@space_argument
@click.option(
    "--problem",
    cls=Once,
    instead="a suite in a file (--suite FILE.toml) names several",
    help="What to compute, for example 4096x4096x4096:bf16.",
)
@click.option(
    "--suite",
    cls=Once,
    shell_complete=complete_suites,
    help="Tune all problems of a suite together: NAME, NAME:PHASE or FILE.toml.",
)
@signature_option
@measured_on_option
@gpus_option
@cluster_option
@click.option("--table", type=TABLE, help="Table to replay. [default: the shipped one]")
@click.option(
    "--skip-unrecorded", is_flag=True, help="In a replay, leave out the problems of a suite that the table lacks."
)
@objective_option
@click.option(
    "--library-kernels",
    type=click.IntRange(min=1),
    default=CANDIDATES,
    show_default=True,
    help="Kernels of the library to time first; the fastest may be the answer. More than the library lists needs a "
    "cost model.",
)
@click.option(
    "--peers",
    multiple=True,
    type=click.Choice(peer_names()),
    help="Also tune what others run, and race it against the best; triton is TorchInductor's. Up to a minute.",
)
@click.option(
    "--complement/--no-complement",
    default=True,
    show_default=True,
    help="Also search a second space whose kernels may be faster: gemm_streamk_sm90 beside gemm_sm90.",
)
@click.option(
    "--sampler",
    cls=Once,
    instead="`tilescout compare` plays several",
    callback=typed_samplers,
    metavar="NAME[:OPTION=VALUE...]",
    help=f"The strategy: one of {', '.join(SAMPLERS)}, or your own as module:Class; options follow it, as in "
    "lfbo:copies=5. `tilescout samplers` describes them. [default: guided, which starts from a cost model; guided-cold "
    "where there is none]",
    shell_complete=complete_samplers,
)
@click.option(
    "--model",
    type=Named(),
    help="Cost model of guided: a file, or a folder that has one of each space, as `tilescout train` writes them. "
    "[default: the shipped one]",
)
@click.option("--first", metavar="NAME", help=f"Try this list after the default: {', '.join(RANKINGS)} or a JSON file.")
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    help=f"Trials of the study, or of the suite. [default: {DEFAULT_TRIALS} per problem if there is no other limit]",
)
@click.option("--gpu-seconds", type=Finite(min=0, min_open=True), help="GPU seconds of the study.")
@click.option("--seconds", type=Finite(min=0, min_open=True), help="Seconds of this run.")
@click.option("--whole-budget", is_flag=True, help="Use up the limits, even if the sampler would stop early.")
@seed_option
@click.option("--resume", is_flag=True, help="Continue the newest study of the same kind, or join it if it still runs.")
@standby_option
@store_option
@storage_option
@mlflow_option
@json_option
@collected(TuneRequest)
def tune(asked: TuneRequest) -> int:
    """Search SPACE for the fastest configuration of a problem, or of every problem of a suite.

    Every trial is stored at once and logged to MLflow; `tilescout ui` shows it. Without a GPU the search is replayed
    from a recorded table that holds the problem (`tilescout tables` lists them), and the output says so. The limits of
    a suite are for all its problems together; GPU time goes to the problem that is expected to gain the most. The exit
    code is 1 if every trial failed.
    """
    asked.check()
    results = _tune_suite(asked) if asked.suite is not None else [_tune_one(asked)]
    return int(not any(trial.measurement.ok for result in results for trial in result.trials))


def _tune_suite(asked: TuneRequest) -> "Sequence[StudyResult]":
    from tilescout.experiments.commands.tune_suite import tune_together  # what one problem needs less

    return tune_together(asked)


def _tune_one(asked: TuneRequest) -> "StudyResult":
    assert asked.problem is not None
    printed: list[str] = []

    def show(found: "StudyResult") -> None:
        from tilescout.experiments.commands.printing import print_result

        printed.append(found.info.space)
        print_result(found, asked.console)
        hold_for_next()  # MLflow takes seconds, and the GPU is not needed any more

    try:
        result = run_tune(
            asked.space,
            asked.problem,
            sampler=asked.sampler,
            seed=asked.seed,
            budget=asked.budget(problems=1),
            settings=asked.settings,
            first=partial(ranked, name=asked.first) if asked.first is not None else None,
            device=asked.device,
            cluster=asked.cluster,
            gpus=asked.gpus,
            table=asked.table,
            objective=asked.objective,
            live=asked.live,
            library_kernels=asked.library_kernels,
            peers=asked.peers,
            complement=asked.complement,
            store=asked.store,
            storage=asked.storage,
            resume=asked.resume,
            mlflow=asked.mlflow_uri or True,
            progress=True,
            on_result=show,
        )
    except KeyboardInterrupt as interrupted:
        # Its class is of what searches. Where the import of that was cut short, a second one fails half-way.
        if _SEARCHES not in sys.modules or not isinstance(interrupted, tuning.SearchInterrupted):
            raise
        from tilescout.experiments.commands.printing import print_result

        if not interrupted.complete:
            print_result(interrupted.result, asked.console)
        write_result(asked.json_path, interrupted.result.to_dict())
        raise
    if len(printed) > 1:
        asked.console.say(f"the answer is that of {result.info.space}, the faster one of {' and '.join(printed)}")
    _LOG.info("study %s; %s", result.info.name, asked.shown_at(result.page))
    if not (result.page or result.not_tracked):
        _LOG.info("a background process logs it to MLflow within seconds; `tilescout doctor` lists what did not arrive")
    asked.deliver(result.to_dict(), result.not_tracked)
    return result
