"""Progress of long work, on standard error."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread
from typing import Any, TypeVar

from rich.progress import Progress

from tilescout.search.tuning.progress import bar_columns, waiting_columns
from tilescout.spaces.terminal import Console

LINE_SECONDS = 30.0
"""Between two lines of progress in a file."""

Item = TypeVar("Item")


def progress_bar() -> Progress:
    """A bar with a count, the seconds so far, and what is being done. The seconds go on while a long step lasts.

    Where standard error is no terminal, as a file, there is a line now and then in place of the bar.
    """
    console = Console(stderr=True)
    return (Progress if console.is_terminal else LineProgress)(*bar_columns(), console=console)


class LineProgress(Progress):
    """Progress as lines of text: one every `LINE_SECONDS`, also while a step lasts longer, and one at the end."""

    _last = -math.inf
    _stopped = False
    _ticker: "_Ticker | None" = None

    def start(self) -> None:
        """Show nothing at first: short work has one line at its end."""
        self._last = self.get_time()
        self._stopped = False
        # A step of minutes, such as training a model, updates nothing.
        self._ticker = _Ticker(self.refresh, LINE_SECONDS / 6)

    def stop(self) -> None:
        """Say how far the work came, once."""
        if self._ticker is not None:
            self._ticker.stop()
        if not self._stopped:
            self._stopped = True
            self._say()

    def refresh(self) -> None:
        """Say how far the work is, if the last line is old enough."""
        with self._lock:
            now = self.get_time()
            if now - self._last >= LINE_SECONDS:
                self._last = now
                self._say()

    def update(self, *arguments: Any, **changes: Any) -> None:
        """Take the next state of a task; see `Progress.update`."""
        super().update(*arguments, **changes)
        self.refresh()

    def advance(self, *arguments: Any, **changes: Any) -> None:
        """Advance a task; see `Progress.advance`."""
        super().advance(*arguments, **changes)
        self.refresh()

    def _say(self) -> None:
        for task in self.tasks:
            total = "" if task.total is None else f" of {task.total:,.0f}"
            passed = timedelta(seconds=round(task.elapsed or 0))
            doing = [task.description or task.fields.get("doing", "")]
            text = ", ".join((f"{task.completed:,.0f}{total}", str(passed), *filter(None, doing)))
            self.console.print(text, highlight=False, soft_wrap=True)


class _Ticker:
    """Calls something every so many seconds, in a thread of its own, until it is stopped."""

    def __init__(self, call: Callable[[], None], seconds: float) -> None:
        self._call, self._seconds, self._ended = call, seconds, Event()
        self._thread = Thread(target=self._run, name="ticker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self._call()

    def stop(self) -> None:
        """End it, and wait until nothing is called any more."""
        self._ended.set()
        self._thread.join()


def counted(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """Items as they come, with a bar of how many of the total have."""
    with progress_bar() as bar:
        task = bar.add_task(what, total=total)
        for item in items:
            bar.advance(task)
            yield item


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say what is being done, and for how long, while the context is open: for work without countable steps.

    Where standard error is no terminal, as a file, a line says so every `LINE_SECONDS`.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        with _lines(what, console):
            yield
        return
    with Progress(*waiting_columns(), console=console, transient=True) as shown:
        shown.add_task(what, total=None)
        yield


@contextmanager
def _lines(what: str, console: Console) -> Iterator[None]:
    started = time.monotonic()
    ticker = _Ticker(
        lambda: console.say(f"{timedelta(seconds=round(time.monotonic() - started))}, {what}"), LINE_SECONDS
    )
    try:
        yield
    finally:
        ticker.stop()
