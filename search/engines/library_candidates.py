"""Time the kernels among which the library itself would choose, by an engine of another space's kernels."""

import math
from dataclasses import dataclass

from tilescout.search.engines.engine import CannotMeasureError, Engine, Task
from tilescout.search.measure.library_best import CANDIDATES, LibraryBest
from tilescout.search.measure.race import Estimate
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import find_template
from tilescout.spaces.workloads import load_workload


@dataclass(frozen=True)
class Candidate:
    """The library's fastest candidate, and the task of measuring it again."""

    best: LibraryBest
    task: Task


def fastest_candidate(engine: Engine, gpu: int, problem: Problem, library_us: float) -> Candidate | None:
    """The fastest of the library's own candidates; one that is clearly slower than those before it is not timed.

    None if the problem's library has no list of candidates, or the engine's own kernels are on it.

    Raises
    ------
    CannotMeasureError
        If none of them worked, or the engine can't measure.
    SpaceError, DeviceError
        If the library can't be asked.
    """
    name = load_workload(engine.template.workload).candidates
    if not name or engine.template.loader:
        return None
    if not engine.measures_anew:
        raise CannotMeasureError("the table that is replayed was recorded without it")
    template = find_template(name)
    listed = engine.listing(gpu, template, problem, CANDIDATES).result()
    names = [knob.name for knob in template.knobs]
    configurations = [Configuration(tuple(zip(names, row, strict=True))) for row in listed.rows]
    tasks = [
        Task(each, engine.describe(template, each, problem.signature), problem, library_us, math.inf, template)
        for each in configurations
    ]
    measured = engine.measure(gpu, tasks).result()
    timed = {at: each.timing for at, each in enumerate(measured) if each.timing is not None}
    if not timed:
        why = next((each.error for each in measured if each.error), "none was timed")
        raise CannotMeasureError(f"none of the {len(tasks)} candidates of {listed.library} worked: {why}")
    at = min(timed, key=lambda at: timed[at].ratio)
    timing = timed[at]
    best = LibraryBest(
        library=listed.library,
        version=listed.version,
        space=name,
        configuration=configurations[at],
        listed=len(tasks),
        ratio=Estimate(timing.ratio, timing.ratio_low, timing.ratio_high),
        gpu_seconds=sum(each.gpu_seconds for each in measured),
    )
    return Candidate(best, tasks[at])
