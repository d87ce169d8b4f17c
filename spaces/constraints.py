"""Constraints: the rules that say which combinations of knob values are legal, each stated once with its reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.devices import Device
from tilescout.spaces.problems import P_contra

Columns = Mapping[str, NDArray[Any]]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Constraint(Generic[P_contra]):
    """A rule over configurations, evaluated for many of them at once.

    Attributes
    ----------
    name
        A short name, for messages and tests.
    reason
        Why the rule exists, in one line.
    knobs
        Names of the knobs that it looks at. The enumerator applies the rule as soon as it has chosen these, so that it
        never combines an excluded choice with the knobs that follow.
    holds
        The predicate. It takes columns of knob values, each of shape [configurations], the problem and the device, and
        returns a mask of the same shape: True where the rule is obeyed.
    """

    name: str
    reason: str
    knobs: tuple[str, ...]
    holds: Callable[[Columns, P_contra, Device], Mask]
