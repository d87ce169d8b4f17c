"""Verify grouped products with SwiGLU behind them on a GPU, and race one kernel against two.

    python -m tilescout.experiments.research grouped-swiglu check --out check.json
    python -m tilescout.experiments.research grouped-swiglu race 128x4096x1536x2048:bf16:swiglu:zipf-1 --out race.json

- ``check`` is ``grouped-forms`` with gate and up one behind the other and in turn.
- ``race`` takes, of a stated sub-space, the fastest by a first measurement; and the fastest of ``grouped_gemm_sm90`` on
  the same product without SwiGLU, with the kernel behind it that TorchInductor makes for SwiGLU. That kernel stands
  behind ``torch._grouped_mm`` too. All race on draws of the routing that nothing was chosen on; times are over those
  of ``torch._grouped_mm``, ``silu`` and ``mul``, three kernels.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
import numpy as np

from tilescout.costmodel.roofline import Roofline
from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.grouped_tuners import by_torch
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.grouped import (
    DEVICE,
    PAIRS,
    ROUNDS,
    UNSEEN,
    compilers,
    measured,
    speed,
)
from tilescout.experiments.research.studies.grouped_forms import check
from tilescout.search.build.compilers import CompilePool
from tilescout.search.build.loading import Launch
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.protocol import ProtocolOptions, protocol_of
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gated import PLACES, Gated, GatedProblem, swiglu
from tilescout.spaces.grouped import DRAWS, Grouped, GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.subspace import read_subspace
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.workloads import Tensors, Workload

if TYPE_CHECKING:
    import torch

ONE, TWO = find_template("grouped_swiglu_sm90"), find_template("grouped_gemm_sm90")


class Behind:
    """A product, and behind it SwiGLU as TorchInductor compiles it, in a kernel of its own."""

    def __init__(self, product: Callable[[Tensors], "torch.Tensor"], problem: GatedProblem) -> None:
        import torch

        def gate(product: "torch.Tensor", output: "torch.Tensor") -> None:
            output.copy_(swiglu(product, problem.pairs))

        self._product, self._gate = product, torch.compile(gate, dynamic=True)

    def __call__(self, inputs: Tensors, output: "torch.Tensor") -> None:
        """Run both."""
        self._gate(self._product(inputs), output)


def by_launch(launch: Launch) -> Callable[[Tensors], "torch.Tensor"]:
    """The product by a kernel of ours, into memory of its own."""

    def product(inputs: Tensors) -> "torch.Tensor":
        hidden = inputs[0].new_empty((inputs[0].shape[0], inputs[1].shape[1]))
        launch(inputs, hidden)
        return hidden

    return product


def candidates(template: KernelTemplate, problem: GroupedProblem) -> list[Configuration]:
    """The default of a problem, and what the sub-space of the recorded tables holds of its space."""
    path = Path(str(files("tilescout.search.tables").joinpath("recorded", f"{TWO.name}-subspace.toml")))
    space = template.space(problem, DEVICE)
    held = np.flatnonzero(read_subspace(path, template.knobs).holds(space))
    return list(dict.fromkeys([template.default(problem, DEVICE), *(space[int(at)] for at in held)]))


def fastest(
    worker: Worker,
    template: KernelTemplate,
    workload: Grouped,
    problem: GroupedProblem,
    pool: CompilePool,
    options: ProtocolOptions,
    tried: Sequence[Configuration],
) -> tuple[list[dict[str, Any]], Launch, Launch]:
    """The outcome of each configuration, of which the first is the default; its launch and that of the fastest."""
    waiting = [(each, pool.submit(each)) for each in tried]
    bench = Bench(worker.machine, cast(Workload, workload), problem, options)
    rows: list[tuple[dict[str, Any], Launch | None]] = []
    best = math.inf
    for each, future in waiting:
        incumbent = best if rows else None
        rows.append(measured(worker, bench, template, each, future.result(), incumbent))
        best = min(best, rows[-1][0].get("ratio", math.inf))
    right = {row["ratio"]: launch for row, launch in rows if launch is not None}
    default = rows[0][1]
    if default is None:
        raise ProblemError(f"the default of {template.name} is not right on {problem}: {rows[0][0].get('error')}")
    print(
        f"{template.name}: {len(right)} of {len(rows)} timed, the best {min(right):.3f} of the library's time",
        flush=True,
    )
    del bench
    worker.machine.release()  # there may be no room for the operands of two
    return [row for row, _ in rows], default, right[min(right)]


def race(
    texts: Sequence[str], pools: Mapping[str, CompilePool], options: ProtocolOptions, seconds: float, run: Run
) -> None:
    """Race on every problem that is begun in time, and keep the result after each."""
    worker, clock = Worker("cuda"), Clock(seconds)
    result: dict[str, Any] = {"device": worker.machine.name, "versions": worker.machine.versions()}
    result |= {"protocol": protocol_of(options.objective)[0], "rounds": ROUNDS, "pairs": PAIRS, "problems": {}}
    for text in clock.in_time(texts):
        problem = GatedProblem.parse(text)
        tried = candidates(ONE, problem)
        rows, default, best = fastest(worker, ONE, Gated(), problem, pools[ONE.name], options, tried)
        plain = GroupedProblem.like(problem)
        more, _, product = fastest(worker, TWO, Grouped(), plain, pools[TWO.name], options, candidates(TWO, plain))
        contenders: dict[str, Launch] = {
            "one kernel": best,
            "one kernel, default": default,
            "two kernels": Behind(by_launch(product), problem),
            "torch._grouped_mm and a kernel": Behind(by_torch, problem),
        }
        record = {"one": rows, "two": more, **judged(worker, Gated(), problem, contenders, options)}
        result["problems"][text] = record
        run.keep(result)
        shown = "  ".join(f"{name} {each['value']:.3f}" for name, each in record["speedup_over_library"].items())
        print(f"{text:<44} {record['judged_us']:8.1f} us  floor {record['floor_us']:.1f}  {shown}", flush=True)
    print("speeds over torch._grouped_mm without SwiGLU, on draws that nothing was chosen on")


def judged(
    worker: Worker,
    workload: Grouped,
    problem: GroupedProblem,
    contenders: Mapping[str, Launch],
    options: ProtocolOptions,
) -> dict[str, Any]:
    """Verify contenders and race them, on draws of the routing that nothing was chosen on."""
    unseen = replace(problem, first_draw=UNSEEN, last_draw=UNSEEN + DRAWS - 1)
    bench = Bench(worker.machine, cast(Workload, workload), unseen, options)
    for contender in contenders.values():
        bench.verify(contender, edge=True)
    ratios = bench.race(list(contenders.values()), ROUNDS, PAIRS, seed=0)
    speeds = {name: speed(column.tolist()) for name, column in zip(contenders, ratios.T, strict=True)}
    found = {"judged_on": str(unseen), "judged_us": bench.library_us, "floor_us": Roofline.of(unseen, DEVICE).time_us}
    del bench
    worker.machine.release()
    return {**found, "speedup_over_library": speeds}


@study("a Hopper GPU", out_required=True)
@click.argument("part", type=click.Choice(["check", "race"]))
@click.argument("problems", nargs=-1)
@click.option("--sample", default=4, show_default=True, help="Random configurations of each problem, for `check`.")
@seconds_option(300.0)
@seed_option
@store_option
def main(run: Run, part: str, problems: tuple[str, ...], sample: int, seconds: float, seed: int, store: Path) -> None:
    """Check, or race on PROBLEMS of one type, such as 128x4096x1536x2048:bf16:swiglu:zipf-1."""
    if part == "check":
        check(PLACES, sample, seed, artifacts(store), run)
        return
    read = [GatedProblem.parse(text) for text in problems]
    if len({each.signature for each in read}) != 1:
        raise ProblemError("name the problems to race on, with gate and up in one place")
    with (
        compilers([ONE], artifacts(store), read[0].signature) as one,
        compilers([TWO], artifacts(store), read[0].dtype) as two,
    ):
        race([str(each) for each in read], {**one, **two}, ProtocolOptions(), seconds, run)
