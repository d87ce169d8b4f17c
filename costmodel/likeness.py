"""Where configurations lie by what they do to the hardware, not by their knobs."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.features import Features


@dataclass(frozen=True, eq=False)
class Likeness:
    """Where configurations lie if those are near whose features are alike: a model errs alike on them.

    Attributes
    ----------
    kept
        The features that differ within the space, of shape [coordinates].
    least, span
        The least value of each of them in the space, and its range; of the same shape.
    """

    kept: NDArray[np.int64]
    least: Floats
    span: Floats

    @classmethod
    def of(cls, features: Features) -> Self:
        """The likeness of the configurations of a space: a feature's whole range in it is 1."""
        least = features.values.min(axis=0)
        span = features.values.max(axis=0) - least
        kept = np.flatnonzero(span > 0)
        return cls(kept, least[kept], span[kept])

    def points(self, features: Features) -> Floats:
        """Points of shape [configurations, coordinates], also of another problem's configurations."""
        return np.asarray((np.ascontiguousarray(features.values[:, self.kept]) - self.least) / self.span)
