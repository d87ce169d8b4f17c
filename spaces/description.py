"""The description of configurations that a space has for cost models, beside their knobs."""

from typing import TYPE_CHECKING, Any, Protocol

from tilescout.spaces.constraints import Columns
from tilescout.spaces.knobs import Knob

if TYPE_CHECKING:
    from tilescout.spaces.grouped_tiling import GroupedTiling
    from tilescout.spaces.tiling import Tiling


class Describes(Protocol):
    """A template, as cost models see it: it says how configurations divide the work.

    Attributes
    ----------
    name
        The name of its space.
    """

    name: str

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """Its knobs."""

    @property
    def is_tiled(self) -> bool:
        """Whether it describes how its configurations divide a matrix product."""

    @property
    def is_grouped(self) -> bool:
        """Whether it describes how its configurations divide a grouped product."""

    def tiling(self, columns: Columns, problem: Any) -> "Tiling | None":
        """How configurations, given as columns of knob values, divide a matrix product; None if they compute none."""

    def grouped_tiling(self, columns: Columns, problem: Any) -> "GroupedTiling | None":
        """How configurations, given as columns of knob values, divide a grouped product; None if they compute none."""
