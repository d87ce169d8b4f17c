"""Measure how long the default configuration of a problem takes to be found.

    python -m tilescout.experiments.research default-time --out default.json

No GPU is used. The problems are drawn at random, as nothing depends on which they are but the number of legal
configurations. The figures are processor time of one core, which other work on the machine changes less than the clock
on the wall.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial

import click
import numpy as np

from tilescout.experiments.research.runner import Run, study
from tilescout.spaces.devices import find_device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.defaults import shipped_defaults
from tilescout.spaces.gemm_sm90.ranking import features
from tilescout.spaces.gemm_sm90.template import ALWAYS, KNOBS, TEMPLATE, fastest, legal
from tilescout.spaces.gemm_sm90.unmeasured import shipped_rules, tiles_of

_LARGEST = 16_384
_SIGNATURE = "bf16"
_STEP = 8  # of n and k, as TMA wants them


def drawn(count: int, seed: int) -> list[GemmProblem]:
    """Problems in bf16, their sizes even in the logarithm."""
    sizes = np.exp(np.random.default_rng(seed).uniform(0, np.log(_LARGEST), (count, 3))).astype(int)
    sizes[:, 1:] = np.maximum(sizes[:, 1:] // _STEP, 1) * _STEP
    return [GemmProblem(m, n, k) for m, n, k in sizes.tolist()]


def microseconds(answers: Sequence[Callable[[], object]], passes: int) -> float:
    """Processor time of one answer in µs: the mean over some, and of that the least of some passes."""
    found = []
    for _ in range(passes):
        started = time.process_time()
        for answer in answers:
            answer()
        found.append((time.process_time() - started) / len(answers) * 1e6)
    return min(found)


@study("no GPU")
@click.option("--problems", default=100, show_default=True, help="Problems to answer.")
@click.option("--passes", default=9, show_default=True, help="Times that all are answered.")
def main(run: Run, problems: int, passes: int) -> None:
    """Time the load of the data and each part of an answer, and print the times."""
    device = find_device("h200")
    started = time.process_time()
    defaults = shipped_defaults(KNOBS)
    columns = defaults.columns(KNOBS, 2, 2, device, ALWAYS)
    result: dict[str, float] = {"load_ms": 1e3 * (time.process_time() - started)}
    started = time.process_time()
    rule = shipped_rules().rules[_SIGNATURE]
    tiles = tiles_of(rule.kernels, _SIGNATURE, device)
    result["unmeasured_load_ms"] = 1e3 * (time.process_time() - started)
    asked = drawn(problems, 0)
    allowed = [(problem, legal(columns, problem, device)) for problem in asked]
    tilings = [TEMPLATE.tiling(left, problem) for problem, left in allowed]
    values = [features(tiling, device) for tiling in tilings]
    for problem in asked:
        TEMPLATE.default(problem, device)
    parts: dict[str, list[Callable[[], object]]] = {
        "cold": [partial(fastest, columns, problem, device, defaults.trees) for problem in asked],
        "legal": [partial(legal, columns, problem, device) for problem in asked],
        "tiling": [partial(TEMPLATE.tiling, left, problem) for problem, left in allowed],
        "features": [partial(features, tiling, device) for tiling in tilings],
        "trees": [partial(defaults.trees.predict, each) for each in values],
        "unmeasured": [partial(rule.best, tiles, problem, device) for problem in asked],
        "again": [partial(TEMPLATE.default, problem, device) for problem in asked],
    }
    result |= {f"{name}_us": microseconds(answers, passes) for name, answers in parts.items()}
    result["ranked"] = float(np.mean([len(each) for each in values]))
    for name, value in result.items():
        print(f"{name}: {value:.1f}")
    run.keep(result)
