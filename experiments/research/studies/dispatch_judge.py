"""Build dispatchers for products that no suite holds, and judge them at random m by exhaustive timing and a race.

    python -m tilescout.experiments.research dispatch-judge --out judged.json

The products are drawn by a seed from the published models of `draw-problems`; none is in a suite, so that nothing was
fitted or chosen on them. Each dispatcher has --seconds to measure for. Then, at m drawn evenly from 1 to 16,384, the
kernels of the portfolio that a model finds most promising are timed in turns with `torch.mm`, those of them that it
does not put far behind, and the best three race what the dispatcher serves. The regret is the time of what it serves
over the least in that race, `torch.mm` among them. Which one that is was picked in the same race, so that the regret is
rather too large. A dispatcher that the cost model alone chooses is judged beside it.

A device that waited runs large products at other clocks than one at its power cap, and ratios differ. So each race has
rounds of both: `settled` is what counts, as a model keeps the device busy, and `rested` is printed beside it.

First, at some measured m that a kernel serves, that kernel races `torch.mm` again.
"""

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table as Grid

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.persistence import load_model, shipped_model
from tilescout.experiments.commands.options import Finite, collected, seed_option, store_option
from tilescout.experiments.research.runner import GPU_OR_RECORD, Run, device_option, study
from tilescout.experiments.research.studies.draw_problems import known_products, products
from tilescout.experiments.research.studies.draw_spread import MOST_BYTES
from tilescout.search.dispatch.building import DispatchOptions, candidates, measure_dispatcher, predict_dispatcher
from tilescout.search.dispatch.dispatcher import Dispatcher
from tilescout.search.dispatch.kernels import MOST_ROWS, Kernels, portfolio_of, promising
from tilescout.search.dispatch.measuring import SWEEPING, Sweep
from tilescout.search.dispatch.points import Point
from tilescout.search.engines.engine import CannotMeasureError, Engine
from tilescout.search.engines.local import LocalEngine
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.errors import ModelError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.suite import find_suite
from tilescout.spaces.templates import find_template

_LOG = logging.getLogger(__name__)

SPACE, SIGNATURE = "gemm_sm90", "bf16"
FASTEST = 3
HOPELESS = 0.3  # of a kernel's predicted time over the least, as a share: beyond, it is not timed
KINDS = ("dense", "deep")
MEASURED, PREDICTED = "measured", "predicted"
SETTLED, RESTED = "settled", "rested"
FEW_ROWS = 2048  # of 200 m that are drawn from all, few are below it, and tiles and the library's choices change fast


def drawn(count: int, seed: int) -> list[tuple[str, int, int]]:
    """Products of published models that are in no suite, the one of problems to judge by among them."""
    held = known_products() | {(each.n, each.k) for each in find_suite("out-of-sample").parsed(GemmProblem.parse)}
    listed = {product[1:]: product for kind in KINDS for product in products(kind) if product[1:] not in held}
    names = sorted(name for name in listed if GemmProblem(MOST_ROWS, *name).bytes <= MOST_BYTES)
    order = np.random.default_rng(seed).permutation(len(names))
    return [listed[names[at]] for at in order[:count]]


@dataclass(frozen=True)
class Judge:
    """Times what dispatchers serve against the best of many kernels.

    Attributes
    ----------
    engine, model
        Measure and predict.
    candidates
        Kernels of the portfolio that are timed.
    """

    engine: Engine
    model: CostModel
    candidates: int

    def sweep(self, problem: GemmProblem, dispatchers: Mapping[str, Dispatcher]) -> Sweep:
        """A sweep of the kernels of dispatchers and of the portfolio."""
        whole = portfolio_of(self.engine.template, problem, self.engine.device)
        listed = promising(whole, self.model, MOST_ROWS, self.candidates).configurations
        served = [kernel for dispatcher in dispatchers.values() for kernel in dispatcher.kernels]
        return Sweep(self.engine, replace(whole, configurations=tuple(dict.fromkeys([*served, *listed]))))

    def at(self, sweep: Sweep, m: int, dispatchers: Mapping[str, Dispatcher], seed: int) -> dict[str, Any]:
        """For each dispatcher, by a race at m: the time over the library's, and over the least."""
        served = {name: number_of(sweep.kernels, each, m) for name, each in dispatchers.items()}
        point = sweep.at(m, self._worth_timing(sweep, m, served.values()))
        fastest = sorted(point.ratios, key=lambda number: point.ratios[number].value)[:FASTEST]
        right = {*point.ratios, *point.slower}
        shown = (each for each in served.values() if each is not None and each in right)
        runners = list(dict.fromkeys([*shown, *fastest]))
        states = _raced(sweep, point, runners, seed)
        least = {state: min([1.0, *ratios.values()]) for state, ratios in states.items()}
        found: dict[str, Any] = {"m": m, "library_us": point.library_us, "timed": len(right)}
        found |= {"best": least[SETTLED], f"best_{RESTED}": least[RESTED]}
        for name, number in served.items():
            told = found[name] = {"library": number is None}
            for state, start in ((SETTLED, ""), (RESTED, f"{RESTED}_")):
                ratio = 1.0 if number is None else states[state].get(number, math.nan)
                told |= {f"{start}ratio": ratio, f"{start}regret": ratio / least[state] - 1}
        return found

    def _worth_timing(self, sweep: Sweep, m: int, served: Iterable[int | None]) -> list[int]:
        """The kernels that are served or that the model does not put too far behind, most promising first."""
        logs = np.nan_to_num(sweep.kernels.predict(self.model, [m])[:, 0], nan=np.inf)
        ordered = np.argsort(logs, kind="stable").tolist()
        return [at for at in ordered if at in served or logs[at] <= logs.min() + math.log1p(HOPELESS)]

    def again(self, sweep: Sweep, m: int, dispatcher: Dispatcher, seed: int) -> dict[str, Any]:
        """The time over the library's, at a measured m, of the kernel that serves it, in a race with nothing else."""
        number = number_of(sweep.kernels, dispatcher, m)
        assert number is not None, "a kernel serves it"
        point = sweep.at(m, [number])
        states = _raced(sweep, point, [number] if number in point.ratios else [], seed)
        ratio, rested = (states[state].get(number, math.nan) for state in (SETTLED, RESTED))
        told = {"library": False, "ratio": ratio, f"{RESTED}_ratio": rested}
        return {"m": m, "library_us": point.library_us, MEASURED: told}


def _raced(sweep: Sweep, point: Point, runners: Sequence[int], seed: int) -> dict[str, dict[int, float]]:
    """The times over the library's of some kernels, for a device that is settled and one that rested."""
    if not runners:
        return {SETTLED: {}, RESTED: {}}
    rested, settled = sweep.race(point, runners, seed)

    def means(rounds: Floats) -> dict[int, float]:
        return dict(zip(runners, np.exp(np.log(rounds).mean(axis=0)).tolist(), strict=True))

    return {SETTLED: means(settled), RESTED: means(rested)}


def judged(
    judge: Judge, problem: GemmProblem, asked: "Asked", seed: int, keep: Callable[[dict[str, Any]], None]
) -> None:
    """Build the dispatchers of a product, and judge them; all is kept as it comes."""
    options = DispatchOptions(seconds=asked.seconds)
    engine = judge.engine
    started = time.monotonic()
    kernels = candidates(portfolio_of(engine.template, problem, engine.device), judge.model, options)
    versions = {**engine.versions, "protocol": engine.protocol}
    described = engine.provenance.description
    made = {
        MEASURED: measure_dispatcher(Sweep(engine, kernels), options, described, versions),
        PREDICTED: predict_dispatcher(kernels, judge.model, options, "the shipped model"),
    }
    found: dict[str, Any] = {
        "problem": str(problem),
        "dispatchers": {name: each.to_dict() for name, each in made.items()},
        "build_seconds": time.monotonic() - started,
        "judge_seconds": 0.0,
        "again": [],
        "few": [],
        "judged": [],
    }
    keep(found)
    sweep = judge.sweep(problem, made)
    generator = np.random.default_rng(seed)
    random = (generator.choice(MOST_ROWS, asked.sizes, replace=False) + 1).tolist()
    few = (generator.choice(FEW_ROWS, asked.few, replace=False) + 1).tolist()
    served = [point.m for point in made[MEASURED].points if made[MEASURED].find(point.m) is not None]
    started = time.monotonic()
    work = [("again", m) for m in generator.permutation(served).tolist()[: asked.again]]
    for name, m in [*work, *(("few", m) for m in few), *(("judged", m) for m in random)]:
        if time.monotonic() - started > asked.judging:
            break
        try:
            at = judge.again(sweep, m, made[MEASURED], seed) if name == "again" else judge.at(sweep, m, made, seed)
            found[name].append(at)
        except CannotMeasureError as error:
            _LOG.warning("%d rows: %s", m, error)
        found["judge_seconds"] = time.monotonic() - started
        keep(found)


def number_of(kernels: Kernels, dispatcher: Dispatcher, m: int) -> int | None:
    """The number among some kernels of the one that a dispatcher serves m rows with; None for the library."""
    kernel = dispatcher.find(m)
    return None if kernel is None else list(kernels.configurations).index(dispatcher.kernels[kernel])


def figures(points: Sequence[Mapping[str, Any]], name: str, start: str = "") -> dict[str, float]:
    """The figures of one dispatcher over all m that were judged; `start` is that of the keys of a state."""
    regret = np.array([point[name][f"{start}regret"] for point in points], dtype=np.float64)
    ratio = np.array([point[name][f"{start}ratio"] for point in points], dtype=np.float64)
    known = np.isfinite(regret)
    regret, ratio = regret[known], ratio[known]
    return {
        "sizes": int(known.sum()),
        "unknown": int((~known).sum()),
        "mean": float(regret.mean()),
        "worst": float(regret.max()),
        "worst_at": int([point["m"] for point, good in zip(points, known, strict=True) if good][int(regret.argmax())]),
        "over_2": float((regret > 0.02).mean()),
        "over_5": float((regret > 0.05).mean()),
        "speed": float(np.exp(-np.log(ratio).mean())),
        "slowest": float(ratio.max()),
    }


def again_slowest(points: Sequence[Mapping[str, Any]], start: str = "") -> float:
    """The longest time over the library's at a measured m that was raced again; NaN without one."""
    return max((point[MEASURED].get(f"{start}ratio", math.nan) for point in points), default=math.nan)


def print_figures(console: Console, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Print and return the figures of every product that was judged."""
    found = {text: one for text, one in found.items() if one["judged"]}
    grid = Grid(title="dispatchers at random m: regret against the best of a race with the portfolio and torch.mm")
    for heading in ("product", "chosen by", "kernels", "ranges", "m judged", "mean", "worst", "at m", "over 2 %"):
        grid.add_column(heading, justify="right", no_wrap=True)
    for heading in ("over 5 %", "speed over torch.mm", "slowest over torch.mm", "again at measured m, slowest"):
        grid.add_column(heading, justify="right")
    result: dict[str, Any] = {}
    for text, one in found.items():
        result[text] = {}
        for name in (MEASURED, PREDICTED):
            told = result[text][name] = figures(one["judged"], name)
            shown = f"{again_slowest(one['again']):.4f}" if name == MEASURED else ""
            held = one["dispatchers"][name]
            counts = (str(len(held["kernels"])), str(len(held["ranges"])), str(told["sizes"]))
            grid.add_row(
                f"{text} ({one['model']})", name, *counts, f"{told['mean']:.2%}", f"{told['worst']:.2%}",
                f"{told['worst_at']:,}", f"{told['over_2']:.1%}", f"{told['over_5']:.1%}", f"{told['speed']:.4f}",
                f"{told['slowest']:.4f}", shown,
            )  # fmt: skip
        measured = result[text][MEASURED]
        measured["again_slowest"] = again_slowest(one["again"])
        measured["again"] = len(one["again"])
        measured["build_seconds"] = one["build_seconds"]
        if one.get("few"):
            result[text]["few"] = figures(one["few"], MEASURED)
        if f"best_{RESTED}" in one["judged"][0]:
            rested = result[text][RESTED] = figures(one["judged"], MEASURED, f"{RESTED}_")
            rested["again_slowest"] = again_slowest(one["again"], f"{RESTED}_")
    console.print(grid)
    for text, one in found.items():
        console.print(
            f"{text}: built in {one['build_seconds']:.0f} s, {len(one['dispatchers'][MEASURED]['points'])} m measured, "
            f"{len(one['dispatchers'][MEASURED].get('glances', ()))} glanced at, "
            f"{len(one['again'])} of them again; judged {len(one['judged'])} m in {one['judge_seconds']:.0f} s",
            highlight=False,
        )
        if "few" in result[text]:
            told = result[text]["few"]
            console.print(
                f"{text}, {told['sizes']} random m of at most {FEW_ROWS:,}: mean {told['mean']:.2%}, worst "
                f"{told['worst']:.2%} at {told['worst_at']:,}, speed over torch.mm {told['speed']:.4f}",
                highlight=False,
            )
        if RESTED in result[text]:
            rested = result[text][RESTED]
            console.print(
                f"{text}, on a device that rested: mean {rested['mean']:.2%}, worst {rested['worst']:.2%} at "
                f"{rested['worst_at']:,}; at measured m again, slowest {rested['again_slowest']:.4f}",
                highlight=False,
            )
    return result


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


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    products: int
    seconds: float
    sizes: int
    judging: float
    few: int
    again: int
    candidates: int
    device: str
    seed: int
    store: Path
    plot: Path | None


@study(GPU_OR_RECORD, again=True, draw=draw_regrets)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw the regrets into this file.")
@click.option("--products", type=click.IntRange(min=1), default=2, show_default=True, help="Products to draw.")
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
    "--repeats", "again", default=20, show_default=True, help="Measured m that a kernel serves, to race at again."
)
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
    with LocalEngine(find_template(SPACE), artifacts(asked.store), [asked.device], options=SWEEPING) as engine:
        report |= {"device": engine.product, "protocol": engine.protocol, "versions": dict(engine.versions)}
        shipped = shipped_model(SPACE, engine.device.name)
        if shipped is None:
            raise ModelError(f"no model of {SPACE} on {engine.device.name} is shipped: nothing says what to time")
        model, _ = load_model(shipped)
        judge = Judge(engine, model, asked.candidates)
        for number, (origin, n, k) in enumerate(drawn(asked.products, asked.seed)):
            problem = GemmProblem.parse(f"1x{n}x{k}:{SIGNATURE}")

            def keep(one: dict[str, Any], text: str = f"{n}x{k}", origin: str = origin) -> None:
                found[text] = {**one, "model": origin}
                run.keep(report)

            judged(judge, problem, asked, asked.seed + number, keep)
            place = run.out.with_name(f"{run.out.stem}-{n}x{k}.json")
            Dispatcher.from_dict(found[f"{n}x{k}"]["dispatchers"][MEASURED]).write(place)
            console.print(f"{n}x{k} ({origin}) is judged", highlight=False)
    report["figures"] = print_figures(console, found)
    run.keep(report)
    if asked.plot is not None:
        draw_regrets(report, asked.plot)
