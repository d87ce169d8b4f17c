"""Engines beside an engine, for problems on which the kernels of another space may be faster."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilescout.search.build.cores import available_cores
from tilescout.search.engines.engine import Engine
from tilescout.spaces.closing import Closing
from tilescout.spaces.problems import P, Problem
from tilescout.spaces.templates import complement_on

SPARE = 8
"""Cores from which on two spaces are listed and predicted at the same time: it takes a second, and most of so many
cores have nothing to do then."""

_LOG = logging.getLogger(__name__)


class Complement(Closing):
    """The complement of an engine's space, and an engine of it beside that engine: made when it is asked for.

    Parameters
    ----------
    engine
        Where it replays, nothing is searched beside it.
    """

    def __init__(self, engine: Engine) -> None:
        self._own = engine
        self._template = complement_on(engine.template, engine.device) if engine.measures_anew else None
        self._beside: Engine | None = None
        self._lock = threading.Lock()

    def is_searched(self, problem: Problem) -> bool:
        """Whether it is searched for a problem: its template says that its kernels may be faster."""
        return self._template is not None and self._template.complements(problem, self._own.device)

    @property
    def has_spare_cores(self) -> bool:
        """Whether so many cores may be used that two spaces can be listed at the same time."""
        return available_cores() >= SPARE

    def get_ready(self) -> None:
        """Make the engine beside: its compilers take a second or two to start."""
        with self._lock:
            if self._beside is None and self._template is not None:
                self._beside = self._own.beside(self._template)

    def engine(self, problem: Problem) -> Engine | None:
        """The engine beside, for a problem for which it is searched; None if there is none. The log tells of it."""
        assert self._template is not None
        self.get_ready()
        then = "that space is searched, too" if self._beside is not None else "tune that space, too"
        _LOG.info("%s: kernels of %s may be faster on this problem: %s", problem, self._template.name, then)
        return self._beside

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()


@contextmanager
def complemented(engine: Engine, problems: Sequence[P]) -> Iterator[list[tuple[Engine, P]]]:
    """The searches of problems: each by an engine and, where its complement may be faster, by an engine beside it, too.

    The log says where that is so. Where an engine replays, or has no other beside it, each problem has one search.
    """
    with Complement(engine) as complement:
        beside = [complement.engine(each) if complement.is_searched(each) else None for each in problems]
        yield [
            (each, problem)
            for other, problem in zip(beside, problems, strict=True)
            for each in (engine, other)
            if each is not None
        ]
