"""Glances of studies: many kernels of one space or several beside the library, on one problem after the other."""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import Engine, Task
from tilescout.spaces.errors import one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem

_LOG = logging.getLogger(__name__)

Kernel = tuple[int, Configuration]
"""A kernel, by the number of its space and its configuration."""


class Glances:
    """Compiles kernels, each once, and glances at them.

    Parameters
    ----------
    engines
        Of each space, on the same GPU; they are not closed here.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = engines
        self._built: dict[tuple[str, Kernel], Future[Artifact | CompileFailure]] = {}

    def compile(self, kernels: Iterable[Kernel], signature: str) -> None:
        """Begin to compile kernels for a signature."""
        for space, configuration in kernels:
            key = signature, (space, configuration)
            if key not in self._built:
                self._built[key] = self._engines[space].compile(configuration, signature)

    def at(
        self, problem: Problem, kernels: Sequence[Kernel], rounds: int, seed: int
    ) -> tuple[float, dict[Kernel, list[float]]]:
        """The library's time in µs, and the times over it of the kernels that compile, one a round.

        Parameters
        ----------
        problem, kernels
            What runs, none twice.
        rounds, seed
            As of `Engine.glances`.

        Raises
        ------
        CannotMeasureError
            If one of the kernels took the measuring process down.
        """
        self.compile(kernels, problem.signature)
        tasks: dict[Kernel, Task] = {}
        for space, configuration in kernels:
            built = self._built[problem.signature, (space, configuration)].result()
            if isinstance(built, CompileFailure):
                _LOG.warning("%s: %s", dict(configuration), one_line(built.error))
                continue
            template = self._engines[space].template
            tasks[space, configuration] = Task(configuration, built, problem, 1.0, template=template)
        [(library_us, ratios)] = self._engines[0].glances(0, [list(tasks.values())], rounds, seed).result()
        return library_us, dict(zip(tasks, ratios.T.tolist(), strict=True))
