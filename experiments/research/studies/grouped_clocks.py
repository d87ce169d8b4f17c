"""Tell on a GPU what grouped products wait for where time is over the floor: clocks, tensor cores, memory.

    python -m tilescout.experiments.research grouped-clocks floor-race.json.gz --out clocks.json

Of each problem that ``grouped peers`` recorded the kernel that was chosen there runs without a pause, on a draw of the
routing that nothing was chosen on, until clocks have settled; then NVML tells the clock of the multiprocessors, the
power, and what keeps the clock low, for half a second. From the time of a launch follows how much of it the tensor
cores are busy, at the clock that was seen, with the rows of full tiles that it multiplies; and what the memory
delivers, of the 4.3 TB/s of the floor. What is left of the busier of the two is waiting: for one another, for the L2,
for the last wave.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import click

from tilescout.experiments.commands.options import store_option
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.grouped import QUICK, UNSEEN, chosen_row, compilers
from tilescout.experiments.research.studies.grouped_floor import (
    BYTES_A_SECOND,
    FLOPS_A_CLOCK,
    PROCESSORS,
    floor_us,
    multiplied,
)
from tilescout.experiments.research.studies.grouped_standing import SPACES
from tilescout.search.build.artifacts import CompileFailure
from tilescout.search.build.loading import Launch
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.errors import NoResultError
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import Tensors

if TYPE_CHECKING:
    import torch

_SETTLES_US = 1_200_000.0  # 350 ms were too few: of 16 readings one had 1,980 MHz at 141 W, and one 870 MHz
_LASTS_US = 500_000.0
_EVERY_S = 0.02
_TOLD = ("us", "sm_mhz", "power_w", "over", "multiplied", "tensor cores", "memory")


def drawn_anew(problem: GroupedProblem) -> GroupedProblem:
    """The same with one draw of its routing that nothing was chosen on."""
    return GroupedProblem.parse(f"{str(problem).split(':draws')[0]}:draws-{UNSEEN}-{UNSEEN}")


def told(problem: GroupedProblem, configuration: Configuration, us: float, mhz: float) -> dict[str, float]:
    """Tell what a launch of so many µs keeps busy, as shares of it at a clock in MHz, and its time over the floor."""
    products = problem.flops * multiplied(problem, configuration)
    return {
        "over": us / floor_us(problem),
        "multiplied": multiplied(problem, configuration),
        "tensor cores": products / (PROCESSORS * FLOPS_A_CLOCK * mhz * us),
        "memory": problem.bytes / BYTES_A_SECOND * 1e6 / us,
    }


def watched(worker: Worker, launch: Launch, inputs: Tensors, output: "torch.Tensor") -> dict[str, Any]:
    """The µs of a launch among many without a pause, and the clocks meanwhile.

    Raises
    ------
    NoResultError
        If NVML does not tell the clocks.
    """
    import torch

    def run(launches: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(launches):
            launch(inputs, output)
        end.record()
        while not end.query():
            if (seen := worker.machine.clocks()) is not None:
                samples.append(seen)
            time.sleep(_EVERY_S)
        return float(begin.elapsed_time(end)) * 1000 / launches

    samples: list[Any] = []
    once = run(4)
    once = run(max(4, round(_SETTLES_US / once)))
    samples.clear()
    us = run(max(4, round(_LASTS_US / once)))
    if not samples:
        raise NoResultError("NVML did not tell the clocks while kernels ran")
    return {
        "us": us,
        "samples": len(samples),
        "sm_mhz": median(each.sm_mhz for each in samples),
        "power_w": median(each.power_w for each in samples),
        "throttle": sorted({each.throttle for each in samples}),
    }


def chosen(record: Mapping[str, Any]) -> tuple[str, Configuration]:
    """The space and the configuration of ours that was chosen for a problem."""
    space = next(each for each in SPACES if each in record["spaces"])
    return space, Configuration.of(chosen_row(record["spaces"][space])["configuration"])


def means(problems: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Means over the problems with balanced routing, and over the others."""
    by_routing: dict[str, list[Mapping[str, Any]]] = {}
    for text, each in problems.items():
        by_routing.setdefault("balanced" if "balanced" in text else "uneven", []).append(each)
    return {
        routing: {name: fmean(each[name] for each in those) for name in _TOLD} for routing, those in by_routing.items()
    }


def shown(found: Mapping[str, float]) -> str:
    """A line of what was found."""
    busy = f"tensor cores busy {found['tensor cores']:.0%}, memory {found['memory']:.0%}"
    state = f"{found['sm_mhz']:.0f} MHz, {found['power_w']:.0f} W"
    return f"{found['us']:8.1f} us, {found['over']:.3f} over the floor; {state}; {busy}"


@study("a Hopper GPU", out_required=True)
@click.argument("path", type=click.Path(path_type=Path))
@seconds_option(300.0)
@store_option
def main(run: Run, path: Path, seconds: float, store: Path) -> None:
    """Watch the kernels that `grouped peers` chose in a record, PATH."""
    import torch

    clock, worker = Clock(seconds), Worker("cuda")
    taken = {text: chosen(each) for text, each in Record.read(path).result["problems"].items()}
    templates = [find_template(name) for name in sorted({space for space, _ in taken.values()})]
    result: dict[str, Any] = {"device": worker.machine.name, "versions": worker.machine.versions(), "problems": {}}
    with compilers(templates, artifacts(store)) as pools:
        built = {text: pools[space].submit(each) for text, (space, each) in taken.items()}
        for text, (space, configuration) in clock.in_time(taken.items()):
            problem, artifact = drawn_anew(GroupedProblem.parse(text)), built[text].result()
            if isinstance(artifact, CompileFailure):
                raise NoResultError(f"{text}: {artifact.error}")
            launch = worker.load(make_job(find_template(space), configuration, artifact, problem, 1.0, QUICK))
            inputs = Grouped().inputs(problem, torch.Generator("cuda").manual_seed(0))
            found = watched(worker, launch, inputs, Grouped().output(problem, torch.device("cuda")))
            found |= told(problem, configuration, found["us"], found["sm_mhz"])
            del inputs
            worker.machine.release()
            result["problems"][text] = found
            result["means"] = means(result["problems"])
            run.keep(result)
            print(f"{text:<46} {shown(found)}", flush=True)
    for routing, each in result["means"].items():
        print(f"{routing}, in the mean: {shown(each)}")
