"""Race the best rows of a table: measure them anew in interleaved rounds, so that "the best" is no lucky draw.

    python -m tilescout.experiments.research race-table gemm_sm90-h200-bf16.parquet --out best.json

For every problem the fastest configurations of the table and the default run against each other and the library until
the winner is separated (`tilescout.search.measure.race`). Artifacts that the store holds are not compiled again.
"""

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tilescout.search.build.artifacts import Artifact, ArtifactStore
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.process import MeasuringProcess
from tilescout.search.measure.protocol import VERSION, ProtocolOptions
from tilescout.search.measure.race import RaceOptions, run_race
from tilescout.search.studies.folders import STORE, artifacts
from tilescout.search.tables.table import Table
from tilescout.spaces.devices import find_device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template

OPTIONS = ProtocolOptions()


def finalists(table: Table, problem: Problem, count: int) -> list[Configuration]:
    """The fastest configurations of a problem, and last its default."""
    rows = table.rows(problem)
    fastest = [table.configuration(int(row)) for row in rows[np.argsort(table.times_us[rows])[:count]]]
    default = table.card.baselines[problem].default
    return [*(configuration for configuration in fastest if configuration != default), default]


def race_problem(
    template: KernelTemplate,
    process: MeasuringProcess,
    pool: CompilePool,
    problem: Problem,
    runners: list[Configuration],
) -> dict[str, Any]:
    """The outcome of a race between configurations, the default the last of them, as JSON."""
    library_us = process.prepare(template.workload, str(problem), OPTIONS)
    built = [pool.submit(configuration).result() for configuration in runners]
    jobs = [
        make_job(template, configuration, artifact, problem, library_us, OPTIONS)
        for configuration, artifact in zip(runners, built, strict=True)
        if isinstance(artifact, Artifact)
    ]
    if len(jobs) < len(runners) or any(not process.measure(job).ok for job in jobs):
        raise SystemExit(f"race_table: a row of the table for {problem} does not run any more")
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
    }


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--count", type=int, default=6, help="rows a problem")
    parser.add_argument("--store", type=Path, default=artifacts(STORE), help="folder of compiled kernels")
    parser.add_argument("--gpu", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()

    table = Table.read(arguments.table)
    template = find_template(table.card.space)
    signature = table.problems[0].signature
    result: dict[str, Any] = {"protocol": VERSION, "library": table.card.library, "problems": {}}
    with MeasuringProcess(arguments.gpu, LiveOptions().timeout) as process:
        result["device"] = process.describe()["name"]
        arch = find_device(result["device"]).arch
        store = ArtifactStore(arguments.store)
        with CompilePool(template, signature, arch, store, CompileOptions()) as pool:
            for problem in table.problems:
                runners = finalists(table, problem, arguments.count)
                outcome = race_problem(template, process, pool, problem, runners)
                result["problems"][str(problem)] = outcome
                arguments.out.write_text(json.dumps(result, indent=1) + "\n")
                speed, default = outcome["speedup_over_library"], outcome["default_over_library"]["value"]
                found = f"{speed['value']:.4f} [{speed['low']:.4f}, {speed['high']:.4f}], default {default:.4f}"
                best = " ".join(map(str, outcome["best"].values()))
                print(f"{problem!s:>26} {outcome['library_us']:9.2f} us  {found}  {best}", flush=True)
    speeds = [outcome["speedup_over_library"]["value"] for outcome in result["problems"].values()]
    print(f"geometric mean {math.exp(np.mean(np.log(speeds))):.4f}, smallest {min(speeds):.4f}")


if __name__ == "__main__":
    main()
