"""Tune the matrix products of a model while ``torch.compile`` compiles it.

Everything public is named here; a module is imported when one of its names is first used::

    from tilescout.search import autotune

    with autotune() as tuned:
        model = torch.compile(model)
    model(x)
    print(tuned)
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.autotuning.contest import ContestOptions
    from tilescout.search.autotuning.inductor import autotune, backend
    from tilescout.search.autotuning.store import EvidenceStore
    from tilescout.search.autotuning.summary import Summary
    from tilescout.search.autotuning.tuner import Tuner, TunerOptions

__all__ = ["ContestOptions", "EvidenceStore", "Summary", "Tuner", "TunerOptions", "autotune", "backend"]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "ContestOptions": "contest",
        "EvidenceStore": "store",
        "Summary": "summary",
        "Tuner": "tuner",
        "TunerOptions": "tuner",
        "autotune": "inductor",
        "backend": "inductor",
    },
)
