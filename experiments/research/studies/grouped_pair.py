"""Check pairs of grouped kernels on a GPU: that the device chooses as the rule says, is right, and what that costs.

    python -m tilescout.experiments.research grouped-pair --out pair.json

The edge problems of ``grouped`` are computed by pairs of a kernel for few tokens and one for many, with a rule that
takes one, the other, or asks for tiles. The offsets that the choosing kernel wrote are compared with what the rule says
on the host, and the result with an fp32 reference. Then, of some problems, a pair that always takes one kernel is raced
against that kernel alone: the ratio is the price of the choice.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from tilescout.experiments.commands.options import store_option
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.grouped import DEVICE, EDGES, WRONG_ENDS, compilers, speed
from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.build.compilers import CompilePool
from tilescout.search.engines.jobs import make_job
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.grouped import Grouped, GroupedProblem
from tilescout.spaces.grouped_gemm_sm90 import TEMPLATE
from tilescout.spaces.grouped_pair_sm90 import TEMPLATE as PAIRS
from tilescout.spaces.grouped_pair_sm90 import pair_of
from tilescout.spaces.grouped_pair_sm90.rule import COUNTED, SCALE, PairRule, counted
from tilescout.spaces.grouped_pair_sm90.template import side_of
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import of_any_problem
from tilescout.spaces.workloads import Workload

if TYPE_CHECKING:
    import torch

SINGLE, PAIR = of_any_problem(TEMPLATE), of_any_problem(PAIRS)
FEW, MANY = (
    TEMPLATE.default(GroupedProblem.parse(text), DEVICE)
    for text in ("8x64x28672x4096", "8x8192x28672x4096:bf16:zipf-1")
)
RULES: Mapping[str, PairRule] = {
    "first": PairRule((-SCALE, 0, 0, 0, 0, 0)),
    "second": PairRule((SCALE, 0, 0, 0, 0, 0)),
    "by tiles": PairRule((0, -2 * SCALE, SCALE, 0, 0, 0)),
    "by rounds": PairRule((-SCALE, 0, 0, 0, SCALE, -SCALE)),
}
PRICED = ("8x1024x4096x14336:bf16:zipf-1", "128x2048x1536x2048:bf16:zipf-1", "128x64x2048x768:bf16:zipf-1")
ROUNDS, REPEATS = 8, 2


def built(pool: CompilePool, configuration: Configuration) -> Artifact:
    """The artifact of a configuration.

    Raises
    ------
    SpaceError
        If it does not compile.
    """
    made = pool.submit(configuration).result()
    if isinstance(made, CompileFailure):
        raise SpaceError(made.error)
    return made


def chosen_on_device(launch: Any, inputs: "tuple[torch.Tensor, ...]", output: "torch.Tensor") -> int:
    """The number of the kernel of a pair that the device chose; -1 if the offsets that it wrote are not those.

    The memory of the launch is given here, and read when it ended.
    """
    import torch

    ends = inputs[2]
    workspace = torch.full((2 * len(ends),), -7, dtype=torch.int32, device=ends.device)
    launch.entry(*launch.arguments(inputs, output, launch.max_clusters), workspace.view(torch.uint8))
    first, second = workspace.cpu().split(len(ends))
    given, none = ends.cpu(), torch.zeros_like(first)
    if torch.equal(first, given) and torch.equal(second, none):
        return 0
    return 1 if torch.equal(second, given) and torch.equal(first, none) else -1


def checked(worker: Worker, pool: CompilePool, texts: tuple[str, ...]) -> list[str]:
    """The errors of each rule's pair on some problems; nothing where all is right."""
    import torch

    found = list[str]()
    options = ProtocolOptions(heating_us=2000.0)
    at_once = worker.machine.max_clusters(1)
    pairs = {name: pair_of(FEW, MANY, rule) for name, rule in RULES.items()}
    for text in texts:
        problem = GroupedProblem.parse(text)
        bench = Bench(worker.machine, cast(Workload, Grouped()), problem, options)
        inputs = Grouped().inputs(problem, torch.Generator(worker.machine.device).manual_seed(0))
        output = Grouped().output(problem, inputs[0].device)
        for name, pair in pairs.items():
            launch = worker.load(make_job(PAIR, pair, built(pool, pair), problem, 1.0, options))
            error, _ = bench.verify(launch, edge=True)
            counts = counted(problem.groups, problem.n, (side_of(FEW), side_of(MANY)), at_once)
            expected, chose = int(RULES[name].score(counts) > 0), chosen_on_device(launch, inputs, output)
            if expected != chose:
                found.append(f"{text}, {name}: {dict(zip(COUNTED, counts.tolist(), strict=True))} chose {chose}")
            for wrong in WRONG_ENDS if problem.experts == len(WRONG_ENDS[0]) else ():
                ends = torch.tensor((0, *wrong), dtype=torch.int32, device=output.device)[1:]
                launch((*inputs[:2], ends), output)
                worker.machine.synchronize()
            print(f"{text:<44} {name:<10} error {error:.2g}, kernel {chose}", flush=True)
        del bench
        worker.machine.release()
    return found


def priced(worker: Worker, pair_pool: CompilePool, pool: CompilePool, text: str) -> dict[str, Any]:
    """The time of a pair that always takes the first or second kernel over that of this kernel alone."""
    problem, options = GroupedProblem.parse(text), ProtocolOptions()
    bench = Bench(worker.machine, cast(Workload, Grouped()), problem, options)
    launches = {}
    for name, each in (("first", FEW), ("second", MANY)):
        pair = pair_of(FEW, MANY, RULES[name])
        launches[name] = worker.load(make_job(SINGLE, each, built(pool, each), problem, 1.0, options))
        launches[f"{name} of a pair"] = worker.load(make_job(PAIR, pair, built(pair_pool, pair), problem, 1.0, options))
    for launch in launches.values():
        bench.verify(launch, edge=False)
    ratios = bench.race(list(launches.values()), ROUNDS, REPEATS, seed=0)
    us = bench.library_us
    told = {name: speed(column.tolist()) for name, column in zip(launches, ratios.T, strict=True)}
    price = {name: us / told[f"{name} of a pair"]["value"] - us / told[name]["value"] for name in ("first", "second")}
    return {"library_us": us, "speedup_over_library": told, "price_us": price}


@study("a Hopper GPU", out_required=True)
@click.argument("problems", nargs=-1)
@store_option
def main(run: Run, problems: tuple[str, ...], store: Path) -> None:
    """Check pairs on PROBLEMS, by default the edge problems, and price the choice."""
    worker = Worker("cuda")
    with compilers([PAIR, SINGLE], artifacts(store)) as pools:
        pair_pool, pool = pools[PAIR.name], pools[SINGLE.name]
        for name in RULES:  # compiled beside each other
            pair_pool.submit(pair_of(FEW, MANY, RULES[name]))
        result: dict[str, Any] = {"device": worker.machine.name, "prices": {}}
        for text in PRICED:
            result["prices"][text] = priced(worker, pair_pool, pool, text)
            run.keep(result)
            print(f"{text}: a choice costs {result['prices'][text]['price_us']} us", flush=True)
            worker.machine.release()
        result["wrong"] = checked(worker, pair_pool, problems or EDGES)
    run.keep(result)
    print(f"{len(problems or EDGES)} problems, {len(RULES)} rules: {result['wrong'] or 'all is right'}", flush=True)
