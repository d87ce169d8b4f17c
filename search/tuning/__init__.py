"""Searches: the loop, a study of one problem, and all problems of a suite together.

Everything public is named here; a module is imported when one of its names is first used. `tilescout.search.tune` does
all of it in one call.
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.tuning.budget import Budget
    from tilescout.search.tuning.loop import Loop, run
    from tilescout.search.tuning.progress import StudyProgress
    from tilescout.search.tuning.study import SearchInterrupted, TuneOptions, run_study
    from tilescout.search.tuning.suite import tune_suite
    from tilescout.search.tuning.trackers import NoTracker, Tracker

__all__ = [
    "Budget",
    "Loop",
    "NoTracker",
    "SearchInterrupted",
    "StudyProgress",
    "Tracker",
    "TuneOptions",
    "run",
    "run_study",
    "tune_suite",
]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "Budget": "budget",
        "Loop": "loop",
        "run": "loop",
        "StudyProgress": "progress",
        "NoTracker": "trackers",
        "SearchInterrupted": "study",
        "Tracker": "trackers",
        "TuneOptions": "study",
        "run_study": "study",
        "tune_suite": "suite",
    },
)
