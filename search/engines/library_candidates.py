"""Time the kernels among which the library itself would choose, by an engine of another space's kernels."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from tilescout.costmodel.features import space_features
from tilescout.costmodel.persistence import load_model
from tilescout.costmodel.relatives import model_for
from tilescout.search.engines.engine import CannotMeasureError, Engine, Task
from tilescout.search.measure.library_best import CANDIDATES, LibraryBest
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.race import Estimate
from tilescout.spaces.cublaslt.algorithms import LIBRARY
from tilescout.spaces.errors import DeviceError, ModelError, SpaceError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate, find_template
from tilescout.spaces.texts import number_of
from tilescout.spaces.workloads import load_workload

Known = TypeVar("Known")

_LONG_US, _FEWEST = 60_000.0, 4
"""Of a long kernel, as many of the library's guesses are timed as launches of its first fit into this time, in µs, but
so many at least. Each takes a dozen launches to be verified and timed."""


@dataclass(frozen=True)
class Listed:
    """The library's own candidates for a problem, its first guess first.

    Attributes
    ----------
    library, version
        The name of the library and its version.
    template
        The template of its kernels.
    tasks
        The task of measuring each.
    """

    library: str
    version: str
    template: KernelTemplate
    tasks: Sequence[Task]


@dataclass(frozen=True)
class Candidate:
    """The library's fastest candidate, and the task of measuring it again."""

    best: LibraryBest
    task: Task


def library_of(template: KernelTemplate) -> KernelTemplate | None:
    """The template of the library's own kernels for what a template computes; None where it has no list of them."""
    computed = template.workload  # none of a kernel that another tuner recorded
    name = load_workload(computed).candidates if computed else ""
    return find_template(name) if name else None


def listed_candidates(engine: Engine, gpu: int, problem: Problem, library_us: float, count: int) -> Listed | None:
    """The kernels among which the library would choose; one that is clearly slower than those before it is not timed.

    Where more than `CANDIDATES` are wanted, those of all its kernels follow that the shipped cost model expects to be
    fastest. None if the problem's library has no list of candidates, or the engine's own kernels are on it.

    Raises
    ------
    CannotMeasureError, SpaceError, DeviceError
        If the library can't be asked, or more are wanted and there is no cost model of its kernels.
    """
    template = None if engine.template.loader else library_of(engine.template)
    if template is None:
        return None
    if not engine.measures_anew:
        raise CannotMeasureError("the table that is replayed was recorded without it")
    listed = engine.listing(gpu, template, problem, count if count <= CANDIDATES else None).result()
    if count <= CANDIDATES:
        names = [knob.name for knob in template.knobs]
        rows = listed.rows[: max(_FEWEST, int(_LONG_US / library_us))]
        configurations = [Configuration(tuple(zip(names, row, strict=True))) for row in rows]
    else:
        codes = SearchSpace.codes_of(template.knobs, listed.rows)
        configurations = _promising(template, template.space_of(codes, problem, engine.device), count)
    tasks = [
        Task(each, engine.describe(template, each, problem.signature), problem, library_us, math.inf, template)
        for each in configurations
    ]
    return Listed(listed.library, listed.version, template, tasks)


def known_or_why(ask: Callable[[], Known | None]) -> tuple[Known | None, str]:
    """The answer of a call about the library's best; or None, and why it is not known."""
    try:
        return ask(), ""
    except (CannotMeasureError, SpaceError, DeviceError) as error:
        return None, one_line(error)


def own_candidates(template: KernelTemplate, space: SearchSpace) -> list[int]:
    """Indices of the library's candidates where a space is of its own kernels, its first guess first; else none."""
    return [space.index(template.default_in(space)), *template.first_in(space)] if template.loader else []


def best_of_own(
    template: KernelTemplate, space: SearchSpace, version: str, measured: Mapping[int, Measurement]
) -> LibraryBest | None:
    """The fastest of the library's candidates that were measured in a space of its own kernels; None in another space.

    What that took is not counted again.

    Raises
    ------
    CannotMeasureError
        If none of them was timed.
    """
    if not (listed := own_candidates(template, space)):
        return None
    tried = [(space[index], measured[index]) for index in listed if index in measured]
    return replace(_fastest(LIBRARY, version, template, tried), gpu_seconds=0.0)


def _promising(template: KernelTemplate, space: SearchSpace | None, count: int) -> list[Configuration]:
    """The kernels that the library would choose among, and of the others those that are expected to be fastest."""
    if space is None:
        return []
    if (path := model_for(template.name, space.device.name)) is None:
        raise CannotMeasureError(
            f"no cost model of {template.name} on {space.device.name} is shipped, which would say what to time beyond "
            f"the library's own list: ask for at most {CANDIDATES}"
        )
    try:
        expected = load_model(path)[0].predict(space_features(space, template)).mean
    except ModelError as error:
        raise CannotMeasureError(one_line(error)) from error
    order = dict.fromkeys([*own_candidates(template, space), *map(int, np.argsort(expected, kind="stable"))])
    return [space[index] for index in list(order)[:count]]


def fastest_candidate(
    engine: Engine, gpu: int, problem: Problem, library_us: float, count: int = CANDIDATES
) -> Candidate | None:
    """The fastest of the library's own candidates; parameters and None as `listed_candidates` says.

    Raises
    ------
    CannotMeasureError
        If none of them worked, or the engine can't measure.
    SpaceError, DeviceError
        If the library can't be asked.
    """
    listed = listed_candidates(engine, gpu, problem, library_us, count)
    if listed is None:
        return None
    tasks = listed.tasks
    measured = engine.measure(gpu, tasks).result()
    tried = [(task.configuration, each) for task, each in zip(tasks, measured, strict=True)]
    best = _fastest(listed.library, listed.version, listed.template, tried)
    return Candidate(best, next(task for task in tasks if task.configuration == best.configuration))


def _fastest(
    library: str, version: str, template: KernelTemplate, tried: Sequence[tuple[Configuration, Measurement]]
) -> LibraryBest:
    """The fastest of a library's candidates.

    Raises
    ------
    CannotMeasureError
        If none of them worked.
    """
    timed = {configuration: each.timing for configuration, each in tried if each.timing is not None}
    if not timed:
        why = next((each.error for _, each in tried if each.error), "none was timed")
        raise CannotMeasureError(f"none of {number_of(len(tried), 'candidate')} of {library} worked: {why}")
    fastest = min(timed, key=lambda configuration: timed[configuration].ratio)
    timing = timed[fastest]
    return LibraryBest(
        library=library,
        version=version,
        space=template.name,
        configuration=fastest,
        listed=len(tried),
        ratio=Estimate.of(timing),
        gpu_seconds=sum(each.gpu_seconds for _, each in tried),
    )
