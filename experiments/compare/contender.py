"""The base of everything that can be compared."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tilescout.experiments.compare.asking import AskingEngine
from tilescout.search.engines.replay import ReplayEngine
from tilescout.spaces.problems import Problem

Answering: TypeAlias = ReplayEngine | AskingEngine
"""An engine that a strategy can be played on: a recorded table, or a GPU that another process measures on."""


@dataclass(frozen=True)
class Contender(ABC):
    """A strategy with its options.

    Attributes
    ----------
    name
        As it was asked for, options included.
    options
        Its options, as text.
    seeds
        Most searches a problem.
    models
        Folder that keeps the cost models which are trained for searches.
    """

    name: str
    options: Mapping[str, str]
    seeds: int
    models: Path

    @property
    def deterministic(self) -> bool:
        """Whether the seed changes nothing, so that one search a problem is enough."""
        return False

    def deterministic_on(self, table: Path) -> bool:
        """The same for one table, on which there may be less to go by."""
        return self.deterministic

    @property
    def packages(self) -> tuple[str, ...]:
        """The distributions whose versions decide what is searched, beside tilescout's own."""
        return ()

    @property
    def finalists(self) -> int:
        """How many of the fastest it measures again before it hands one out, where it can: most hand out the first."""
        return 1

    def prepare(self, table: Path, problems: Sequence[str], processes: int) -> None:  # noqa: B027  (most need nothing)
        """Do once, in so many processes, the work that the searches of these problems of a table share."""

    @abstractmethod
    def check(self) -> None:
        """Refuse what can't be run here, before anything is.

        Raises
        ------
        SamplerError
            With what is wrong or what to install.
        """

    @abstractmethod
    def play(self, engine: Answering, problem: Problem, trials: int, seed: int) -> Sequence[int]:
        """Search a replayed table, or live.

        Parameters
        ----------
        engine
            Answers from the table, or measures.
        problem
            The problem.
        trials
            Most trials.
        seed
            Seed of all randomness.

        Returns
        -------
        sequence of int
            The configurations, as indices of the engine's space, in the order in which they were tried; none twice.
        """
