"""Knobs that only the launch of a kernel knows: kernels that differ in nothing else are compiled as one."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.errors import SpaceError
from tilescout.spaces.knobs import Configuration, Knob, Value

Launched = Mapping[str, Sequence[Value]]
"""By the names of knobs, the values that only a launch knows; what is compiled has the first of each."""


def compiled_as(launched: Launched, configuration: Configuration) -> Configuration:
    """The configuration whose kernel differs from that of another one in nothing but its launch."""
    return Configuration(
        tuple(
            (name, launched[name][0] if value in launched.get(name, ()) else value)
            for name, value in configuration.items()
        )
    )


def codes_known(knobs: Sequence[Knob], configurations: Iterable[Configuration]) -> NDArray[np.int16]:
    """Codes, of shape [configurations, knobs], of those that have a known value for each knob; others are left out."""
    found = []
    for each in configurations:
        if len(each) == len(knobs):
            with suppress(KeyError, SpaceError):
                found.append([knob.code(each[knob.name]) for knob in knobs])
    return np.array(found, dtype=np.int16).reshape(-1, len(knobs))


def kernels_of(launched: Launched, knobs: Sequence[Knob], codes: NDArray[np.int16]) -> NDArray[np.int64]:
    """Numbers of the kernels that configurations are compiled as, given as codes of shape [configurations, knobs]."""
    numbers = np.zeros(len(codes), dtype=np.int64)
    for knob, column in zip(knobs, np.asarray(codes).T, strict=True):
        compiled = np.arange(len(knob.values))
        if values := launched.get(knob.name):
            compiled[[knob.code(value) for value in values]] = knob.code(values[0])
        numbers *= len(knob.values)
        numbers += compiled.take(column)
    return numbers


def served_by(some: NDArray[np.int64], kernels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices of the configurations whose kernels, of shape [configurations], are among some.

    NumPy's sets sort both, of which `kernels` may be 250,000.
    """
    known = np.unique(some)
    if not len(known):
        return np.empty(0, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, kernels), len(known) - 1)
    return np.flatnonzero(known[at] == kernels)
