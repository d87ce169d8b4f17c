"""Build dispatchers for products that no suite holds, and judge them at random m by glances and races.

    python -m tilescout.experiments.research dispatch-judge --out judged.json

The products are drawn by a seed from a list of published models of `draw-problems`; none is in a suite, and no cost
model learned from those of the newest list. Each dispatcher has --seconds to measure for. Then, at m drawn evenly from
1 to 16,384, the kernels of both spaces that models do not put far behind are glanced at, and the best few race what
the dispatcher serves and `torch.mm`, in sandwiches. A winner that is more than a hundredth ahead then meets what is
served in a second race. The regret is the time of what is served over the winner's in that one, or none: the least of
many times is partly luck, and luck is not twice in the same place. A smaller regret is that of the first race, which
is rather too large. Rivals are not verified. With --predicted, a dispatcher that the cost models alone choose is
judged beside it. With --built, files of dispatchers are judged that were built before.

A device that waited runs large products at other clocks than one at its power cap, and ratios differ. So each race has
rounds of both: `settled` is what counts, as a model keeps the device busy, and `rested` is printed beside it.

First, at some measured m that a kernel serves, that kernel races `torch.mm` again. Last, what is served and the winner
race some more times at the m with the largest regrets: the largest of many is partly luck, too.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.persistence import load_model
from tilescout.costmodel.relatives import model_for
from tilescout.experiments.commands.options import Finite, collected, seed_option, store_option
from tilescout.experiments.research.clock import Clock
from tilescout.experiments.research.dispatch_figures import MEASURED, again_slowest, figures, largest
from tilescout.experiments.research.dispatch_rivals import PROCESSES, looks, numbers_of_candidates
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, device_option, study
from tilescout.experiments.research.studies.draw_problems import known_products, of_suite, pool_option, products
from tilescout.experiments.research.studies.draw_spread import MOST_BYTES
from tilescout.search.dispatch.building import DispatchOptions, candidates, measure_dispatcher, predict_dispatcher
from tilescout.search.dispatch.bundling import kernels_of
from tilescout.search.dispatch.dispatcher import Dispatcher, read_dispatcher
from tilescout.search.dispatch.kernels import MOST_ROWS, Kernels, Models, portfolios_of
from tilescout.search.dispatch.measuring import SWEEPING, Sweep
from tilescout.search.dispatch.points import Point
from tilescout.search.engines.engine import CannotMeasureError, Engine
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.interval import mean_interval
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.processes import spawn_context
from tilescout.spaces.templates import KernelTemplate, find_template

_LOG = logging.getLogger(__name__)

_KEEP_EVERY = 20

SPACE, SIGNATURE = "gemm_sm90", "bf16"
FASTEST = 4
HEATS = 4  # races more at an m with one of the largest regrets
CLEAR = 0.01  # a first regret up to this, as a share, is no reason for a second race
KINDS = ("dense", "deep")
PREDICTED = "predicted"
SETTLED, RESTED = "settled", "rested"
FEW_ROWS = 2048  # of 200 m that are drawn from all, few are below it, and tiles and the library's choices change fast


def drawn(count: int, seed: int, pool: str) -> list[tuple[str, int, int]]:
    """Products of a list of models that are in no suite, the one of problems to judge by among them."""
    held = known_products() | of_suite()
    listed = {product[1:]: product for kind in KINDS for product in products(kind, pool) if product[1:] not in held}
    names = sorted(name for name in listed if GemmProblem(MOST_ROWS, *name).bytes <= MOST_BYTES)
    order = np.random.default_rng(seed).permutation(len(names))
    return [listed[names[at]] for at in order[:count]]


@dataclass(frozen=True)
class Judge:
    """Times what dispatchers serve against the best of many kernels.

    Attributes
    ----------
    engine, beside
        They measure, and compile the kernels of each space.
    models
        They predict.
    options
        How many kernels of each space there are to judge by.
    """

    engine: Engine
    beside: Sequence[Engine]
    models: Models
    options: DispatchOptions

    def portfolios(self, problem: GemmProblem) -> Kernels:
        """All kernels to choose among."""
        return portfolios_of(self.engine.template, problem, self.engine.device)

    def rivals(self, problem: GemmProblem, pool: Executor) -> "Future[list[int]]":
        """The numbers among the portfolios of the kernels to judge by; a process of a pool finds them."""
        return pool.submit(numbers_of_candidates, self.portfolios(problem), self.models, self.options)

    def sweep(self, problem: GemmProblem, dispatchers: Iterable[Dispatcher], rivals: Sequence[int]) -> Sweep:
        """A sweep of the kernels of dispatchers and of rivals."""
        kernels = reduce(Kernels.and_others, map(kernels_of, dispatchers))
        return Sweep(self.engine, kernels.and_others(self.portfolios(problem).take(rivals)), self.beside)

    def at(
        self, sweep: Sweep, m: int, dispatchers: Mapping[str, Dispatcher], near: Sequence[int], seed: int
    ) -> dict[str, Any]:
        """For each dispatcher, by a race at m: the time over the library's, and over the least.

        Parameters
        ----------
        sweep, m, dispatchers
            By what, where and what is judged.
        near
            The numbers of the kernels to glance at besides those that are served; see `worth_looking_at`.
        seed
            Of the order of the races.
        """
        served = {name: number_of(sweep.kernels, each, m) for name, each in dispatchers.items()}
        shown = list(dict.fromkeys(each for each in served.values() if each is not None))
        kept = [_number(sweep.kernels, kernel) for each in dispatchers.values() for kernel in each.kernels]
        point = sweep.glance(m, list(dict.fromkeys([*shown, *kept, *near])))
        assert point is not None, "a kernel is legal for every m"
        fastest = sorted(point.ratios, key=lambda number: point.ratios[number].value)[:FASTEST]
        states = _raced(sweep, point, list(dict.fromkeys([*shown, *fastest])), seed)
        found: dict[str, Any] = {"m": m, "library_us": point.library_us, "glanced": len(point.ratios)}
        winners = {state: min(ratios, key=lambda number: ratios[number]) for state, ratios in states.items()}
        beaten = [number for number in winners.values() if number is not None]
        settled = states[SETTLED]
        clear = any(settled.get(number, math.inf) / min(settled.values()) > 1 + CLEAR for number in served.values())
        again = _raced(sweep, point, list(dict.fromkeys([*shown, *beaten])), seed + 1) if clear else states
        found["races"] = 2 if clear else 1
        found["kept_glance"] = min((point.ratios[each].value for each in kept if each in point.ratios), default=1.0)
        found["best_glance"] = min(each.value for each in point.ratios.values())
        for state, start in ((SETTLED, ""), (RESTED, f"{RESTED}_")):
            winner, ratios = winners[state], again[state]
            found |= {f"{start}best": ratios[winner], f"{start}winner": _named(sweep.kernels, winner)}
            for name, number in served.items():
                told = found.setdefault(name, {"library": number is None, "served": _named(sweep.kernels, number)})
                ratio = ratios.get(number, math.nan)
                told |= {f"{start}ratio": ratio, f"{start}regret": max(ratio / ratios[winner] - 1, 0.0)}
                told[f"{start}first_regret"] = states[state].get(number, math.nan) / states[state][winner] - 1
        return found

    def again(self, sweep: Sweep, m: int, dispatcher: Dispatcher, seed: int) -> dict[str, Any]:
        """The time over the library's, at a measured m, of the kernel that serves it, in a race with nothing else."""
        number = number_of(sweep.kernels, dispatcher, m)
        assert number is not None, "a kernel serves it"
        point = sweep.at(m, [number])
        states = _raced(sweep, point, [number] if number in point.ratios else [], seed)
        ratio, rested = (states[state].get(number, math.nan) for state in (SETTLED, RESTED))
        told = {"library": False, "ratio": ratio, f"{RESTED}_ratio": rested}
        return {"m": m, "library_us": point.library_us, MEASURED: told}

    def confirmed(self, sweep: Sweep, found: Mapping[str, Any], dispatcher: Dispatcher, seed: int) -> dict[str, Any]:
        """The regret at an m that was judged, by some more races of what is served and what won alone."""
        m, winner = found["m"], found["winner"]
        served = number_of(sweep.kernels, dispatcher, m)
        best = None if winner is None else _number(sweep.kernels, Configuration.of(winner["configuration"]))
        runners = [each for each in dict.fromkeys([served, best]) if each is not None]
        point, logs = Point(m, found["library_us"]), list[float]()
        for heat in range(HEATS if served != best else 0):
            _, settled = sweep.race(point, runners, seed + heat)
            rounds: dict[int | None, Floats] = {
                None: np.zeros(len(settled)),
                **dict(zip(runners, np.log(settled).T, strict=True)),
            }
            logs.extend((rounds[served] - rounds[best]).tolist())
        value, low, high = mean_interval(np.exp(logs).tolist()) if logs else (1.0, 1.0, 1.0)
        return {"m": m, "judged": found[MEASURED]["regret"], "regret": value - 1, "low": low - 1, "high": high - 1}


def _named(kernels: Kernels, number: int | None) -> dict[str, Any] | None:
    """A kernel's space and knobs; None for the library."""
    if number is None:
        return None
    return {"space": kernels.templates[number].name, "configuration": dict(kernels.configurations[number])}


def _raced(sweep: Sweep, point: Point, runners: Sequence[int], seed: int) -> dict[str, dict[int | None, float]]:
    """The times over the library's of some kernels, and its own, for a device that is settled and one that rested."""
    if not runners:
        return {SETTLED: {None: 1.0}, RESTED: {None: 1.0}}
    rested, settled = sweep.race(point, runners, seed)

    def means(rounds: Floats) -> dict[int | None, float]:
        return {None: 1.0, **dict(zip(runners, np.exp(np.log(rounds).mean(axis=0)).tolist(), strict=True))}

    return {SETTLED: means(settled), RESTED: means(rested)}


def built(judge: Judge, problem: GemmProblem, seconds: float, predicted: bool) -> dict[str, Dispatcher]:
    """The dispatchers of a product: of what is measured in some seconds, and if asked for of what models say."""
    options = DispatchOptions(seconds=seconds)
    kernels = candidates(judge.portfolios(problem), judge.models, options)
    engine = judge.engine
    versions = {**engine.versions, "protocol": engine.protocol}
    sweep = Sweep(engine, kernels, judge.beside, most_rows=options.most_rows).wait()
    made = {MEASURED: measure_dispatcher(sweep, options, engine.provenance.description, versions)}
    if predicted:
        made[PREDICTED] = predict_dispatcher(kernels, judge.models, options, "the shipped models")
    return made


def judged(
    judge: Judge,
    made: Mapping[str, Dispatcher],
    rivals: "Future[list[int]]",
    asked: "Asked",
    seed: int,
    pool: Executor,
    keep: Callable[[dict[str, Any]], None],
) -> None:
    """Judge the dispatchers of a product; all is kept as it comes."""
    found: dict[str, Any] = {
        "problem": str(made[MEASURED].problem),
        "dispatchers": {name: each.to_dict() for name, each in made.items()},
        "judge_seconds": 0.0,
        "again": [],
        "few": [],
        "judged": [],
        "confirmed": [],
    }
    keep(found)
    sweep = judge.sweep(made[MEASURED].problem, made.values(), rivals.result())
    generator = np.random.default_rng(seed)
    random = (generator.choice(MOST_ROWS, asked.sizes, replace=False) + 1).tolist()
    few = (generator.choice(FEW_ROWS, asked.few, replace=False) + 1).tolist()
    served = [point.m for point in made[MEASURED].points if made[MEASURED].find(point.m) is not None]
    near = looks(sweep.kernels, judge.models, [*few, *random], pool)
    clock = Clock(asked.judging)
    work = [("again", m) for m in generator.permutation(served).tolist()[: asked.again]]
    for name, m in clock.in_time([*work, *(("few", m) for m in few), *(("judged", m) for m in random)]):
        try:
            if name == "again":
                found[name].append(judge.again(sweep, m, made[MEASURED], seed))
            else:
                found[name].append(judge.at(sweep, m, made, near[m], seed))
        except CannotMeasureError as error:
            _LOG.warning("%d rows: %s", m, error)
        found["judge_seconds"] = clock.spent
        if len(found["judged"]) % _KEEP_EVERY == 0:
            keep(found)
    keep(found)
    for point in largest(found["judged"], asked.confirmed):
        try:
            found["confirmed"].append(judge.confirmed(sweep, point, made[MEASURED], seed + 2))
        except CannotMeasureError as error:
            _LOG.warning("%d rows: %s", point["m"], error)
    keep(found)


def number_of(kernels: Kernels, dispatcher: Dispatcher, m: int) -> int | None:
    """The number among some kernels of the one that a dispatcher serves m rows with; None for the library."""
    kernel = dispatcher.find(m)
    return None if kernel is None else _number(kernels, dispatcher.kernels[kernel])


def _number(kernels: Kernels, configuration: Configuration) -> int:
    return list(kernels.configurations).index(configuration)


def print_figures(console: Console, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Print and return the figures of every product that was judged."""
    found = {text: one for text, one in found.items() if one["judged"]}
    result = {text: figures_of(one) for text, one in found.items()}
    grid = Grid(title="dispatchers at random m: regret against the best of a race with the portfolio and torch.mm")
    for heading in ("product", "chosen by", "kernels", "ranges", "m judged", "mean", "worst", "at m", "over 2 %"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for heading in ("over 5 %", "speed over torch.mm", "slowest over torch.mm", "again at measured m, slowest"):
        grid.add_column(heading, justify="right")
    for text, one in found.items():
        for name, held in one["dispatchers"].items():
            told = result[text][name]
            grid.add_row(
                f"{text} ({one['model']})", name, str(len(held["kernels"])), str(len(held["ranges"])),
                str(told["sizes"]), f"{told['mean']:.2%}", f"{told['worst']:.2%}", f"{told['worst_at']:,}",
                f"{told['over_2']:.1%}", f"{told['over_5']:.1%}", f"{told['speed']:.4f}", f"{told['slowest']:.4f}",
                f"{told['again_slowest']:.4f}" if name == MEASURED else "",
            )  # fmt: skip
    console.print(grid)
    for text, one in found.items():
        for line in _lines(one, result[text]):
            console.print(text + line, highlight=False)
    return result


def figures_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of each dispatcher of a product, and of the measured one in other states and at other m."""
    result: dict[str, Any] = {name: figures(one["judged"], name) for name in one["dispatchers"]}
    result[MEASURED] |= {
        "again_slowest": again_slowest(one["again"]),
        "again": len(one["again"]),
        "build_seconds": one.get("build_seconds", math.nan),
    }
    if one.get("few"):
        result["few"] = figures(one["few"], MEASURED)
    if any(f"{RESTED}_regret" in point[MEASURED] for point in one["judged"]):
        result[RESTED] = figures(one["judged"], MEASURED, f"{RESTED}_")
        result[RESTED]["again_slowest"] = again_slowest(one["again"], f"{RESTED}_")
    if one.get("confirmed"):
        worst = max(one["confirmed"], key=lambda each: float(each["regret"]))
        over = sum(each["regret"] > 0.05 for each in one["confirmed"])
        result["confirmed"] = {**worst, "sizes": len(one["confirmed"]), "over_5": over}
    return result


def _lines(one: Mapping[str, Any], told: Mapping[str, Any]) -> Iterator[str]:
    """The figures that are not in the table, behind the product's name."""
    measured = one["dispatchers"][MEASURED]
    yield (
        f": built in {told[MEASURED]['build_seconds']:.0f} s, {len(measured['points'])} m measured, "
        f"{len(measured.get('glances', ()))} glanced at, {told[MEASURED]['again']} of them again; "
        f"judged {len(one['judged'])} m in {one['judge_seconds']:.0f} s"
    )
    if worst := told.get("confirmed"):
        yield (
            f", {worst['sizes']} m with the largest regrets again, {HEATS} races each: worst "
            f"{worst['regret']:.2%} [{worst['low']:.2%}, {worst['high']:.2%}] at {worst['m']:,}, "
            f"{worst['over_5']} over 5 %"
        )
    if few := told.get("few"):
        yield (
            f", {few['sizes']} random m of at most {FEW_ROWS:,}: mean {few['mean']:.2%}, worst "
            f"{few['worst']:.2%} at {few['worst_at']:,}, speed over torch.mm {few['speed']:.4f}"
        )
    if rested := told.get(RESTED):
        yield (
            f", on a device that rested: mean {rested['mean']:.2%}, worst {rested['worst']:.2%} at "
            f"{rested['worst_at']:,}; at measured m again, slowest {rested['again_slowest']:.4f}"
        )


def draw_regrets(result: Mapping[str, Any], path: Path) -> None:
    """Draw the regret at each m that was judged: of the dispatcher that was measured, and of the library alone."""
    from matplotlib.figure import Figure

    products = result["products"]
    figure = Figure(figsize=(5.2 * len(products), 3.8), dpi=120, layout="constrained")
    for axes, (text, one) in zip(figure.subplots(1, len(products), squeeze=False)[0], products.items(), strict=True):
        points = sorted(one["judged"], key=lambda point: int(point["m"]))
        sizes = [point["m"] for point in points]
        alone = [100 * (1 / point["best"] - 1) for point in points]
        served = [100 * point[MEASURED]["regret"] for point in points]
        axes.plot(sizes, alone, "x", color="#94a3b8", markersize=5, label="torch.mm alone")
        axes.plot(sizes, served, "o", color="#2563eb", markersize=3.5, label="the dispatcher")
        axes.axhline(5, color="#d97706", linewidth=0.8)
        axes.set_title(f"{text} ({one['model']})", loc="left")
        axes.set_xlabel("m")
        axes.set_ylabel("regret, %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path)


def _model(template: KernelTemplate, device: Device) -> CostModel:
    shipped = model_for(template.name, device.name)
    if shipped is None:
        raise ModelError(f"no model of {template.name} on {device.name} is shipped: nothing says what to time")
    return load_model(shipped)[0]


def _read(path: Path) -> dict[str, Dispatcher]:
    return {MEASURED: read_dispatcher(path)}


def _wanted(judge: Judge, asked: "Asked") -> Iterator[tuple[str, GemmProblem, Callable[[], dict[str, Dispatcher]]]]:
    """Where each product is from, its problem, and what makes its dispatchers."""
    for path in asked.built:
        yield path.name, read_dispatcher(path).problem, partial(_read, path)
    if not asked.built:
        for origin, n, k in drawn(asked.products, asked.seed, asked.pool):
            problem = GemmProblem.parse(f"1x{n}x{k}:{SIGNATURE}")
            yield origin, problem, partial(built, judge, problem, asked.seconds, asked.predicted)


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    products: int
    pool: str
    built: tuple[Path, ...]
    seconds: float
    sizes: int
    judging: float
    few: int
    predicted: bool
    again: int
    confirmed: int
    candidates: int
    device: str
    seed: int
    store: Path
    plot: Path | None


@study(GPU_OR_RECORD, again=True, draw=draw_regrets)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the regrets into this file.")
@click.option("--products", type=click.IntRange(min=1), default=2, show_default=True, help="Products to draw.")
@pool_option
@click.option(
    "--built",
    type=click.Path(path_type=Path),
    multiple=True,
    help="A dispatcher to judge, not a drawn one. Repeatable.",
)
@click.option(
    "--seconds", type=Finite(min=0), default=70.0, show_default=True, help="To measure for, of each dispatcher."
)
@click.option("--sizes", type=click.IntRange(min=1), default=200, show_default=True, help="Random m to judge at.")
@click.option(
    "--judging", type=Finite(min=0), default=150.0, show_default=True, help="Seconds for these, of each product."
)
@click.option(
    "--few",
    type=click.IntRange(0, FEW_ROWS),
    default=0,
    show_default=True,
    help=f"Random m up to {FEW_ROWS:,} besides.",
)
@click.option(
    "--predicted/--no-predicted",
    default=True,
    show_default=True,
    help="Whether a dispatcher that the models alone choose is judged, too.",
)
@click.option(
    "--repeats", "again", default=20, show_default=True, help="Measured m that a kernel serves, to race at again."
)
@click.option("--confirmed", default=10, show_default=True, help="Of the m with the largest regrets, to race at again.")
@click.option("--candidates", type=click.IntRange(1, 200), default=64, show_default=True, help="Kernels to judge by.")
@device_option
@seed_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Build and judge a dispatcher of every product."""
    console = Console(width=200)
    if run.record is not None:
        print_figures(console, run.record.result["products"])
        if asked.plot is not None:
            draw_regrets(run.record.result, asked.plot)
        return
    if run.out is None:
        raise click.UsageError("name a file to write with --out, or one to print again with --again")
    found: dict[str, Any] = {}
    report: dict[str, Any] = {"signature": SIGNATURE, "products": found}
    spaces = [find_template(SPACE), find_template(find_template(SPACE).complement)]
    with (
        LocalEngine(spaces[0], artifacts(asked.store), [asked.device], options=SWEEPING) as engine,
        engine.beside(spaces[1]) as beside,
        ProcessPoolExecutor(PROCESSES, spawn_context()) as pool,
    ):
        report |= {"device": engine.product, "protocol": engine.protocol, "versions": dict(engine.versions)}
        options = DispatchOptions(candidates=asked.candidates, others=asked.candidates // 2)
        judge = Judge(engine, [beside], {each.name: _model(each, engine.device) for each in spaces}, options)
        for number, (origin, problem, make) in enumerate(_wanted(judge, asked)):
            clock = Clock()
            rivals = judge.rivals(problem, pool)
            made = make()
            about = {"model": origin, "build_seconds": clock.spent}
            name = f"{made[MEASURED].problem.n}x{made[MEASURED].problem.k}"
            made[MEASURED].write(run.out.with_name(f"{run.out.stem}-{name}.json"))

            def keep(one: dict[str, Any], name: str = name, about: Mapping[str, Any] = about) -> None:
                found[name] = {**one, **about}
                run.keep(report)

            judged(judge, made, rivals, asked, asked.seed + number, pool, keep)
            console.print(f"{name} ({origin}) is judged", highlight=False)
    report["figures"] = print_figures(console, found)
    run.keep(report)
    if asked.plot is not None:
        draw_regrets(report, asked.plot)
