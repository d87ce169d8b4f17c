"""An engine that has another process measure: strategies that run in processes of their own share a GPU."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import Engine, Task, settled_future
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.provenance import Provenance
from tilescout.search.tables.recorded_space import RecordedSpace
from tilescout.spaces.devices import Device
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate


@dataclass(frozen=True)
class Trying:
    """A request to measure a configuration of a problem's part of the space.

    Attributes
    ----------
    problem
        The problem, as it is printed.
    index
        The configuration, in the part.
    incumbent
        The best ratio to the library so far, infinite if there is none; None measures in full.
    """

    problem: str
    index: int
    incumbent: float | None


@dataclass(frozen=True)
class Racing:
    """A request to measure configurations of a problem's part of the space in interleaved rounds; see `Engine.race`."""

    problem: str
    indices: tuple[int, ...]
    rounds: int
    pairs: int
    seed: int


Ask = Callable[[Trying | Racing], Any]
"""Has a request done, and returns a `Measurement`, or an array of ratios to the library [rounds, indices]."""


@dataclass(frozen=True, eq=False)
class Part:
    """The part of a problem's space that is searched.

    Attributes
    ----------
    space
        Its configurations.
    default
        The one that is run without any search.
    library_us
        The library's steady time, in µs.
    """

    space: SearchSpace
    default: Configuration
    library_us: float


class LivePart:
    """A part of a space for a strategy that asks for a measurement when it needs it, and waits.

    What is clearly slower than the fastest so far is not timed in full, as in any search here.

    Attributes
    ----------
    space, default
        See `Part`.
    """

    def __init__(self, part: Part, ask: Ask) -> None:
        self.space, self.default = part.space, part.default
        self._measured: dict[int, Measurement] = {}
        self._ask, self._incumbent = ask, float("inf")

    def measurement(self, index: int) -> Measurement:
        """The measurement of a configuration; it is measured once."""
        if index not in self._measured:
            asked = Trying(str(self.space.problem), index, self._incumbent)
            found: Measurement = self._ask(asked)
            if found.timing is not None:
                self._incumbent = min(self._incumbent, found.timing.ratio)
            self._measured[index] = found
        return self._measured[index]


def milliseconds(recording: RecordedSpace | LivePart, index: int) -> float:
    """The time of a configuration; infinite if it failed; of what was given up early live, that of its one launch."""
    measurement = recording.measurement(index)
    if measurement.timing is None and measurement.pilot_us is not None and isinstance(recording, LivePart):
        return measurement.pilot_us / 1e3
    return measurement.time_us / 1e3 if measurement.ok else float("inf")


class AskingEngine(Engine):
    """Measures what it is asked through another process, one thing at a time.

    Parameters
    ----------
    template, device
        The kernels, and the GPU.
    parts
        The problems, as they are printed, and the parts of their spaces that are searched.
    ask
        Has a request done.
    ahead
        Most configurations in flight.
    """

    gpus = compilers = 1
    product = protocol = protocol_text = ""
    versions: Mapping[str, str] = {}

    def __init__(
        self, template: KernelTemplate, device: Device, parts: Mapping[str, Part], ask: Ask, ahead: int = 1
    ) -> None:
        self.template, self.device = template, device
        self.provenance = Provenance("live", "measured by another process")
        self._parts, self._ask, self._ahead = parts, ask, ahead

    def recording(self, problem: Problem) -> LivePart:
        """The part of a problem's space, for a strategy that asks and waits."""
        return LivePart(self._parts[str(problem)], self._ask)

    def capacity(self, gpus: int) -> int:
        return self._ahead

    def space(self, problem: Problem) -> SearchSpace:
        return self._parts[str(problem)].space

    def library(self, problem: Problem) -> str:
        return "the library"

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        # The process that measures compiles, too.
        return settled_future(Artifact(Path(), "", "", None, 0.0))

    def prepare(self, gpu: int, problem: Problem) -> "Future[float]":
        return settled_future(self._parts[str(problem)].library_us)

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        space = self.space(tasks[0].problem)
        asked = [Trying(str(each.problem), space.index(each.configuration), each.incumbent) for each in tasks]
        return settled_future([self._ask(each) for each in asked])

    def race(
        self, gpu: int, tasks: Sequence[Task], rounds: int, pairs: int, seed: int
    ) -> "Future[NDArray[np.float64]]":
        space = self.space(tasks[0].problem)
        indices = tuple(space.index(each.configuration) for each in tasks)
        return settled_future(self._ask(Racing(str(tasks[0].problem), indices, rounds, pairs, seed)))

    def close(self) -> None:
        """Nothing was started."""
