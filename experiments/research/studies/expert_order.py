"""Tell on a GPU how much the order matters in which a grouped kernel comes to the experts.

    python -m tilescout.experiments.research expert-order 128x32768x1536x2048:bf16:zipf-1 --out order.json

A kernel takes the experts as they are numbered. So one draw of the routing is given to it with the experts numbered in
other ways: as drawn, the one with most tokens first, that with fewest first, and the two in turns. Of each, the
configurations of the recorded tables are timed by one measurement; what is compared is the fastest time in us. It says
what a scheduler that sorts the experts could bring at most, for sorting takes time too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import click
import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.roofline import Roofline
from tilescout.experiments.commands.options import store_option
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.grouped import DEVICE, compilers, measured
from tilescout.experiments.research.studies.grouped_swiglu import TWO, candidates
from tilescout.search.build.compilers import CompilePool
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.protocol import ProtocolOptions, protocol_of
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.routing import Routing
from tilescout.spaces.workloads import Workload


def orders(groups: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    """The sizes of the groups, in each order."""
    drawn = np.array(groups, dtype=np.int64)
    falling = np.sort(drawn)[::-1]
    turns = np.empty_like(falling)
    turns[::2], turns[1::2] = falling[: math.ceil(len(falling) / 2)], falling[math.ceil(len(falling) / 2) :][::-1]
    return {"as drawn": drawn, "most first": falling, "fewest first": falling[::-1], "in turns": turns}


def ordered(problem: GroupedProblem) -> dict[str, GroupedProblem]:
    """The first draw of a problem with its experts in each order."""
    found = {name: tuple(sizes.tolist()) for name, sizes in orders(problem.groups).items()}
    return {name: replace(problem, routing=Routing("recorded", counts=sizes)) for name, sizes in found.items()}


def timed(worker: Worker, pool: CompilePool, problem: GroupedProblem, options: ProtocolOptions) -> dict[str, Any]:
    """The times of the configurations on a problem in us, and the fastest."""
    waiting = [(each, pool.submit(each)) for each in candidates(TWO, problem)]
    bench = Bench(worker.machine, cast(Workload, Grouped()), problem, options)
    rows: list[dict[str, Any]] = []
    best: float | None = None
    for each, future in waiting:
        row, _ = measured(worker, bench, TWO, each, future.result(), best)
        rows.append(row)
        best = min((row["ratio"] for row in rows if "ratio" in row), default=None)
    fastest = min((row for row in rows if "ratio" in row), key=lambda row: float(row["ratio"]))
    us = fastest["ratio"] * bench.library_us
    found = {"us": us, "library_us": bench.library_us, "configuration": fastest["configuration"], "rows": rows}
    del bench
    worker.machine.release()
    return found


def show(text: str, floor_us: float, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a problem's times."""
    drawn = found["as drawn"]["us"]
    shown = "  ".join(f"{name} {each['us']:.1f} us ({each['us'] / drawn:.3f})" for name, each in found.items())
    print(f"{text}: floor {floor_us:.1f} us  {shown}", flush=True)


@study("a Hopper GPU", out_required=True)
@click.argument("problems", nargs=-1, required=True)
@store_option
def main(run: Run, problems: tuple[str, ...], store: Path) -> None:
    """Time PROBLEMS, such as 128x32768x1536x2048:bf16:zipf-1, with their experts in several orders."""
    worker, options = Worker("cuda"), ProtocolOptions()
    result: dict[str, Any] = {"device": worker.machine.name, "versions": worker.machine.versions()}
    result |= {"protocol": protocol_of(options.objective)[0], "problems": {}}
    read = [GroupedProblem.parse(text) for text in problems]
    with compilers([TWO], artifacts(store), read[0].signature) as pools:
        for problem in read:
            found = {name: timed(worker, pools[TWO.name], each, options) for name, each in ordered(problem).items()}
            floor_us = Roofline.of(problem, DEVICE).time_us
            result["problems"][str(problem)] = {"floor_us": floor_us, "orders": found}
            run.keep(result)
            show(str(problem), floor_us, found)
