"""Engines beside an engine, for problems on which the kernels of another space may be faster."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

from tilescout.search.engines.engine import Engine
from tilescout.spaces.problems import P
from tilescout.spaces.templates import complement_of, complement_on

_LOG = logging.getLogger(__name__)


@contextmanager
def complemented(engine: Engine, problems: Sequence[P]) -> Iterator[list[tuple[Engine, P]]]:
    """The searches of problems: each by an engine and, where its complement may be faster, by an engine beside it, too.

    The log says where that is so. Where an engine replays, or has no other beside it, each problem has one search.
    """
    anew = engine.measures_anew
    others = [complement_of(engine.template, each, engine.device) if anew else None for each in problems]
    other = next((found for found in others if found is not None), None)
    beside = engine.beside(other) if other is not None else None
    for found, problem in zip(others, problems, strict=True):
        if found is not None:
            then = "that space is searched, too" if beside is not None else "tune that space, too"
            _LOG.info("%s: kernels of %s may be faster on this problem: %s", problem, found.name, then)
    with beside or nullcontext():  # its compilers get ready at once
        yield [
            (each, problem)
            for found, problem in zip(others, problems, strict=True)
            for each in (engine, beside if found is not None else None)
            if each is not None
        ]


@contextmanager
def complement_behind(engine: Engine, problems: Sequence[P]) -> Iterator[list[tuple[Engine, P]]]:
    """The searches of the complement for problems that an engine's own space lost, whatever was estimated of them.

    None where an engine replays, or has no other beside it.
    """
    other = complement_on(engine.template, engine.device) if engine.measures_anew and problems else None
    beside = engine.beside(other) if other is not None else None
    if other is None or beside is None:
        yield []
        return
    for problem in problems:
        _LOG.info("%s: the library is faster than %s: %s is searched, too", problem, engine.template.name, other.name)
    with beside:
        yield [(beside, problem) for problem in problems]
