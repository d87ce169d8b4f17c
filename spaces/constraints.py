"""Which combinations of knob values are legal, each rule stated once with its reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.devices import Device
from tilescout.spaces.problems import Problem

Columns = Mapping[str, NDArray[Any]]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Constraint:
    """A rule over configurations, evaluated for many of them at once.

    Attributes
    ----------
    name
        A short name, for messages and tests.
    reason
        Why the rule exists, in one line.
    holds
        Predicate: columns of knob values (each of shape [configurations]), the problem and the device to a mask of the
        same shape.
    """

    name: str
    reason: str
    holds: Callable[[Columns, Problem, Device], Mask]
