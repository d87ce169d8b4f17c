"""Measure how long a guided search takes to propose a configuration, and before its first one.

    python -m tilescout.experiments.research proposal-time --out proposal.json

No GPU is used: the searches are told the times that the shipped model expects, with noise. The figures are CPU time of
one core, which other work on the machine hardly changes. Before the first proposal the whole space is listed, and the
model predicts the time of every configuration. Those figures are by the clock on the wall, of all cores: threads
predict.
"""

import time

import click
import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from threadpoolctl import threadpool_limits

from tilescout.costmodel.features import space_features
from tilescout.experiments.research.runner import Run, study
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.base import distributions
from tilescout.search.samplers.guided import GuidedSampler
from tilescout.search.samplers.others import OtherTrials
from tilescout.spaces.devices import find_device
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import find_template

PROBLEMS = ("4096x4096x4096:bf16", "2048x8192x4096:bf16", "8192x2048x4096:bf16", "4096x2048x8192:bf16")
"""The first is searched; of the others some trials are known."""

SPACES = ("gemm_sm90", "gemm_streamk_sm90")
"""Those that are listed and predicted as a whole."""

REPEATS = 5
"""Times that each problem's space is listed and predicted."""

NOISE = 0.1
"""Standard deviation of the noise on log times."""


def invent(space: SearchSpace, count: int, seed: int) -> OtherTrials:
    """Trials of random configurations of a space, with invented times."""
    rng = np.random.default_rng(seed)
    indices = space.sample(count, rng)
    found = OtherTrials.of(space, indices, np.exp(rng.normal(5, NOISE, count)), np.zeros(count, dtype=np.bool_))
    assert found is not None
    return found


def propose(spaces: list[SearchSpace], sampler: str, together: bool, trials: int) -> NDArray[np.float64]:
    """Seconds of processor time of each proposal of a search, of shape [trials]."""
    space = spaces[0]
    others = [invent(other, 100, seed) for seed, other in enumerate(spaces[1:])] if together else []
    made = make_sampler(sampler, space, 0, others=lambda: others)
    assert isinstance(made, GuidedSampler)
    expected = GuidedSampler(space, 0).prior
    assert expected is not None
    study = optuna.create_study(sampler=made)
    knobs: dict[str, BaseDistribution] = {**distributions(space)}
    rng, seconds = np.random.default_rng(0), []
    for _ in range(trials):
        started = time.process_time()
        trial = study.ask(knobs)
        seconds.append(time.process_time() - started)
        index = int(space.find([trial.params[knob] for knob in knobs]))
        study.tell(trial, float(np.exp(expected.mean[index] + rng.normal(0, NOISE))))
    return np.array(seconds)


def prepare(name: str, problem: str) -> tuple[int, float]:
    """The size of a whole space, and the seconds by the clock on the wall to list it and to predict it."""
    template = find_template(name)
    started = time.monotonic()
    space = template.space(template.parse(problem), find_device("h200"))
    GuidedSampler(space, 0).get_ready()
    return len(space), time.monotonic() - started


@study("no GPU")
@click.option("--trials", default=120, show_default=True, help="Trials of each search.")
@click.option("--configurations", default=50_000, show_default=True, help="Size of the random part of the space.")
def main(run: Run, trials: int, configurations: int) -> None:
    """Time the proposals of three searches, and print the times."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    threadpool_limits(1)
    template, device = find_template("gemm_sm90"), find_device("h200")
    spaces = []
    for problem in PROBLEMS:
        whole = template.space(template.parse(problem), device)
        spaces.append(whole.subset(whole.sample(min(configurations, len(whole)), np.random.default_rng(0))))
    started = time.process_time()
    space_features(spaces[0], template)
    features = time.process_time() - started
    result: dict[str, object] = {"configurations": len(spaces[0]), "features_s": features}
    print(f"{len(spaces[0]):,} configurations; their features: {features:.2f} s")
    for sampler, together in (("guided", False), ("guided", True), ("guided-cold", False)):
        name = f"{sampler}, with 300 trials of 3 other problems" if together else sampler
        first, *rest = 1e3 * propose(spaces, sampler, together, trials)
        middle, high, most = np.quantile(rest, [0.5, 0.95, 1])
        result[name] = {"first_ms": first, "median_ms": middle, "p95_ms": high, "max_ms": most}
        print(f"{name}: first proposal {first:.0f} ms, then median {middle:.1f}, 95 % {high:.1f}, most {most:.1f} ms")
    for name in SPACES:
        prepare(name, PROBLEMS[0])  # reads the model
        sizes, seconds = zip(*(prepare(name, problem) for problem in PROBLEMS * REPEATS), strict=True)
        middle = float(np.median(seconds))
        result[f"whole {name}"] = {"sizes": list(sizes), "seconds": list(seconds), "median_s": middle}
        print(f"{name}, {np.median(sizes):,.0f} configurations: {middle:.2f} s until the first proposal")
    run.keep(result)
