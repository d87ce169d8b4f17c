"""Search for the fastest configuration of a kernel: ``from tilescout.search import tune``.

What is named here is loaded when it is first used: a process that only measures needs no optuna. The rooms below name
what else is public: `build`, `measure`, `engines`, `tables`, `studies`, `samplers`, `tuning`, `campaigns`, `tracking`,
`export` and `autotuning`.
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.api import (
        SAMPLERS,
        Budget,
        Evaluator,
        RaceOptions,
        SearchInterrupted,
        StudyResult,
        Table,
        TrialRecord,
        TuneOptions,
        TuneResult,
        default_table,
        evaluate,
        load_study,
        make_engine,
        run_study,
        tune,
    )
    from tilescout.search.autotuning import autotune

__all__ = [
    "SAMPLERS",
    "Budget",
    "Evaluator",
    "RaceOptions",
    "SearchInterrupted",
    "StudyResult",
    "Table",
    "TrialRecord",
    "TuneOptions",
    "TuneResult",
    "autotune",
    "default_table",
    "evaluate",
    "load_study",
    "make_engine",
    "run_study",
    "tune",
]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "tune": "api",
        "autotune": "autotuning.inductor",
        "Evaluator": "engines.evaluator",
        "evaluate": "engines.evaluator",
        "make_engine": "engines.selection",
        "RaceOptions": "measure.race",
        "SAMPLERS": "samplers.registry",
        "StudyResult": "studies.records",
        "TrialRecord": "studies.records",
        "default_table": "tables.shipped",
        "Table": "tables.table",
        "TuneResult": "tracking.result",
        "load_study": "tracking.result",
        "Budget": "tuning.budget",
        "SearchInterrupted": "tuning.study",
        "TuneOptions": "tuning.study",
        "run_study": "tuning.study",
    },
)
