"""Search strategies side by side on recorded tables: ``from tilescout.experiments.compare import compare``."""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.experiments.compare.api import compare
    from tilescout.experiments.compare.result import Comparison, Standing

__all__ = ["Comparison", "Standing", "compare"]

__getattr__, __dir__ = public_names(__name__, {"Comparison": "result", "Standing": "result", "compare": "api"})
