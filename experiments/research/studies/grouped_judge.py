"""Judge, on a GPU, what serves grouped products at numbers of tokens and routings that nothing was chosen on.

    python -m tilescout.experiments.research grouped-judge TABLE.parquet ... --counts 8 --seed 1 --out judge.json

From the tables the ranges of tokens are made as ``tilescout export`` makes them. For each of their products, numbers of
tokens are drawn, even in their logarithm, and a routing for each: balanced, or Zipf's law with a drawn exponent. At
each, all kernels of the tables are timed on draws of the routing that no table holds; then what serves and the fastest
of them race. The winner of a race is a little lucky in it. So what serves meets it once more, in rounds of their own:
the regret is what it is slower there, and the interval tells whether that is more than 5 %.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import click
import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.roofline import Roofline
from tilescout.experiments.commands.grouped_tables import grouped_of_tables, grouped_times, joined
from tilescout.experiments.commands.options import seed_option, store_option
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.duels import DuelOptions, Verdict, duel, verdict
from tilescout.experiments.research.runner import Run, study
from tilescout.experiments.research.studies.grouped import DEVICE, PAIRS, ROUNDS, UNSEEN, compilers, measured, speed
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.build.compilers import CompilePool
from tilescout.search.build.loading import Launch, load_launch
from tilescout.search.dispatch.grouped_times import GroupedTimes
from tilescout.search.export.from_studies import GroupedDispatched
from tilescout.search.measure.bench import Bench
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.race import Measure
from tilescout.search.measure.worker import Worker
from tilescout.search.studies.folders import artifacts
from tilescout.search.tables.table import Table
from tilescout.spaces.grouped import DRAWS, Grouped, GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.routing import Routing
from tilescout.spaces.workloads import Workload

_RACERS = 3
_MARGIN = 0.05  # what a regret is to be within
_DUEL = DuelOptions(half=0.005, least=3, most=12)
_STEEPEST = 1.4  # exponent of Zipf's law
_BALANCED = 0.25  # share of the problems
_LONG_US = (200.0, 400.0, 800.0)  # by its floor, from each of these on a product has half as many draws


def drawn(
    product: GroupedProblem,
    sizes: Sequence[int],
    count: int,
    generator: np.random.Generator,
    routed: Routing | None = None,
) -> list[GroupedProblem]:
    """Problems of a product between the least and the largest of some numbers of tokens, none of which is drawn.

    Their routings are drawn too, unless one is given.
    """
    found = list[GroupedProblem]()
    while len(found) < count:
        tokens = round(math.exp(generator.uniform(math.log(sizes[0]), math.log(sizes[-1]))))
        exponent = round(float(generator.uniform(0, _STEEPEST)), 2)
        routing = Routing() if generator.random() < _BALANCED else Routing("zipf", exponent)
        if tokens in sizes:
            continue
        one = replace(product, tokens=tokens, routing=routed or routing)
        draws = DRAWS >> sum(Roofline.of(one, DEVICE).time_us >= limit for limit in _LONG_US)
        found.append(replace(one, first_draw=UNSEEN, last_draw=UNSEEN + draws - 1))
    return found


@dataclass(frozen=True)
class Judged:
    """A product: its measured times, what was made of them, and the compilers of its kernels."""

    times: GroupedTimes
    made: GroupedDispatched
    pool: CompilePool

    def served(self, worker: Worker, tokens: int) -> Launch | None:
        """The kernel that serves so many tokens; None where the library does."""
        inside = next((each for each in self.made.dispatch.ranges if each.low <= tokens <= each.high), None)
        if inside is None or not inside.kernel:
            return None
        kernel, path = self.made.kernels[inside.kernel]
        clusters = worker.machine.max_clusters(kernel.blocks_per_cluster)
        return load_launch(path, kernel.sha256, kernel.function, kernel.workload, clusters, kernel.scratch_bytes)

    def pair(self, tokens: int) -> bool:
        """Whether the device chooses."""
        inside = next(each for each in self.made.dispatch.ranges if each.low <= tokens <= each.high)
        return bool(inside.kernel) and self.made.kernels[inside.kernel][0].key["space"] != self.times.template.name

    def legal(self, problem: GroupedProblem) -> list[Configuration]:
        """The kernels of the tables that are legal for a problem."""
        space = self.times.template.space(problem, self.times.device)
        return [each for each in self.times.configurations if each in space]


def rounds_of(bench: Bench, launches: Sequence[Launch | None]) -> Measure:
    """Measure some of the launches, by their numbers; None is the library, which takes as long as itself."""

    def measure(numbers: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        mine = {at: one for at, number in enumerate(numbers) if (one := launches[number]) is not None}
        ratios = np.ones((rounds, len(numbers)))
        ratios[:, list(mine)] = bench.race(list(mine.values()), rounds, pairs, seed)
        return ratios

    return measure


def judge(worker: Worker, product: Judged, problem: GroupedProblem, options: ProtocolOptions) -> dict[str, Any]:
    """The regret of what serves a problem, and its speed over the library."""
    bench = Bench(worker.machine, cast(Workload, Grouped()), problem, options)
    served = product.served(worker, problem.tokens)
    if served is not None:
        bench.verify(served, edge=False)  # its memory is that of the product
    rows: list[tuple[float, int, Launch]] = []
    configurations = product.legal(problem)
    for at, each in enumerate(configurations):
        built = product.pool.submit(each).result()
        best = min((ratio for ratio, _, _ in rows), default=None)
        row, launch = measured(worker, bench, product.times.template, each, built, best)
        if launch is not None and "ratio" in row:
            rows.append((row["ratio"], at, launch))
    fastest = sorted(rows, key=lambda one: one[:2])[:_RACERS]
    racing = [*(launch for _, _, launch in fastest), served]
    measure = rounds_of(bench, racing)
    ratios = measure(range(len(racing)), ROUNDS, PAIRS, 0)
    winner = int(np.log(ratios[:, :-1]).mean(axis=0).argmin())
    slower, heats = duel(measure, winner, len(fastest), seed=1, options=_DUEL)
    return {
        "tokens": problem.tokens,
        "library_us": bench.library_us,
        "kernels": len(configurations),
        "pair": product.pair(problem.tokens),
        "ours": served is not None,
        "speedup_over_library": speed(ratios[:, -1].tolist()),
        "best_over_library": speed(ratios[:, winner].tolist())["value"],
        "regret": max(slower.value - 1, 0.0),
        "slower": asdict(slower),
        "heats": heats,
        "verdict": verdict(slower, _MARGIN),
        "best": dict(configurations[fastest[winner][1]]),
    }


def summary(problems: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The mean and the largest regret, how many are above 5 % by each verdict, and the least speed over the library."""
    regrets = [each["regret"] for each in problems.values()]
    speeds = [each["speedup_over_library"]["value"] for each in problems.values()]
    return {
        "problems": len(regrets),
        "mean": fmean(regrets),
        "worst": max(regrets),
        "above_5_percent": sum(each > _MARGIN for each in regrets),
        **{str(one): sum(each["verdict"] == one for each in problems.values()) for one in Verdict},
        "geometric_mean_speed": math.exp(fmean(map(math.log, speeds))),
        "least_speed": min(speeds),
    }


@study("a Hopper GPU", out_required=True)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--counts", type=click.IntRange(1), default=8, show_default=True, help="Problems of each product.")
@seconds_option(100.0)
@click.option("--routing", help="How all tokens are routed, such as worst, instead of as drawn.")
@seed_option
@store_option
def main(
    run: Run, paths: tuple[Path, ...], counts: int, seconds: float, routing: str | None, seed: int, store: Path
) -> None:
    """Judge ranges of tokens made of tables, PATHS."""
    clock, tables = Clock(seconds), [Table.read(path) for path in paths]
    kept = ArtifactStore(artifacts(store))
    times = joined([each for table in tables for each in grouped_times(table)])
    made = grouped_of_tables(tables, kept)
    generator, options, worker = np.random.default_rng(seed), ProtocolOptions(), Worker("cuda")
    problems: dict[str, Any] = {}
    templates = {each.template.name: each.template for each in times}
    with compilers(list(templates.values()), artifacts(store)) as pools:
        products = [Judged(each, one, pools[each.template.name]) for each, one in zip(times, made, strict=True)]
        for product in products:  # compiled beside each other, before the first is asked for
            for configuration in product.times.configurations:
                product.pool.submit(configuration)
        routed = None if routing is None else Routing.parse(routing)
        wanted = [drawn(each.product, each.sizes, counts, generator, routed) for each in times]
        print(f"ranges made after {clock.spent:.0f} s", flush=True)
        turns = [turn for those in zip(*wanted, strict=True) for turn in zip(products, those, strict=True)]
        for product, problem in clock.in_time(turns):
            found = judge(worker, product, problem, options)
            worker.machine.release()
            problems[str(problem)] = found
            run.keep({"device": worker.machine.name, "problems": problems, "summary": summary(problems)})
            line = f"{found['library_us']:8.1f} us  {found['speedup_over_library']['value']:.3f} of torch's speed"
            way = "a pair" if found["pair"] else "one" if found["ours"] else "torch"
            low, high = (found["slower"][end] - 1 for end in ("low", "high"))
            print(
                f"{problem!s:<58} {line}, best {found['best_over_library']:.3f}: {found['regret']:.2%} "
                f"({low:.2%} to {high:.2%}; {way})",
                flush=True,
            )
    print(summary(problems))
