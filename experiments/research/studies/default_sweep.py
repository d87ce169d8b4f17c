"""Glance at kernels of both GEMM spaces beside the library, on hundreds of problems of random sizes.

    python -m tilescout.experiments.research default-sweep --kernels kernels.json --seed 81 --out sweep.json.gz

What is expected of kernels and of the library where nothing may be measured is learned from such a file. The kernels
are those of a record of `default-kernels`. At each problem those that trees and estimates rank first are glanced at,
and a few others. Nothing is verified, and launches are in chains.

With `--product`, the problems are those of a few products at many m instead, by turns: what dispatchers of these choose
among.

With `--also`, problems and defaults of records of `default-live` are glanced at first: what sandwiches showed there
tells what chains are off.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from tilescout.experiments.commands.options import collected, seed_option, store_option
from tilescout.experiments.research.clock import Clock, seconds_option
from tilescout.experiments.research.glances import Glances
from tilescout.experiments.research.records import Record
from tilescout.experiments.research.runner import Run, device_option, study
from tilescout.experiments.research.studies.default_kernels import Kernels, kernels_of, random_problems
from tilescout.experiments.research.studies.dispatch_sweep import product_of
from tilescout.search.dispatch.glances import glanced_sizes
from tilescout.search.dispatch.kernels import MOST_ROWS
from tilescout.search.dispatch.measuring import SWEEPING
from tilescout.search.engines.engine import Engine
from tilescout.search.engines.local import LocalEngine
from tilescout.search.studies.folders import artifacts
from tilescout.spaces.errors import SpaceError, TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.unmeasured import SHARING, WHOLE
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import find_template

_LOG = logging.getLogger(__name__)

LIBRARY = "cublaslt"
_ROUNDS = 3
_KEEP_EVERY = 40


class Sweep:
    """Kernels of both spaces, compiled, beside the library on one problem after the other.

    Parameters
    ----------
    engines
        Of each space, on the same GPU.
    kernels
        Of each space, in the same order.
    signature
        The types of all problems.
    """

    def __init__(self, engines: Sequence[Engine], kernels: Sequence[Kernels], signature: str) -> None:
        self._engine, self._kernels, self._glances = engines[0], kernels, Glances(engines)
        self.configurations = [each.configurations for each in kernels]
        for space, configurations in enumerate(self.configurations):
            self._glances.compile(((space, each) for each in configurations), signature)

    def numbers(self, problem: GemmProblem, first: Sequence[int], generator: np.random.Generator) -> list[list[int]]:
        """Of each space the legal kernels that are expected to be the fastest, and a few others."""
        found = []
        for kernels, most in zip(self._kernels, first, strict=True):
            ranked = kernels.ranked(problem, self._engine.device)
            others = generator.permutation(ranked[most:])[: max(most // 4, 1)].tolist()
            found.append([*ranked[:most], *others])
        return found

    def at(self, problem: GemmProblem, numbers: Sequence[Sequence[int]], seed: int) -> dict[str, Any]:
        """The library's time and its first guess, and times of kernels over its: of each space, by number.

        Raises
        ------
        CannotMeasureError
            If one of the kernels took the measuring process down.
        """
        kernels = {
            (space, self.configurations[space][number]): number
            for space, chosen in enumerate(numbers)
            for number in chosen
        }
        library_us, times = self._glances.at(problem, list(kernels), _ROUNDS, seed)
        ratios: list[dict[str, list[float]]] = [{} for _ in numbers]
        for kernel, column in times.items():
            ratios[kernel[0]][str(kernels[kernel])] = [round(each, 4) for each in column]
        return {"problem": str(problem), "library_us": library_us, "guess": self._guess(problem), "ratios": ratios}

    def _guess(self, problem: GemmProblem) -> list[int] | None:
        """The configuration that the library's heuristic names; None if the library has none."""
        try:
            listed = self._engine.listing(0, find_template(LIBRARY), problem, 1).result()
        except SpaceError:
            return None
        return [int(value) for value in listed.rows[0]]


def problems_of(products: Sequence[str], signature: str) -> Iterator[GemmProblem]:
    """The problems of products at m that are spread over all sizes, by turns.

    Raises
    ------
    ProblemError
        If a product is not written as NxK.
    """
    known = [product_of(text, signature) for text in products]
    yield from (replace(product, m=m) for m in glanced_sizes(MOST_ROWS) for product in known)


@dataclass(frozen=True)
class Asked:
    """The parameters of the command; its help text says what each means."""

    kernels: Path
    products: tuple[str, ...]
    first: tuple[int, int]
    also: tuple[Path, ...]
    seconds: float
    device: str
    seed: int
    store: Path


@study("a Hopper GPU", out_required=True)
@click.option("--kernels", type=click.Path(path_type=Path), required=True, help="A record of default-kernels.")
@click.option("--product", "products", multiple=True, metavar="NxK", help="Not random problems. Repeatable.")
@click.option(
    "--first", type=click.IntRange(min=1), nargs=2, default=(12, 10), show_default=True,
    help="Of each space, how many that are ranked first are glanced at.",
)  # fmt: skip
@click.option("--also", type=click.Path(path_type=Path), multiple=True, help="A record of default-live. Repeatable.")
@seconds_option(80.0)
@device_option
@seed_option
@store_option
@collected(Asked)
def main(run: Run, asked: Asked) -> None:
    """Glance at problems until the time is over."""
    listed = Record.read(asked.kernels).result
    signature = listed["signature"]
    live = [one for path in asked.also for one in Record.read(path).result["problems"]]
    live = [one for one in live if GemmProblem.parse(one["problem"]).signature == signature]
    generator = np.random.default_rng(asked.seed)
    of_products = problems_of(asked.products, signature)
    drawn = of_products if asked.products else random_problems(signature, asked.seed)
    found: list[dict[str, Any]] = []
    report: dict[str, Any] = {"signature": signature, "problems": found}
    spaces = [find_template(name) for name in (WHOLE, SHARING)]
    with (
        LocalEngine(spaces[0], artifacts(asked.store), [asked.device], options=SWEEPING) as engine,
        engine.beside(spaces[1]) as beside,
    ):
        chosen = [[Configuration.of(each) for each in listed["kernels"][space.name]] for space in spaces]
        defaults = [Configuration.of(one["configuration"]) for one in live]
        kernels = [kernels_of(spaces[0], [*chosen[0], *defaults]), kernels_of(spaces[1], chosen[1])]
        sweep = Sweep([engine, beside], kernels, signature)
        report |= {"device": engine.product, "versions": dict(engine.versions)}
        report["kernels"] = [[dict(each) for each in some] for some in sweep.configurations]

        def look(problem: GemmProblem, also: Sequence[int]) -> None:
            numbers = sweep.numbers(problem, asked.first, generator)
            numbers[0] = list(dict.fromkeys([*numbers[0], *also]))
            try:
                found.append(sweep.at(problem, numbers, len(found)))
            except TilescoutError as error:
                _LOG.warning("%s: %s", problem, one_line(error))
            if len(found) % _KEEP_EVERY == 0:
                run.keep(report)

        clock = Clock(asked.seconds)
        for one, default in zip(live, defaults, strict=True):
            look(GemmProblem.parse(one["problem"]), [sweep.configurations[0].index(default)])
        for problem in clock.in_time(drawn):
            look(problem, [])
    run.keep(report)
    print_sweep(Console(width=120), found)


def print_sweep(console: Console, found: Sequence[dict[str, Any]]) -> None:
    """Print how many problems were glanced at, and how the best kernels do."""
    console.print(f"{len(found)} problems", highlight=False)
    if not found:
        return
    best = np.array(
        [
            [min((float(np.median(each)) for each in ratios.values()), default=np.inf) for ratios in one["ratios"]]
            for one in found
        ]
    )
    for name, ratios in ((WHOLE, best[:, 0]), (SHARING, best[:, 1]), ("both", best.min(axis=1))):
        known = ratios[np.isfinite(ratios)]
        console.print(
            f"{name}: the best that was glanced at has {np.exp(-np.log(known).mean()):.4f} of the library's speed, and "
            f"{np.exp(-np.minimum(np.log(known), 0).mean()):.4f} where it runs only if it is faster",
            highlight=False,
        )
