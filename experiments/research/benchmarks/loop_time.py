"""Measure the processor time that a search itself takes, kernels and measurements left out.

    python -m tilescout.experiments.research loop-time --out loop.json

Searches whole spaces of matrix products, both at the same time, as `tune` does: each trial is asked for, proposed,
stored and told. No GPU is used and nothing is compiled. A kernel takes the time that the shipped model expects, with
noise, and is there at once. Each problem is searched from an empty store, and with the kernels of the templates' stock
in it. What is done while a GPU is set up is not counted: the spaces are listed and predicted then, and the first
proposals made.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np
import optuna
from numpy.typing import NDArray

from tilescout.experiments.research.runner import Run, study
from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import CannotMeasureError, Engine, Task, failed_future, settled_future
from tilescout.search.engines.evaluator import Evaluator
from tilescout.search.measure.measurement import Measurement, Status, Timing
from tilescout.search.samplers import make_sampler
from tilescout.search.samplers.guided import GuidedSampler
from tilescout.search.samplers.joint import Joint
from tilescout.search.studies.places import study_store
from tilescout.search.studies.sharing import SharingOptions
from tilescout.search.studies.trials import enqueue
from tilescout.search.tuning.budget import Budget
from tilescout.search.tuning.lane import Lane
from tilescout.search.tuning.loop import run_together
from tilescout.spaces.devices import find_device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate, find_template

PROBLEMS = ("1919x1280x5120:bf16", "217x128x5120:bf16", "16x8192x4096:bf16", "4096x4096x4096:bf16")
SPACES = ("gemm_sm90", "gemm_streamk_sm90")

NOISE = 0.1
"""Standard deviation of the log times about what the model expects."""

LIBRARY_US = 20.0

TRIALS = 96

AHEAD = 16
"""Proposals in flight, over both spaces, that are known while a GPU is set up."""


class ExpectedEngine(Engine):
    """Answers at once, with the time that a sampler expects, and noise that a configuration has for good."""

    measures_anew = False

    def __init__(self, template: KernelTemplate) -> None:
        self.template, self.device, self.gpus, self.compilers = template, find_device("h200"), 1, 16
        self.mean: NDArray[np.float64] = np.empty(0)  # log times in µs of the configurations of the space
        self._space = cache(partial(template.space, device=self.device))

    def space(self, problem: Problem) -> SearchSpace:
        return self._space(problem)

    def library(self, problem: Problem) -> str:
        return "torch.mm"

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        return settled_future(Artifact(Path(), "", "", None, 0.0))

    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        return settled_future(LIBRARY_US)

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        space = self.space(tasks[0].problem)
        found = []
        for index in [space.index(task.configuration) for task in tasks]:
            time_us = float(np.exp(self.mean[index] + np.random.default_rng(index).normal(0, NOISE)))
            ratio = time_us / LIBRARY_US
            found.append(Measurement(Status.OK, timing=Timing(ratio, ratio, ratio, ratio, ratio, LIBRARY_US, 1)))
        return settled_future(found)

    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        return failed_future(CannotMeasureError("nothing is measured"))

    def close(self) -> None:
        """Nothing was started."""


@dataclass(frozen=True)
class Searched:
    """A search of both spaces that ended by itself.

    Attributes
    ----------
    problem, stocked
        What was searched, and whether the stock was in the store.
    trials
        How many it took.
    cpu_seconds
        Processor time of its loop.
    """

    problem: str
    stocked: bool
    trials: int
    cpu_seconds: float

    @property
    def milliseconds(self) -> float:
        """Of a trial."""
        return 1e3 * self.cpu_seconds / self.trials


def search(name: str, stocked: bool) -> Searched:
    """Search a problem in both spaces."""
    joints = [Joint(spaces=len(SPACES))] * len(SPACES)
    lanes: list[Lane] = []

    def see(found: Sequence[Joint]) -> None:
        joints[:] = found

    with TemporaryDirectory() as folder, ExitStack() as stack:
        for at, space in enumerate(SPACES):
            template = find_template(space)
            engine = ExpectedEngine(template)
            evaluator = Evaluator(engine, template.parse(name))
            sampler = make_sampler("guided", evaluator.space, 0, joint=partial(joints.__getitem__, at))
            assert isinstance(sampler, GuidedSampler)
            stock = evaluator.stock()
            sampler.find_stored(stock if stocked else stock[:0], stock, evaluator.kernels)
            sampler.get_ready()
            assert sampler.prior is not None
            engine.mean = sampler.prior.mean
            joined = study_store(Path(folder)).join(space, False, sampler, evaluator.space, SharingOptions())
            made, tuner = stack.enter_context(joined)
            default = evaluator.space.index(template.default_in(evaluator.space))
            enqueue(made, evaluator.space, default)
            list(sampler.first([default], AHEAD))
            lanes.append(Lane(made, evaluator, LIBRARY_US, lambda trial: None, (), tuner))
        started = time.process_time()
        run_together(lanes, Budget(TRIALS), see)
        seconds = time.process_time() - started
        return Searched(name, stocked, sum(len(lane.study.get_trials(deepcopy=False)) for lane in lanes), seconds)


@study("no GPU")
@click.option("--problem", "problems", multiple=True, default=PROBLEMS, show_default=True, help="Repeatable.")
@click.option(
    "--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Times that each is searched."
)
def main(run: Run, problems: tuple[str, ...], repeats: int) -> None:
    """Search every problem, and print what a trial took."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name in problems:
        search(name, False)  # reads the models, and imports what is used first here
    found = [search(name, stocked) for _ in range(repeats) for name in problems for stocked in (False, True)]
    milliseconds = {
        store: {
            name: float(np.median([one.milliseconds for one in found if (one.problem, one.stocked) == (name, stocked)]))
            for name in problems
        }
        for store, stocked in (("empty store", False), ("stock in the store", True))
    }
    run.keep({"searches": [asdict(each) for each in found], "milliseconds": milliseconds})
    print(f"processor time of a trial, medians of {repeats}, ms")
    for store, times in milliseconds.items():
        for name, each in times.items():
            print(f"{name:>22}  {store:<18}  {each:5.1f}")
