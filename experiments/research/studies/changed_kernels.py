"""Race kernels as they were before a change of their source beside the same kernels after it.

    python -m tilescout.experiments.research changed-kernels --space grouped_gemm_sm90 --kernels folder/ --out new.json

The folder has shared objects and ``plan.json``: a list of name, change, problem and the values of the knobs of the
space. The name is that of a file, whose entry point has the name of the space, and which may serve several problems;
the change is ``before`` or ``after``. All of a problem race by turns, each pair beside the library and on the draws of
the problem, in both objectives. Every kernel is verified once on each of its problems. Told is the time after the
change over that before, in the same round: below 1 the change has made a kernel faster.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table as Grid

from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.kernels import load_named
from tilescout.experiments.research.runner import GPU, Run, device_option, study
from tilescout.search.build.loading import Launch
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.interval import mean_interval
from tilescout.search.measure.protocol import Objective, ProtocolOptions
from tilescout.search.measure.verification import WrongResultError
from tilescout.search.measure.worker import Worker
from tilescout.spaces.errors import one_line
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import load_workload

CHANGES = BEFORE, AFTER = "before", "after"
ROUNDS, PAIRS = 20, 1
OBJECTIVES = [str(objective) for objective in Objective]

Plan = Mapping[str, Mapping[tuple[Any, ...], Mapping[str, str]]]
"""By problem and values of the knobs: the files, by change."""


def read_plan(path: Path) -> Plan:
    """The plan of a folder of kernels.

    Raises
    ------
    UsageError
        If a kernel is there before the change alone, or after it alone.
    """
    plan: dict[str, dict[tuple[Any, ...], dict[str, str]]] = {}
    for name, change, problem, row in json.loads(path.read_text()):
        plan.setdefault(problem, {}).setdefault(tuple(row), {})[change] = Path(name).name
    for problem, kernels in plan.items():
        for row, files in kernels.items():
            if set(files) != set(CHANGES):
                raise click.UsageError(f"{path}: of {row} on {problem} there is {', '.join(files)} alone")
    return plan


def raced(
    worker: Worker, template: KernelTemplate, problem: Problem, launches: Sequence[Mapping[str, Launch]]
) -> dict[str, Any]:
    """The library's time by objective; of each kernel its time after over before, and before over the library's.

    A kernel that is wrong, before or after the change, races in neither form: of it is told why.
    """
    workload, wrong = load_workload(template.workload), dict[int, str]()
    kernels: list[dict[str, Any]] = [{} for _ in launches]
    record: dict[str, Any] = {"library_us": {}, "kernels": kernels}
    for objective in Objective:
        bench = Bench(worker.machine, workload, problem, replace(ProtocolOptions(), objective=objective))
        if not record["library_us"]:
            wrong = dict(faults(bench, launches))
        right = [at for at in range(len(launches)) if at not in wrong]
        racing = [launches[at][change] for at in right for change in CHANGES]
        ratios = bench.race(racing, ROUNDS, PAIRS, 0) if racing else None
        for number, at in enumerate(right):
            assert ratios is not None
            before, after = ratios[:, 2 * number], ratios[:, 2 * number + 1]
            value, low, high = mean_interval((after / before).tolist())
            over_library = mean_interval(before.tolist())[0]
            kernels[at][str(objective)] = {"value": value, "low": low, "high": high, "over_library": over_library}
        record["library_us"][str(objective)] = bench.library_us
        del bench
        worker.machine.release()  # there may be no room for the operands of two
    for at, why in wrong.items():
        kernels[at]["wrong"] = why
    return record


def faults(bench: Bench, launches: Sequence[Mapping[str, Launch]]) -> Iterator[tuple[int, str]]:
    """The places of kernels that are wrong, and why."""
    for at, each in enumerate(launches):
        for change in CHANGES:
            try:
                bench.verify(each[change], edge=True)
            except WrongResultError as error:
                yield at, f"{change}: {one_line(error)}"
                break


def by_size(problems: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int]) -> dict[int, dict[str, Any]]:
    """Of the problems of each size: how many kernels raced, and their time after over before in the geometric mean."""
    found: dict[int, dict[str, Any]] = {}
    for size in sorted(set(sizes.values())):
        those = [each for text in problems if sizes[text] == size for each in problems[text]["kernels"]]
        right = [each for each in those if "wrong" not in each]
        if right:
            means = {
                name: math.exp(sum(math.log(each[name]["value"]) for each in right) / len(right)) for name in OBJECTIVES
            }
            found[size] = {"kernels": len(right), **means}
    return found


def print_problem(console: Console, problem: str, record: Mapping[str, Any]) -> None:
    """Print how the kernels of a problem fared, by the values of their knobs."""
    times = ", ".join(f"{us:.1f} us in a {name}" for name, us in record["library_us"].items())
    grid = Grid(title=f"{problem}: time after over before; the library's {times}", title_justify="left")
    for heading in ("kernel", *(f"{name}{of}" for name in OBJECTIVES for of in ("", ", before over the library"))):
        grid.add_column(heading)
    for each in record["kernels"]:
        cells = []
        for told in (each[name] for name in OBJECTIVES if name in each):
            cells += [f"{told['value']:.3f} [{told['low']:.3f}, {told['high']:.3f}]", f"{told['over_library']:.3f}"]
        grid.add_row(" ".join(map(str, each["configuration"])), *(cells or [f"wrong {each['wrong']}"]))
    console.print(grid)


def print_sizes(console: Console, size: str, found: Mapping[int, Mapping[str, Any]]) -> None:
    """Print the means by size."""
    grid = Grid(title="time after over before, geometric mean", title_justify="left")
    for heading in (size, "kernels", *OBJECTIVES):
        grid.add_column(heading)
    for value, each in found.items():
        grid.add_row(str(value), str(each["kernels"]), *(f"{each[name]:.3f}" for name in OBJECTIVES))
    console.print(grid)


@study(GPU, out_required=True)
@click.option("--space", required=True, help="The space of the kernels.")
@click.option(
    "--kernels", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True, help="The folder."
)
@seconds_option(300.0)
@click.option("--by", default="tokens", show_default=True, help="The size of the problems that means are told by.")
@device_option
def main(run: Run, space: str, kernels: Path, seconds: float, by: str, device: str) -> None:
    """Race all kernels of a folder, problem by problem."""
    template, plan = find_template(space), read_plan(kernels / "plan.json")
    problems = {text: template.parse(text) for text in plan}
    if unsized := next((text for text, each in problems.items() if by not in each.sizes), ""):
        raise click.UsageError(f"{unsized} has no size {by!r}")
    clock, worker, console, found = Clock(seconds), Worker(device), Console(width=160), dict[str, Any]()
    means: dict[int, dict[str, Any]] = {}
    for text, those in clock.in_time(plan.items()):
        launches = [
            {change: load_named(worker, template, problems[text], kernels, name, row) for change, name in files.items()}
            for row, files in those.items()
        ]
        found[text] = raced(worker, template, problems[text], launches)
        for row, each in zip(those, found[text]["kernels"], strict=True):
            each["configuration"] = row
        means = by_size(found, {each: problems[each].sizes[by] for each in found})
        run.keep({"space": space, "knobs": [knob.name for knob in template.knobs], "by": means, "problems": found})
        print_problem(console, text, found[text])
    print_sizes(console, by, means)
