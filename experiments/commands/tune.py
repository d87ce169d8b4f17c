"""``tilescout tune``: search for the fastest configuration."""

import json
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from tilescout.experiments.commands.options import (
    check_writable,
    cluster_option,
    examples,
    gpus_option,
    json_option,
    seed_option,
    signature_option,
    space_argument,
    storage_option,
    store_option,
)
from tilescout.experiments.commands.printing import print_result
from tilescout.experiments.commands.tune_suite import Together, tune_together
from tilescout.experiments.compare.rankings import ranked
from tilescout.search.api import DEFAULT_SAMPLER, DEFAULT_TRIALS
from tilescout.search.api import tune as run_tune
from tilescout.search.samplers import SAMPLERS
from tilescout.search.studies.folders import studies
from tilescout.search.tuning.loop import Budget
from tilescout.search.tuning.study import SearchInterrupted, TuneOptions
from tilescout.spaces.errors import StoreError

_LOG = logging.getLogger(__name__)


@click.command(
    epilog=examples(
        "tilescout tune gemm_sm90 --problem 4096x4096x4096:bf16",
        "tilescout tune gemm_sm90 --problem 16x4096x4096:bf16 --sampler guided --device replay",
        "tilescout tune gemm_sm90 --problem 4096x4096x4096:bf16 --sampler gp --gpu-seconds 2 --json result.json",
        "tilescout tune gemm_sm90 --problem 4096x4096x4096:bf16 --trials 200 --resume",
        "tilescout tune gemm_sm90 --suite llama3-8b:decode --sampler guided",
    )
)
@space_argument
@click.option("--problem", help="What to compute, for example 4096x4096x4096:bf16.")
@click.option("--suite", help="Tune all problems of a suite together: NAME, NAME:PHASE or FILE.toml.")
@signature_option
@click.option("--device", default="auto", show_default=True, metavar="auto|cuda[:N]|replay", help="Measure or replay.")
@gpus_option
@cluster_option
@click.option("--table", type=click.Path(path_type=Path), help="Table to replay. [default: the shipped one]")
@click.option(
    "--sampler",
    default=DEFAULT_SAMPLER,
    show_default=True,
    metavar="NAME[:OPTION=VALUE...]",
    help=f"One of {', '.join(SAMPLERS)}, or your own as module:Class; options behind it, as in lfbo:copies=5.",
    shell_complete=lambda context, parameter, typed: [name for name in SAMPLERS if name.startswith(typed)],
)
@click.option("--model", type=click.Path(path_type=Path), help="Cost model of guided. [default: the shipped one]")
@click.option("--first", metavar="NAME", help="Try this list after the default: quack, heuristics or a JSON file.")
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    help=f"Trials of the study, or of the suite. [default: {DEFAULT_TRIALS} a problem if no other limit]",
)
@click.option("--gpu-seconds", type=click.FloatRange(min=0, min_open=True), help="GPU seconds of the study.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Seconds of this run.")
@click.option("--whole-budget", is_flag=True, help="Go on even when the sampler finds that it is not worth it.")
@seed_option
@click.option("--resume", is_flag=True, help="Go on with the newest study of the same kind, or join it.")
@store_option
@storage_option
@click.option("--mlflow", "mlflow_uri", metavar="URI", help="MLflow server. [default: a SQLite file in the store]")
@json_option
def tune(
    space: str,
    problem: str | None,
    suite: str | None,
    signature: str | None,
    device: str,
    gpus: int | None,
    cluster: str | None,
    table: Path | None,
    sampler: str,
    model: Path | None,
    first: str | None,
    trials: int | None,
    gpu_seconds: float | None,
    seconds: float | None,
    whole_budget: bool,
    seed: int,
    resume: bool,
    store: Path,
    storage: str | None,
    mlflow_uri: str | None,
    json_path: Path | None,
) -> None:
    """Search SPACE for the fastest configuration of a problem, or of every problem of a suite.

    Every trial is stored at once and logged to MLflow (`tilescout ui` shows it). Where there is no GPU, a recorded
    table answers instead, and the output says so. For a suite the limits are those of all its problems together, and
    GPU time goes where the most is still expected to be gained.
    """
    if (problem is None) == (suite is None):
        raise click.UsageError("give one of --problem and --suite")
    if json_path is not None:
        check_writable(json_path)
    where = f"--mlflow {mlflow_uri}" if mlflow_uri else f"--store {store}"
    limits = Budget(trials, gpu_seconds, seconds, whole_budget)
    if suite is not None and first is not None:
        raise click.UsageError("--first is for one problem: a list is of one space, and a suite has many")
    if suite is not None and storage is not None:
        raise click.UsageError("--storage is for one problem: the searches of a suite take turns in one process")
    if suite is not None:
        settings = {"model": model} if model is not None else {}
        options = TuneOptions(sampler, seed, limits, studies(store), resume, settings=settings)
        together = Together(space, suite, signature, device, gpus, cluster, table, store)
        tune_together(together, options, mlflow_uri, json_path)
        _LOG.info("look at the trials with: tilescout ui %s", where)
        return
    assert problem is not None
    if trials is None and gpu_seconds is None and seconds is None:
        limits = replace(limits, trials=DEFAULT_TRIALS)
    try:
        result = run_tune(
            space,
            problem,
            sampler=sampler,
            seed=seed,
            budget=limits,
            settings={"model": model} if model is not None else None,
            first=partial(ranked, name=first) if first is not None else None,
            device=device,
            cluster=cluster,
            gpus=gpus,
            table=table,
            store=store,
            storage=storage,
            resume=resume,
            mlflow=mlflow_uri or True,
            progress=True,
        )
    except SearchInterrupted as interrupted:
        print_result(interrupted.result, Console())
        raise
    print_result(result, Console())
    _LOG.info("study %s; look at the trials with: tilescout ui %s", result.info.name, where)
    if json_path is not None:
        json_path.write_text(json.dumps(result.to_dict(), indent=2) + "\n")
    if result.not_tracked:
        raise StoreError(f"{result.not_tracked}; tune --resume delivers the rest")
