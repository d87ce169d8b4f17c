"""Race Quack's kernel that gathers rows for experts against a gathering kernel and a product, on a GPU.

    python -m tilescout.experiments.research grouped-gathered 128x4096x1536x2048:bf16:gathered-8:zipf-1 --out race.json

Of each space it takes the default and the fastest of some configurations by a first measurement, all verified. The
products of gathered rows, Quack's and ours, stand behind torch's ``index_select``. All race on draws of the routing
that nothing was chosen on; times are over those of ``index_select`` and ``torch._grouped_mm``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from tilescout.experiments.commands.options import store_option
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.grouped import DEVICE, PAIRS, ROUNDS, compilers
from tilescout.experiments.research.studies.grouped_swiglu import TWO, candidates, fastest, judged
from tilescout.search.build.compilers import CompilePool
from tilescout.search.build.loading import Launch
from tilescout.search.measure.protocol import ProtocolOptions, protocol_of
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gathered import Gathered, GatheredProblem
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import Tensors

GATHERING, VARLEN = find_template("quack_gathered"), find_template("quack_varlen")
# Of Quack's kernels: all tiles of these sizes, by whichever warp groups, with the rest as its default has it.
_TRIED: Mapping[str, Sequence[int | str]] = {
    "tile_m": (64, 128, 192, 256),
    "tile_n": (128, 160, 192, 256),
    "tile_k": (64,),
    "cluster_m": (1, 2),
    "cluster_n": (1,),
    "swizzle": (8,),
    "raster": ("n",),
}


def of_quack(template: KernelTemplate, problem: GroupedProblem) -> list[Configuration]:
    """The default of a space of Quack, and those that are tried beside it."""
    space = template.space(problem, DEVICE)
    held = np.all([np.isin(space.columns[name], values) for name, values in _TRIED.items()], axis=0)
    return list(dict.fromkeys([template.default(problem, DEVICE), *(space[int(at)] for at in np.flatnonzero(held))]))


def behind_gathering(product: Launch) -> Launch:
    """A kernel for gathered rows with a kernel of torch before it that gathers them."""

    def run(inputs: Tensors, output: Any) -> None:
        a, b, ends, index = inputs
        product((a.index_select(0, index), b, ends), output)

    return run


def race(problems: Sequence[GatheredProblem], pools: Mapping[str, CompilePool], seconds: float, run: Run) -> None:
    """Race on every problem that is begun in time, and keep the result after each."""
    worker, clock, options = Worker("cuda"), Clock(seconds), ProtocolOptions()
    result: dict[str, Any] = {"device": worker.machine.name, "versions": worker.machine.versions()}
    result |= {"protocol": protocol_of(options.objective)[0], "rounds": ROUNDS, "pairs": PAIRS, "problems": {}}
    for problem in clock.in_time(problems):
        plain, record = GroupedProblem.like(problem), dict[str, Any]()
        contenders: dict[str, Launch] = {}
        tried = of_quack(GATHERING, problem)
        record["gathering"], default, best = fastest(
            worker, GATHERING, Gathered(), problem, pools[GATHERING.name], options, tried
        )
        contenders |= {"Quack's that gathers": best, "its default": default}
        for name, template, those in (
            ("Quack's", VARLEN, of_quack(VARLEN, plain)),
            ("ours", TWO, candidates(TWO, plain)),
        ):
            record[name], _, best = fastest(worker, template, Grouped(), plain, pools[template.name], options, those)
            contenders[f"torch's gathering and {name}"] = behind_gathering(best)
        record |= judged(worker, Gathered(), problem, contenders, options)
        result["problems"][str(problem)] = record
        run.keep(result)
        shown = "  ".join(f"{name} {each['value']:.3f}" for name, each in record["speedup_over_library"].items())
        print(f"{problem!s:<48} {record['judged_us']:8.1f} us  floor {record['floor_us']:.1f}  {shown}", flush=True)
    print("speeds over index_select and torch._grouped_mm, on draws that nothing was chosen on")


@study("a Hopper GPU, and the extra quack", out_required=True)
@click.argument("problems", nargs=-1, required=True)
@seconds_option(300.0)
@store_option
def main(run: Run, problems: tuple[str, ...], seconds: float, store: Path) -> None:
    """Race on PROBLEMS of one type, such as 128x4096x1536x2048:bf16:gathered-8:zipf-1."""
    read = [GatheredProblem.parse(text) for text in problems]
    if len({each.signature for each in read}) != 1:
        raise ProblemError("name problems of which each token goes to as many experts")
    with (
        compilers([GATHERING], artifacts(store), read[0].signature) as one,
        compilers([VARLEN, TWO], artifacts(store), read[0].dtype) as two,
    ):
        race(read, {**one, **two}, seconds, run)
