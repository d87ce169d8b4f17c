"""``tilescout tune``: search for the fastest configuration."""

import json
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.options import (
    artifacts,
    check_writable,
    json_option,
    problem_option,
    seed_option,
    storage_option,
    store_option,
    studies,
)
from tilescout.experiments.printing import print_result
from tilescout.experiments.sources import make_evaluator, named_template
from tilescout.search.loop import Budget
from tilescout.search.records import StudyInfo, TrialRecord
from tilescout.search.samplers import SAMPLERS, check_sampler
from tilescout.search.tune import SearchInterrupted, TuneOptions
from tilescout.search.tune import tune as run_tune
from tilescout.spaces.errors import DeviceError, StoreError
from tilescout.spaces.problems import Problem

DEFAULT_TRIALS = 64


@click.command()
@click.argument("space")
@problem_option
@click.option("--device", default="auto", show_default=True, metavar="auto|cuda[:N]|replay", help="Measure or replay.")
@click.option("--table", type=click.Path(path_type=Path), help="Table to replay. [default: the shipped one]")
@click.option("--sampler", default="tpe", show_default=True, metavar="NAME", help=f"One of {', '.join(SAMPLERS)}.")
@click.option("--model", type=click.Path(path_type=Path), help="Cost model of guided. [default: the shipped one]")
@click.option(
    "--trials", type=click.IntRange(min=1), help=f"Trials of the study. [default: {DEFAULT_TRIALS} if no other limit]"
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
    problem: str,
    device: str,
    table: Path | None,
    sampler: str,
    model: Path | None,
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
    """Search SPACE for the fastest configuration of a problem.

    Every trial is stored at once and logged to MLflow (`tilescout ui` shows it). Where there is no GPU, a recorded
    table answers instead, and the output says so.
    """
    from tilescout.search.tracking import MlflowTracker, default_store

    if device not in ("auto", "cuda", "replay") and not (device.startswith("cuda:") and device[5:].isdigit()):
        raise DeviceError(f"unknown device {device!r}, allowed are auto, cuda, cuda:N and replay")
    if json_path is not None:
        check_writable(json_path)
    if trials is None and gpu_seconds is None and seconds is None:
        trials = DEFAULT_TRIALS
    template = named_template(space, table)
    check_sampler(sampler)
    budget = Budget(trials, gpu_seconds, seconds, whole_budget)
    options = TuneOptions(sampler, seed, budget, studies(store, storage), resume)
    if model is not None:
        options = replace(options, settings={"model": model})
    uri, root = (mlflow_uri, None) if mlflow_uri else default_store(store)
    console = Console(stderr=True)

    with make_evaluator(template, template.parse(problem), device, table, artifacts(store)) as evaluator:
        console.print(evaluator.provenance.description, highlight=False, soft_wrap=True)
        if sampler == "guided" and evaluator.provenance.kind == "replay":
            _warn_of_hindsight(model or shipped_model(space, evaluator.device.name), evaluator.space.problem, console)
        with _progress(console) as progress:
            task = progress.add_task("", total=trials)
            best = float("inf")

            def show(trial: TrialRecord) -> None:
                nonlocal best
                best = min(best, trial.measurement.time_us)
                progress.update(task, advance=1, description=f"best {best:.2f} µs")

            def make_tracker(info: StudyInfo, run_id: str | None) -> MlflowTracker:
                return MlflowTracker(uri, root, info, run_id)

            try:
                result = run_tune(template, evaluator, options, make_tracker, show)
            except SearchInterrupted as interrupted:
                print_result(interrupted.result, Console())
                raise
    print_result(result, Console())
    where = f"--mlflow {mlflow_uri}" if mlflow_uri else f"--store {store}"
    hint = f"study {result.info.name}; look at the trials with: tilescout ui {where}"
    console.print(hint, highlight=False, soft_wrap=True)
    if json_path is not None:
        json_path.write_text(json.dumps(result.to_dict(), indent=2) + "\n")
    if result.not_tracked:
        raise StoreError(f"{result.not_tracked}; tune --resume delivers the rest")


def _warn_of_hindsight(model: Path | None, problem: Problem, console: Console) -> None:
    """Say so if the model was trained on what is replayed."""
    if model is not None and str(problem) in load_model(model)[1].problems:
        console.print(
            "the cost model was trained on measurements of this very problem: what it finds here says nothing of how "
            "well it searches; `tilescout train --without` and --model make a fair test",
            highlight=False,
            soft_wrap=True,
        )


def _progress(console: Console) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console)
