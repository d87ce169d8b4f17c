"""The time that a study may take: the option that says how long, and a clock."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import click

from tilescout.experiments.commands.options import Finite

T = TypeVar("T")


def seconds_option(default: float, unit: str = "problem") -> Callable[[Any], Any]:
    """The option ``--seconds``, after which a study begins no further problem, or whatever its work consists of."""
    return click.option(
        "--seconds", type=Finite(min=0), default=default, show_default=True, help=f"Begin no further {unit} after that."
    )


class Clock:
    """The seconds since it was made, and those that are left of the given ones."""

    def __init__(self, seconds: float = math.inf) -> None:
        self._seconds, self._began = seconds, time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """Seconds until the end; negative after it."""
        return self._seconds - self.spent

    def in_time(self, work: Iterable[T]) -> Iterator[T]:
        """The part of some work that is begun while time is left; the first however late it is."""
        for at, one in enumerate(work):
            if at and self.left < 0:
                return
            yield one
