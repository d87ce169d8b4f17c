"""Compile configurations and race them on one GPU."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import CannotMeasureError, Engine, Task
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace

NOTHING: Mapping[int, Task] = MappingProxyType({})


class Racetrack:
    """A GPU on which configurations of one problem race; each is compiled once.

    Parameters
    ----------
    engine
        Compiles and measures.
    gpu
        The number of the GPU.
    problem
        The problem.
    library_us
        The library's steady time on it, in µs.
    configurations
        The configurations; those that race are named by their numbers in this sequence.
    beside
        What else may race, by numbers that no configuration has.
    artifacts
        What is compiled already, by number; what is compiled for a race is added.
    """

    def __init__(
        self,
        engine: Engine,
        gpu: int,
        problem: Problem,
        library_us: float,
        configurations: Sequence[Configuration] | SearchSpace,
        beside: Mapping[int, Task] = NOTHING,
        artifacts: dict[int, Artifact] | None = None,
    ) -> None:
        self._engine, self._gpu, self._problem, self._library_us = engine, gpu, problem, library_us
        self._configurations, self._beside = configurations, beside
        self._artifacts = {} if artifacts is None else artifacts

    def measure(self, racing: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        """Measure configurations once more, in interleaved rounds: a `tilescout.search.measure.race.Measure`.

        Parameters
        ----------
        racing
            Their numbers; all were right when they were measured.
        rounds, pairs
            Rounds, and pairs of a kernel and the library in each.
        seed
            Of the order in the rounds.

        Returns
        -------
        array
            Ratios to the library, of shape [rounds, racing].

        Raises
        ------
        CannotMeasureError
            If the engine can't measure anew, a configuration does not compile any more, or one of the kernels took the
            measuring process down.
        """
        self._compile([number for number in racing if number not in self._beside])
        tasks = [self._beside[number] if number in self._beside else self._task(number) for number in racing]
        return self._engine.race(self._gpu, tasks, rounds, pairs, seed).result()

    def _task(self, number: int) -> Task:
        return Task(self._configurations[number], self._artifacts[number], self._problem, self._library_us)

    def _compile(self, numbers: Sequence[int]) -> None:
        signature = self._problem.signature
        compiling = {
            number: self._engine.compile(self._configurations[number], signature)
            for number in numbers
            if number not in self._artifacts
        }
        self._artifacts |= {number: compiled_again(future) for number, future in compiling.items()}


def compiled_again(future: "Future[Artifact | CompileFailure]") -> Artifact:
    """The artifact of a candidate of a race, which compiled before.

    Raises
    ------
    CannotMeasureError
        If it does not any more.
    """
    built = future.result()
    if isinstance(built, CompileFailure):
        raise CannotMeasureError(f"a candidate of the race does not compile any more: {built.error}")
    return built
