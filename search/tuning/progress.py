"""A live display of a search: how many trials, how long, the best so far, and why it ended."""

import math
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column
from rich.text import Text

from tilescout.search.studies.records import StudyResult, TrialRecord
from tilescout.search.tuning.budget import Budget
from tilescout.spaces.terminal import Console


def why_ended(results: Sequence[StudyResult], budget: Budget) -> str:
    """The reason why a search ended, or several that had one budget, in a few words.

    The limits are those of trials alone: setting up, the library's candidates and the race take time beside. Where no
    other reason is left, a limit of wall-clock time was the reason.
    """
    if all(result.stopped for result in results):
        return "stopped by itself"
    if budget.trials is not None and sum(len(result.trials) for result in results) >= budget.trials:
        return "all trials are done"
    if all(result.stopped or len(result.trials) >= result.info.size for result in results):
        return "nothing is left to try"
    spent = sum(trial.measurement.gpu_seconds for result in results for trial in result.trials)
    if budget.gpu_seconds is not None and spent >= budget.gpu_seconds:
        return "the GPU seconds are spent"
    return "the time is up" if budget.seconds is not None else "nothing is left to try"


class SecondsColumn(ProgressColumn):
    """The time since a bar began, which goes on behind its last step: what comes then takes seconds too."""

    def render(self, task: Task) -> Text:
        """As hours, minutes and seconds."""
        minutes, seconds = divmod(int(task.elapsed or 0), 60)
        return Text(f"{minutes // 60}:{minutes % 60:02}:{seconds:02}", style="progress.elapsed")


def bar_columns() -> tuple[ProgressColumn, ...]:
    """A bar, a count, the seconds so far, and what is being done; on a narrow terminal the bar is what shrinks."""
    whole = Column(no_wrap=True)
    text = TextColumn("{task.description}", markup=False)
    return BarColumn(), MofNCompleteColumn(table_column=whole), SecondsColumn(table_column=whole), text


def waiting_columns() -> tuple[ProgressColumn, ...]:
    """A spinner, the seconds so far, and what is being done, for work without countable steps."""
    return SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False)


class StudyProgress:
    """A bar on a terminal's standard error, or in the cell of a notebook (which needs ipywidgets).

    Call it with every trial as it finishes. Use it as a context manager. The seconds go on while a phase lasts.

    Parameters
    ----------
    trials
        How many there will be; None if that is not known.

    Attributes
    ----------
    unit
        That of times.
    """

    def __init__(self, trials: int | None) -> None:
        self._console = Console(stderr=True)
        self._progress = Progress(*bar_columns(), console=self._console)
        self._task = self._progress.add_task("prepare", total=trials)
        self.unit = "µs"
        self._best_us = math.inf
        self._ended = False
        self._after = Progress(*waiting_columns(), console=self._console, transient=True)  # behind the bar's end
        self._last = self._after.add_task("", start=False, total=None)

    def __call__(self, trial: TrialRecord) -> None:
        """Show a finished trial."""
        self._best_us = min(self._best_us, trial.measurement.time_us)
        self._progress.update(self._task, advance=1, description=self._best)

    def phase(self, text: str) -> None:
        """Show what is done behind the trials: beside them, or on a line of its own where the bar has ended.

        Searches in threads may each tell of theirs; the line shows what was told last.
        """
        if not self._ended:
            self._progress.update(self._task, description=f"{self._best}; {text}")
        elif self._console.is_terminal:
            self._after.update(self._last, description=text)
            self._after.start_task(self._last)
            self._after.start()  # nothing, where it is shown already

    def end(self, reason: str = "") -> None:
        """Leave the bar as it is, with the reason why no more is tried, and the terminal to others."""
        if reason and not self._ended:
            self._progress.update(self._task, description=f"{self._best}; {reason}")
        self._ended = True
        self._progress.refresh()  # a notebook would keep the last but one otherwise
        self._progress.stop()
        if self._after.live.is_started:
            self._after.stop()

    @property
    def _best(self) -> str:
        return f"best {self._best_us:.2f} {self.unit}" if self._best_us < math.inf else "none has worked"

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
