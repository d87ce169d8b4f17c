"""The recorded truth about every configuration of a problem; searches are scored against it."""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tilescout.search.tables.recorded_space import RecordedSpace
from tilescout.search.tables.results import LIBRARY
from tilescout.spaces.errors import TableError
from tilescout.spaces.problems import Problem

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Truth:
    """The recorded outcome and cost of every configuration that a replay can answer for.

    A configuration without a time (failed, or pruned after one launch) counts as slow as the slowest that was timed: so
    the best so far is defined from the first trial on, for random search in expectation as for every other strategy.

    Attributes
    ----------
    times_us
        Time of each configuration in µs, of shape [configurations].
    timed
        Which of them were timed, of the same shape.
    gpu_seconds, compile_seconds
        What trying each cost when it was recorded, of the same shape; 0 where that is not known.
    problem
        The problem; None if it is not known.
    space
        The name of the kernel's space.
    default_us
        The time of the default configuration in µs, infinite if it failed; NaN if it was not tried.
    library_us, library_best_us
        The times of the library's function and of the fastest of its candidates in µs; NaN where they are not known.
    library
        The library's function; empty where it is not known.
    """

    times_us: Floats
    timed: NDArray[np.bool_]
    gpu_seconds: Floats
    compile_seconds: Floats
    problem: Problem | None = None
    space: str = ""
    default_us: float = float("nan")
    library_us: float = float("nan")
    library_best_us: float = float("nan")
    library: str = ""

    @classmethod
    def of(cls, recording: RecordedSpace) -> Self:
        """The outcomes and costs that a table holds of a problem, in the order of the recorded space.

        Raises
        ------
        TableError
            If none was timed.
        """
        table = recording.table
        times = table.times_us[recording.rows]
        timed = np.isfinite(times)
        if not timed.any():
            raise TableError(f"table {table.path}: nothing was timed for {recording.problem}")
        costs = {
            name: np.asarray(table.data[name], dtype=np.float64)[recording.rows]
            for name in ("gpu_seconds", "compile_seconds")
        }
        worst = times[timed].max()
        row = table.row(recording.default, recording.problem)
        default_us = float("nan") if row is None else float(table.times_us[row])
        baseline = table.card.baselines[recording.problem]
        # In place of a library, a table of another tuner has its median configuration.
        library = "" if table.card.library == LIBRARY else table.card.library
        library_us = baseline.library_us if library else float("nan")
        best = float("nan") if baseline.library_best is None else baseline.library_best.ratio.value
        return cls(
            np.where(timed, times, worst),
            timed,
            **costs,
            problem=recording.problem,
            space=table.card.space,
            default_us=default_us,
            library_us=library_us,
            library_best_us=library_us * best,
            library=library,
        )

    def __len__(self) -> int:
        return len(self.times_us)

    @property
    def best_us(self) -> float:
        """The time of the fastest configuration, in µs."""
        return float(self.times_us.min())

    @cached_property
    def has_gpu_seconds(self) -> bool:
        """Whether GPU time was recorded at all: some tuners write times alone."""
        return bool(self.gpu_seconds.any())

    def within(self, tolerance: float) -> NDArray[np.bool_]:
        """Which configurations are at most this much slower than the fastest, relative; of shape [configurations]."""
        return self.timed & (self.times_us <= (1 + tolerance) * self.best_us)
