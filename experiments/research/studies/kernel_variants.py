r"""Race compiled kernels that differ in one thing beside the library, in chains and in sandwiches.

    python -m tilescout.experiments.research kernel-variants --kernels folder/ --out variants.json

A change to a kernel that is only tried is compiled elsewhere and told by its name. The folder has a shared object for
each, and ``plan.json``: a list of name, change, problem and the values of the knobs of ``gemm_streamk_sm90``. All of a
problem race by turns, each pair beside the library, in both objectives. Beside them race what the library's heuristic
names first and the same algorithm with its blocks in the other order. What computes something else, for the sake of its
time, is not verified: a name that ends in ``loads`` multiplies nothing, one that ends in ``products`` loads nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.kernels import load_named
from tilescout.experiments.research.runner import GPU, Run, device_option, study
from tilescout.experiments.research.studies.stream_k import speed
from tilescout.search.build.loading import Launch
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.worker import Worker
from tilescout.spaces.errors import TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.loaders import load_loader
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import load_workload

SPACE, LIBRARY = "gemm_streamk_sm90", "cublaslt"
ROUNDS, PAIRS = 20, 1
OTHER_ORDER = 2  # the bit of the library's custom option that goes with blocks that walk the other way
PARTS = ("loads", "products")


def launches_of(
    worker: Worker, problem: GemmProblem, folder: Path, plan: Sequence[tuple[str, Sequence[Any]]]
) -> dict[str, Launch]:
    """The kernels of a plan, by their names, and two of the library."""
    template = find_template(SPACE)
    found = {name: load_named(worker, template, problem, folder, name, row) for name, row in plan}
    library = find_template(LIBRARY)
    loader = load_loader(library.loader)
    row = [int(value) for value in loader.listing(str(problem), 1).rows[0]]
    first = dict(zip((knob.name for knob in library.knobs), row, strict=True))
    for name, option in (("library", first["custom_option"]), ("library, other", first["custom_option"] ^ OTHER_ORDER)):
        knobs = {**first, "custom_option": option}
        found[name] = loader.launch(json.dumps({"signature": problem.signature, "knobs": knobs}))
    return found


def raced(worker: Worker, problem: GemmProblem, launches: Mapping[str, Launch]) -> dict[str, Any]:
    """The library's time and the speed of each kernel over it, by objective; and which were wrong, and how."""
    workload, wrong = load_workload(find_template(SPACE).workload), dict[str, str]()
    record: dict[str, Any] = {"wrong": wrong}
    for objective in Objective:
        bench = Bench(worker.machine, workload, problem, replace(ProtocolOptions(), objective=objective))
        for name in [name for name in launches if name not in wrong and not name.endswith(PARTS)]:
            try:
                bench.verify(launches[name], edge=False)
            except TilescoutError as error:
                wrong[name] = one_line(error)
        right = [name for name in launches if name not in wrong]
        ratios = bench.race([launches[name] for name in right], ROUNDS, PAIRS, 0)
        speeds = {name: speed(column.tolist()) for name, column in zip(right, ratios.T, strict=True)}
        record[str(objective)] = {"library_us": bench.library_us, "speeds": speeds}
    return record


def print_problem(console: Console, problem: str, record: Mapping[str, Any]) -> None:
    """Print the speeds of a problem in both objectives, the fastest in a sandwich first."""
    objectives = [str(objective) for objective in Objective]
    times = ", ".join(f"{record[name]['library_us']:.2f} us in a {name}" for name in objectives)
    grid = Grid(title=f"{problem}: speed over the library, {times}", title_justify="left")
    for heading in ("kernel", *objectives):
        grid.add_column(heading)
    speeds = [record[name]["speeds"] for name in objectives]
    for name in sorted(speeds[0], key=lambda each: -speeds[-1][each]["value"]):
        grid.add_row(name, *(f"{each[name]['value']:.3f} [{each[name]['low']:.3f}]" for each in speeds))
    console.print(grid)


@study(GPU, out_required=True)
@click.option(
    "--kernels", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="The folder."
)
@seconds_option(300.0)
@device_option
def main(run: Run, kernels: Path, seconds: float, device: str) -> None:
    """Race all kernels of a folder, problem by problem."""
    plan: dict[str, list[tuple[str, list[Any]]]] = {}
    configurations: dict[str, list[Any]] = {}
    for name, _, problem, row in json.loads((kernels / "plan.json").read_text()):
        plan.setdefault(problem, []).append((name, row))
        configurations[name] = row
    knobs = [knob.name for knob in find_template(SPACE).knobs]
    clock, worker, found = Clock(seconds), Worker(device), dict[str, Any]()
    for text, those in clock.in_time(plan.items()):
        problem = GemmProblem.parse(text)
        found[text] = raced(worker, problem, launches_of(worker, problem, kernels, those))
        run.keep({"knobs": knobs, "kernels": configurations, "problems": found})
        print_problem(Console(width=120), text, found[text])
