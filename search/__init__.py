"""Search for the fastest configuration of a kernel: ``from tilescout.search import tune``.

What is named here is loaded when it is first used: a process that only measures needs no optuna.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilescout.search.api import tune
    from tilescout.search.measure.race import RaceOptions
    from tilescout.search.samplers import SAMPLERS
    from tilescout.search.studies.records import StudyResult, TrialRecord
    from tilescout.search.tuning.loop import Budget
    from tilescout.search.tuning.study import SearchInterrupted

__all__ = ["SAMPLERS", "Budget", "RaceOptions", "SearchInterrupted", "StudyResult", "TrialRecord", "tune"]

_MODULES = {
    "SAMPLERS": "samplers",
    "Budget": "tuning.loop",
    "RaceOptions": "measure.race",
    "SearchInterrupted": "tuning.study",
    "StudyResult": "studies.records",
    "TrialRecord": "studies.records",
    "tune": "api",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
