"""Record a table: measure configurations of a space on some problems, on this machine's GPU.

    python -m tilescout.experiments.record_table gemm_sm90 --sample 100 --seed 0 --out table.parquet

The configurations are the defaults of all problems, given ones (``--also FILE``, a JSON list), and a random sample of
each problem's space; all are measured on every problem for which they are legal. Artifacts that the store holds are not
compiled again. The table is written anew after every problem.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rich.progress import track

from tilescout.search.evaluate import protocol
from tilescout.search.evaluate.artifacts import Artifact, ArtifactStore
from tilescout.search.evaluate.card import Baseline, TableCard
from tilescout.search.evaluate.compile import CompileOptions, CompilePool
from tilescout.search.evaluate.host import MeasuringProcess
from tilescout.search.evaluate.live import LiveOptions, make_job, measure_artifact
from tilescout.search.evaluate.measurement import Measurement
from tilescout.search.evaluate.protocol import ProtocolOptions
from tilescout.search.evaluate.table import write_table
from tilescout.search.store import STORE, artifacts
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import find_workload

# Squares from tiny to power-limited, and the products of a language model: decode (m = 16, 64), prefill, and the
# narrow and deep ones of mixture-of-experts layers.
PROBLEMS = (
    "8192x8192x8192",
    "4096x4096x4096",
    "2048x2048x2048",
    "1024x1024x1024",
    "512x512x512",
    "16x4096x4096",
    "64x8192x8192",
    "128x14336x4096",
    "256x4096x14336",
    "4096x14336x4096",
    "2048x1536x7168",
    "8192x1024x8192",
)


OPTIONS = ProtocolOptions(prune=math.inf)  # by the first pilot alone: no second one is taken


def choose(
    template: KernelTemplate,
    device: Device,
    problems: Sequence[Problem],
    also: Sequence[Configuration],
    sample: int,
    seed: int,
) -> list[Configuration]:
    """The configurations to measure, without repeats: defaults, given ones, then `sample` drawn for each problem."""
    generator = np.random.default_rng(seed)
    spaces = [template.space(problem, device) for problem in problems]
    chosen = [template.default(problem, device) for problem in problems]
    chosen += also
    chosen += [space[index] for space in spaces for index in space.sample(sample, generator).tolist()]
    return list(dict.fromkeys(chosen))


def rows(
    template: KernelTemplate,
    process: MeasuringProcess,
    problem: Problem,
    built: Sequence[tuple[Configuration, Artifact | Measurement]],
    library_us: float,
) -> Iterator[tuple[Configuration, Problem, Measurement]]:
    """Measure configurations on one problem; what a pilot rules out is pruned, and what can't win gets few pairs."""
    incumbent: float | None = None
    for configuration, artifact in track(built, description=str(problem)):
        if isinstance(artifact, Measurement):
            yield configuration, problem, artifact
        else:
            job = make_job(template, configuration, artifact, problem, library_us, OPTIONS)
            measured = measure_artifact(process, replace(job, incumbent=incumbent), artifact)
            if measured.timing is not None:
                incumbent = min(incumbent or math.inf, measured.timing.ratio)
            yield configuration, problem, measured


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("space")
    parser.add_argument("--problem", action="append", help=f"repeatable; without it: {', '.join(PROBLEMS)}")
    parser.add_argument("--signature", default="bf16", help="of the problems: types, layout, epilogue")
    parser.add_argument("--sample", type=int, default=100, help="random configurations of each problem's space")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--also", type=Path, help="JSON file with a list of configurations to measure too")
    parser.add_argument("--store", type=Path, default=artifacts(STORE), help="folder of compiled kernels")
    parser.add_argument("--gpu", default="cuda")
    parser.add_argument("--out", type=Path, required=True, help="the .parquet file to write, its card beside it")
    arguments = parser.parse_args()

    template = find_template(arguments.space)
    problems = [template.parse(f"{text}:{arguments.signature}") for text in arguments.problem or PROBLEMS]
    picked = json.loads(arguments.also.read_text()) if arguments.also else []
    with MeasuringProcess(arguments.gpu, LiveOptions().timeout) as process:
        described = process.describe()
        device = find_device(described["name"])
        also = [Configuration.of(values) for values in picked]
        configurations = choose(template, device, problems, also, arguments.sample, arguments.seed)
        store = ArtifactStore(arguments.store)
        with CompilePool(template, arguments.signature, device.arch, store, CompileOptions()) as pool:
            compiled = [(configuration, pool.submit(configuration)) for configuration in configurations]
            built = [(configuration, future.result()) for configuration, future in track(compiled, "compile")]

        card = TableCard(
            space=template.name,
            source_hash=template.source_hash,
            knobs={knob.name: knob.values for knob in template.knobs},
            device=device.name,
            product=described["name"],
            driver=described["versions"].pop("driver"),
            versions={**described["versions"], "nvidia-cutlass-dsl": version("nvidia-cutlass-dsl")},
            protocol=protocol.VERSION,
            protocol_text=protocol.DESCRIPTION,
            recorded=date.today(),
            library=find_workload(template.workload).library(problems[0]),
            baselines={},
        )
        recorded = []
        for problem in problems:
            library_us = process.prepare(template.workload, str(problem), OPTIONS)
            baseline = Baseline(template.default(problem, device), library_us)
            card = replace(card, baselines={**card.baselines, problem: baseline})
            space = template.space(problem, device)
            legal = [(configuration, artifact) for configuration, artifact in built if configuration in space]
            recorded += list(rows(template, process, problem, legal, library_us))
            table = write_table(arguments.out, card, recorded)  # what is measured is kept, whatever comes next
    print(table)
    for summary in table.summarise():
        best = f"best {1 / summary.best_timing.ratio:.3f} of {card.library}" if summary.best_timing else "none ok"
        default = f"default {1 / summary.default_timing.ratio:.3f}" if summary.default_timing else "default failed"
        print(f"{summary.problem!s:>24} {summary.library_us:9.2f} us  {best}  {default}  {summary.failed} failed")


if __name__ == "__main__":
    main()
