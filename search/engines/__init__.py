"""Engines, the one way to have something measured, and the evaluator of a search in front of them.

Everything public is named here; a module is imported when one of its names is first used::

    from tilescout.search.engines import Evaluator, evaluate, make_engine

    with make_engine(template, problem, folder) as engine, Evaluator(engine, problem) as evaluator:
        for index, measurement in evaluate(evaluator, range(10)):
            print(evaluator.space[index], measurement.time_us)
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.engines.engine import CannotMeasureError, Engine, LiveOptions, Task
    from tilescout.search.engines.evaluator import Evaluator, evaluate
    from tilescout.search.engines.local import LocalEngine
    from tilescout.search.engines.ray import RayEngine, RayOptions
    from tilescout.search.engines.replay import ReplayEngine
    from tilescout.search.engines.selection import make_engine

__all__ = [
    "CannotMeasureError",
    "Engine",
    "Evaluator",
    "LiveOptions",
    "LocalEngine",
    "RayEngine",
    "RayOptions",
    "ReplayEngine",
    "Task",
    "evaluate",
    "make_engine",
]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "CannotMeasureError": "engine",
        "Engine": "engine",
        "LiveOptions": "engine",
        "Task": "engine",
        "Evaluator": "evaluator",
        "evaluate": "evaluator",
        "LocalEngine": "local",
        "RayEngine": "ray",
        "RayOptions": "ray",
        "ReplayEngine": "replay",
        "make_engine": "selection",
    },
)
