"""How fast a campaign fills a table on 1, 2, 4, ... GPUs of a Ray cluster.

    python -m tilescout.experiments.benchmarks.campaign_scaling gemm_sm90 --suite ground-truth --sample 400 --gpus 1 2 4

Measures the same plan on ever more GPUs, compiled beforehand, and prints rows a second, the time in which problems are
set up included; races are left out.
"""

import argparse
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.options import suite_problems
from tilescout.search.campaign import CampaignOptions
from tilescout.search.collect import collect
from tilescout.search.evaluate.engine import LiveOptions
from tilescout.search.evaluate.engine_ray import RayEngine, RayOptions
from tilescout.search.evaluate.protocol import ProtocolOptions
from tilescout.search.plan import make_plan
from tilescout.search.store import STORE, artifacts
from tilescout.spaces.templates import find_template

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

    template = find_template(arguments.space)
    problems = suite_problems(template, arguments.suite, arguments.signature)
    measured = []
    for gpus in arguments.gpus:
        cluster = RayOptions(arguments.cluster, gpus)
        with (
            TemporaryDirectory() as folder,
            RayEngine(template, arguments.store, cluster, options=OPTIONS) as engine,
        ):
            spaces = [engine.space(problem) for problem in problems]
            defaults = [template.default(problem, engine.device) for problem in problems]
            plan = make_plan(spaces, defaults, arguments.sample, arguments.seed)
            signatures = {problem.signature for problem in problems}
            built = [engine.compile(each, signature) for each in plan.configurations for signature in signatures]
            for future in built:
                future.result()
            started = time.perf_counter()
            collect(engine, plan, Path(folder) / "table.parquet", CampaignOptions(finals=0))
            seconds = time.perf_counter() - started
        measured.append({"gpus": gpus, "rows": plan.rows, "seconds": seconds, "rows_per_second": plan.rows / seconds})
        print(measured[-1], flush=True)
    grid = Grid(title=f"{plan.rows:,} rows on {len(problems)} problems, {engine.product}")
    for heading in ("GPUs", "s", "rows/s", "times one GPU's"):
        grid.add_column(heading, justify="right")
    for row in measured:
        gain = row["rows_per_second"] / measured[0]["rows_per_second"] * measured[0]["gpus"]
        grid.add_row(str(row["gpus"]), f"{row['seconds']:.1f}", f"{row['rows_per_second']:.0f}", f"{gain:.2f}")
    Console().print(grid)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
