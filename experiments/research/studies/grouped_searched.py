"""Search problems live, and list the fastest kernels of each: what a recorded list lacks, ``grouped peers`` may race.

    python -m tilescout.experiments.research grouped-searched --suite experts.toml --list kernels.json --out found.json
    python -m tilescout.experiments.research grouped peers grouped_gemm_sm90 128x4096x1536x2048:bf16:zipf-1 \
        --configurations kernels.json --finalists 4 --out peers.json

Every problem of the suite is searched alone, in the space and no other, for all of ``--trials``. The list has the
``--best`` kernels of each that were measured the fastest, by one measurement.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from tilescout.experiments.commands.options import suite_problems
from tilescout.experiments.research.runner import GPU, Run, study
from tilescout.experiments.research.studies.tunings_judged import summary
from tilescout.search.engines.selection import make_engine
from tilescout.search.studies.folders import artifacts, studies
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.study import TuneOptions
from tilescout.search.tuning.suite import tune_suite
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.outputs import write_whole
from tilescout.spaces.templates import find_template


def fastest(measured: list[tuple[dict[str, Any], float]], count: int) -> list[Configuration]:
    """So many kernels whose ratio to the library's time is the least."""
    return [Configuration.of(kernel) for kernel, _ in sorted(measured, key=lambda each: each[1])[:count]]


@study(GPU)
@click.option("--suite", required=True, help="The problems.")
@click.option("--space", default="grouped_gemm_sm90", show_default=True, help="The space.")
@click.option("--trials", default=96, show_default=True, help="Trials of each problem.")
@click.option("--best", default=6, show_default=True, help="Kernels of each problem that are listed.")
@click.option("--device", default="cuda", show_default=True, help="As `tune --device` has it.")
@click.option("--list", "listed", type=click.Path(path_type=Path), required=True, help="Write the kernels there.")
def main(run: Run, suite: str, space: str, trials: int, best: int, device: str, listed: Path) -> None:
    """Search every problem, and list the fastest kernels of each."""
    template = find_template(space)
    problems = suite_problems(template, suite, None)
    found, kernels = dict[str, Any](), dict[Configuration, None]()
    with (
        TemporaryDirectory() as name,
        make_engine(template, problems[0], artifacts(Path(name)), device=device, gpus=1) as engine,
    ):
        options = TuneOptions("guided", 0, Budget(trials, whole=True), studies(Path(name)))
        for problem in problems:
            [result] = tune_suite(engine, [problem], options, complement=False)
            of = found[str(problem)] = summary(result)
            kernels |= dict.fromkeys(fastest(of["measured"], best))
            run.keep({"problems": found})
            least = min(ratio for _, ratio in of["measured"])
            print(f"{problem!s:>48}  {least:.3f} of the library's time after {of['trials']} trials", flush=True)
    write_whole(listed, (json.dumps([dict(kernel) for kernel in kernels], indent=1) + "\n").encode())
    print(f"{len(kernels)} kernels are listed")
