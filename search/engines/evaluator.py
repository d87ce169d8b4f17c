"""The interface between the search and whatever tries configurations for it."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.closing import Closing
from tilescout.search.measure.measurement import Measurement
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.space import SearchSpace


@dataclass(frozen=True)
class Dataset:
    """A table that answers in the place of a GPU, as a tracker lists it.

    Attributes
    ----------
    name, path
        Name and place of its file.
    sha256
        Checksum of the file.
    rows
        Number of its rows.
    columns
        Types of its columns, as Arrow calls them.
    """

    name: str
    path: str
    sha256: str
    rows: int
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Provenance:
    """Where measurements come from, for people who read them later.

    Attributes
    ----------
    kind
        ``live`` or ``replay``.
    description
        One line: the GPU that measures, or the table that stands in for it.
    versions
        Versions of what matters: driver, torch, compiler, protocol, ...
    table
        The table that is replayed; None where something is measured.
    """

    kind: str
    description: str
    versions: Mapping[str, str] = field(default_factory=dict)
    table: Dataset | None = None


class CannotMeasureError(TilescoutError):
    """An evaluator was asked to measure again what it can't."""


class Evaluator(Closing):
    """Tries configurations of one space on one problem.

    `submit` hands a configuration over, `wait` gives outcomes back in the order in which they finish. An evaluator may
    work ahead: as many configurations as `capacity` may be submitted and not yet returned. A failure of a
    configuration is an outcome, never an exception. Use it as a context manager; `close` ends all it started.

    Attributes
    ----------
    space
        The configurations that it can try.
    device
        The GPU whose times it reports.
    provenance
        Where the measurements come from.
    capacity
        Most configurations in flight.
    library
        What the library's kernel is called through, which times are relative to.
    measures_anew
        Whether it can `race`.
    """

    space: SearchSpace
    device: Device
    provenance: Provenance
    capacity: int
    library: str
    measures_anew = False

    @abstractmethod
    def submit(self, index: int, incumbent: float | None = None) -> None:
        """Start trying the configuration with this index in `space`.

        Parameters
        ----------
        index
            The configuration.
        incumbent
            The best ratio to the library so far, infinite if there is none: a configuration that is clearly slower may
            be given up early. None tries it in full.
        """

    @abstractmethod
    def wait(self) -> list[tuple[int, Measurement]]:
        """Block until at least one submitted configuration is done; return all that are, with their indices."""

    @abstractmethod
    def library_us(self) -> float:
        """The library's steady time on the problem, in µs."""

    def move(self, gpu: int) -> None:
        """Measure on another GPU from now on; nothing may be in flight. Where there are no GPUs it is all one."""

    def race(self, indices: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        """Measure configurations that are right once more, in interleaved rounds; nothing may be in flight.

        Parameters
        ----------
        indices
            The configurations.
        rounds, pairs
            Rounds, and pairs of a kernel and the library in each.
        seed
            Of the order in the rounds.

        Returns
        -------
        array
            Ratios to the library, of shape [rounds, indices].

        Raises
        ------
        CannotMeasureError
            If the evaluator can't measure anew, or one of the kernels took the measuring process down.
        """
        raise CannotMeasureError(f"nothing can be measured anew: {self.provenance.description}")

    @abstractmethod
    def close(self) -> None:
        """Stop everything; unfinished configurations are dropped."""


def evaluate(evaluator: Evaluator, indices: Iterable[int]) -> Iterator[tuple[int, Measurement]]:
    """Try configurations, as many at a time as the evaluator takes; yield each as it is done."""
    in_flight = 0
    for index in indices:
        evaluator.submit(index)
        in_flight += 1
        if in_flight == evaluator.capacity:
            done = evaluator.wait()
            in_flight -= len(done)
            yield from done
    while in_flight:
        done = evaluator.wait()
        in_flight -= len(done)
        yield from done
