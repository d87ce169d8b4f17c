r"""How fast a campaign fills a table on 1, 2, 4, ... GPUs of a Ray cluster.

    python -m tilescout.experiments.research campaign-scaling gemm_sm90 --suite ground-truth --sample 400 \
        --gpus 1 2 4

Measures the same plan on ever more GPUs and prints rows a second, the time in which problems are set up included. What
comes once is not: Ray's start, compiling, and the start of the processes that measure. Races are left out.
"""

import argparse
import json
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.commands.options import suite_problems
from tilescout.search.campaigns.campaign import CampaignOptions
from tilescout.search.campaigns.collect import collect
from tilescout.search.campaigns.plan import Plan, make_plan
from tilescout.search.engines.engine import LiveOptions
from tilescout.search.engines.ray import RayEngine, RayOptions, joined
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.studies.folders import STORE, artifacts
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import load_template

OPTIONS = replace(LiveOptions(), protocol=ProtocolOptions(prune=math.inf))  # as `tilescout collect` has it


def main() -> None:
    """Command line of the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("space")
    parser.add_argument("--suite", required=True)
    parser.add_argument("--signature")
    parser.add_argument("--sample", type=int, default=400)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--store", type=Path, default=artifacts(STORE), help="folder of compiled kernels")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()

    template = load_template(arguments.space)
    problems = suite_problems(template, arguments.suite, arguments.signature)
    measured = []
    with joined(arguments.cluster):
        for gpus in arguments.gpus:
            cluster = RayOptions(arguments.cluster, gpus)
            with RayEngine(template, arguments.store, cluster, options=OPTIONS) as engine:
                plan = plan_of(engine, problems, arguments.sample, arguments.seed)
                measured.append({"gpus": gpus, "rows": plan.rows, **measure(engine, plan)})
                product = engine.product
            print(measured[-1], flush=True)
            if arguments.out is not None:  # after each, so that an end by a time limit leaves what there is
                report = {"device": product, "suite": arguments.suite, "points": measured}
                arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    grid = Grid(title=f"{plan.rows:,} rows on {len(problems)} problems, {product}")
    for heading in ("GPUs", "s", "rows/s", "times one GPU's"):
        grid.add_column(heading, justify="right")
    fewest = min(measured, key=itemgetter("gpus"))
    for row in sorted(measured, key=itemgetter("gpus")):
        gain = row["rows_per_second"] / fewest["rows_per_second"] * fewest["gpus"]
        grid.add_row(str(row["gpus"]), f"{row['seconds']:.1f}", f"{row['rows_per_second']:.0f}", f"{gain:.2f}")
    Console().print(grid)


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


if __name__ == "__main__":
    main()
