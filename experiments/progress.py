"""Progress of long work, on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tilescout.spaces.terminal import Console


def progress_bar() -> Progress:
    """A bar with a count, the seconds so far, and what is being done. The seconds go on while a long step lasts."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=Console(stderr=True))


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say what is being done, and for how long, while the context is open: for work without countable steps."""
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        shown.add_task(what, total=None)
        yield
