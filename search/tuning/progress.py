"""A live display of a search: how many trials, how long, the best so far."""

import math
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilescout.search.studies.records import TrialRecord
from tilescout.spaces.terminal import Console


class StudyProgress:
    """A bar on a terminal's standard error, or in the cell of a notebook (which needs ipywidgets).

    Call it with every trial as it finishes. Use it as a context manager.

    Parameters
    ----------
    trials
        How many there will be; None if that is not known.
    """

    def __init__(self, trials: int | None) -> None:
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("", total=trials)
        self._best_us = math.inf

    def __call__(self, trial: TrialRecord) -> None:
        """Show a finished trial."""
        self._best_us = min(self._best_us, trial.measurement.time_us)
        self._progress.update(self._task, advance=1, description=f"best {self._best_us:.2f} µs")

    def end(self) -> None:
        """Leave the bar as it is, and the terminal to others."""
        self._progress.refresh()  # a notebook would keep the last but one otherwise
        self._progress.stop()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
