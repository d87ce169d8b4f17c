"""Race the best rows of a table, so that "the best" is no lucky draw.

    python -m tilescout.experiments.research race-table gemm_sm90-h200-bf16.parquet --out best.json

For every problem, the fastest configurations of the table and the default run against each other and the library in
interleaved rounds, until the winner is clear (`tilescout.search.measure.race`). Kernels that the store holds are not
compiled again.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilescout.experiments.commands.options import store_option
from tilescout.experiments.research.kernels import CHAINS, finalists
from tilescout.experiments.research.runner import GPU, Run, device_option, study
from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.process import MeasuringProcess
from tilescout.search.measure.protocol import VERSION
from tilescout.search.measure.race import RaceOptions, run_race
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.errors import TableError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template


def race_problem(
    template: KernelTemplate,
    process: MeasuringProcess,
    pool: CompilePool,
    problem: Problem,
    runners: Sequence[Configuration],
) -> dict[str, Any]:
    """The outcome of a race between configurations, the default the last of them, as JSON."""
    library_us = process.prepare(template.workload, str(problem), CHAINS)
    built = [future.result() for future in [pool.submit(configuration) for configuration in runners]]
    jobs = [
        make_job(template, configuration, artifact, problem, library_us, CHAINS)
        for configuration, artifact in zip(runners, built, strict=True)
        if isinstance(artifact, Artifact)
    ]
    if len(jobs) < len(runners) or any(not process.measure(job).ok for job in jobs):
        raise TableError(f"a row of the table for {problem} does not run any more")
    race = run_race(
        range(len(jobs) - 1),
        len(jobs) - 1,
        lambda racing, rounds, pairs, seed: process.race([jobs[at] for at in racing], rounds, pairs, seed),
        RaceOptions(candidates=len(jobs)),
        seed=0,
    )
    return {
        "library_us": library_us,
        "best": dict(runners[race.winner]),
        "speedup_over_library": asdict(race.ratios[race.winner].inverse()),
        "default": dict(runners[-1]),
        "default_over_library": asdict(race.ratios[len(jobs) - 1].inverse()),
        "probability_fastest": race.probability,
        "rounds": race.rounds,
        "raced": [
            {"configuration": dict(runners[at]), "time_over_library": asdict(ratio)}
            for at, ratio in race.ratios.items()
        ],
    }


@study(GPU, out_required=True)
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--count", default=6, show_default=True, help="Rows that race on each problem.")
@store_option
@device_option
def main(run: Run, table: Path, count: int, store: Path, device: str) -> None:
    """Race the best rows of every problem, and print the winners."""
    recorded = Table.read(table)
    template = find_template(recorded.card.space)
    signature = recorded.problems[0].signature
    result: dict[str, Any] = {"protocol": VERSION, "library": recorded.card.library, "problems": {}}
    with MeasuringProcess(device, LiveOptions().timeout) as process:
        result["device"] = process.describe()["name"]
        arch = find_device(result["device"]).arch
        kernels = ArtifactStore(artifacts(store))
        with CompilePool(template, signature, arch, kernels, CompileOptions()) as pool:
            racing = {problem: finalists(recorded, problem, count) for problem in recorded.problems}
            for configuration in dict.fromkeys(each for runners in racing.values() for each in runners):
                pool.submit(configuration)  # those of later problems compile while earlier ones race
            for problem, runners in racing.items():
                outcome = race_problem(template, process, pool, problem, runners)
                result["problems"][str(problem)] = outcome
                run.keep(result)
                speed, default = outcome["speedup_over_library"], outcome["default_over_library"]["value"]
                found = f"{speed['value']:.4f} [{speed['low']:.4f}, {speed['high']:.4f}], default {default:.4f}"
                best = " ".join(map(str, outcome["best"].values()))
                print(f"{problem!s:>26} {outcome['library_us']:9.2f} us  {found}  {best}", flush=True)
    speeds = [outcome["speedup_over_library"]["value"] for outcome in result["problems"].values()]
    print(f"geometric mean {math.exp(np.mean(np.log(speeds))):.4f}, smallest {min(speeds):.4f}")
