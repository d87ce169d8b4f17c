"""Conformance suites: test classes that your own classes pass if they keep the rules, as those of tilescout do.

Subclass one in a test file; pytest runs it. Each name is loaded when it is first used. The suite of samplers needs
pytest, which tilescout does not install.
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.testing.engines import EngineConformance
    from tilescout.search.testing.samplers import OptunaConformance, SamplerConformance

__all__ = ["EngineConformance", "OptunaConformance", "SamplerConformance"]

__getattr__, __dir__ = public_names(
    __name__, {"EngineConformance": "engines", "OptunaConformance": "samplers", "SamplerConformance": "samplers"}
)
