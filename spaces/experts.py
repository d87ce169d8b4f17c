"""Grouped products with what may stand behind them in a kernel, read from one line."""

from collections.abc import Mapping

from tilescout.spaces.gated import PLACES, GatedProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.scaled import EPILOGUE, ScaledProblem

FORMS: Mapping[str, type[GroupedProblem]] = {**dict.fromkeys(PLACES, GatedProblem), EPILOGUE: ScaledProblem}
"""The class of problems of each form, by the part of a line that names it."""


def read_grouped(text: str) -> GroupedProblem:
    """A grouped product, with SwiGLU behind it, scaled by rows, or alone.

    Raises
    ------
    ProblemError
        If the text is none.
    """
    named = (FORMS[part] for part in text.strip().split(":") if part in FORMS)
    return next(named, GroupedProblem).parse(text)
