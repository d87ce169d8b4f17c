r"""Measure how fast a campaign fills a table with more and more GPUs of a Ray cluster.

    python -m tilescout.experiments.research campaign-scaling gemm_sm90 --suite ground-truth --sample 400 \
        --gpus 1 --gpus 2 --gpus 4

Measures the same plan each time and prints rows a second. Setting problems up is counted. Starting Ray, compiling,
starting the measuring processes and racing the finalists are not.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import (
    collected,
    seed_option,
    signature_option,
    space_argument,
    store_option,
    suite_problems,
)
from tilescout.experiments.research.runner import Run, study
from tilescout.search.campaigns.campaign import CampaignOptions
from tilescout.search.campaigns.collection import collect
from tilescout.search.campaigns.plan import Plan, make_plan
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.ray import RayEngine, RayOptions, joined
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import load_template

OPTIONS = replace(LiveOptions(), protocol=ProtocolOptions(prune=math.inf))  # as `tilescout collect` has it


def plan_of(engine: RayEngine, problems: Sequence[Problem], sample: int, seed: int) -> Plan:
    """The plan, all of it compiled."""
    defaults = [engine.template.default(problem, engine.device) for problem in problems]
    plan = make_plan([engine.space(problem) for problem in problems], defaults, sample, seed)
    signatures = {problem.signature for problem in problems}
    built = [engine.compile(each, signature) for each in plan.configurations for signature in signatures]
    for future in built:
        future.result()
    return plan


def measure(engine: RayEngine, plan: Plan) -> dict[str, float]:
    """Seconds of a campaign whose measuring processes have loaded their libraries already, and rows a second."""
    for warm in [engine.prepare(gpu, plan.problems[0]) for gpu in range(engine.gpus)]:
        warm.result()
    with TemporaryDirectory() as folder:
        started = time.perf_counter()
        collect(engine, plan, Path(folder) / "table.parquet", CampaignOptions(finals=0))
        seconds = time.perf_counter() - started
    return {"seconds": seconds, "rows_per_second": plan.rows / seconds}


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    space: str
    suite: str
    signature: str | None
    sample: int
    gpus: tuple[int, ...]
    cluster: str
    seed: int
    store: Path


@study("several GPUs, the extra ray")
@space_argument
@click.option("--suite", required=True, help="Problems: NAME, NAME:PHASE or FILE.toml.")
@signature_option
@click.option("--sample", default=400, show_default=True, help="Configurations of the plan.")
@click.option("--gpus", multiple=True, default=[1, 2, 4], show_default=True, help="How many GPUs; repeatable.")
@click.option("--cluster", default="auto", show_default=True, metavar="auto|ADDRESS", help="The Ray cluster.")
@seed_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Measure the plan on ever more GPUs, and print the rates."""
    template = load_template(asked.space)
    problems = suite_problems(template, asked.suite, asked.signature)
    measured = []
    with joined(asked.cluster):
        for count in asked.gpus:
            options = RayOptions(asked.cluster, count)
            with RayEngine(template, artifacts(asked.store), options, options=OPTIONS) as engine:
                plan = plan_of(engine, problems, asked.sample, asked.seed)
                measured.append({"gpus": count, "rows": plan.rows, **measure(engine, plan)})
                product = engine.product
            print(measured[-1], flush=True)
            run.keep({"device": product, "suite": asked.suite, "points": measured})
    grid = Grid(title=f"{plan.rows:,} rows on {len(problems)} problems, {product}")
    for heading in ("GPUs", "s", "rows/s", "times one GPU's"):
        grid.add_column(heading, justify="right")
    fewest = min(measured, key=itemgetter("gpus"))
    for row in sorted(measured, key=itemgetter("gpus")):
        gain = row["rows_per_second"] / fewest["rows_per_second"] * fewest["gpus"]
        grid.add_row(str(row["gpus"]), f"{row['seconds']:.1f}", f"{row['rows_per_second']:.0f}", f"{gain:.2f}")
    Console().print(grid)
