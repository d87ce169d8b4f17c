"""Knobs that only the launch of a kernel knows: kernels that differ in nothing else are compiled as one."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.errors import SpaceError
from tilescout.spaces.knobs import Configuration, Knob, Value

Launched = Mapping[str | tuple[str, ...], Sequence[Value | tuple[Value, ...]]]
"""By the names of knobs, the values that only a launch knows; what is compiled has the first of each.

By a tuple of names: combinations of their values.
"""


def combinations(launched: Launched) -> Iterator[tuple[tuple[str, ...], list[tuple[Value, ...]]]]:
    """Names of knobs that a launch knows together, and the combinations of their values, the compiled one first."""
    for names, values in launched.items():
        if isinstance(names, str):
            yield (names,), [(value,) for value in values if not isinstance(value, tuple)]
        else:
            yield names, [value for value in values if isinstance(value, tuple)]


def compiled_as(launched: Launched, configuration: Configuration) -> Configuration:
    """The configuration whose kernel differs from that of another one in nothing but its launch."""
    found = dict(configuration.items())
    for names, known in combinations(launched):
        if tuple(map(found.get, names)) in known:
            found.update(zip(names, known[0], strict=True))
    return Configuration(tuple(found.items()))


def codes_known(knobs: Sequence[Knob], configurations: Iterable[Configuration]) -> NDArray[np.int16]:
    """Codes, of shape [configurations, knobs], of those that have a known value for each knob; others are left out."""
    found = []
    for each in configurations:
        if len(each) == len(knobs):
            with suppress(KeyError, SpaceError):
                found.append([knob.code(each[knob.name]) for knob in knobs])
    return np.array(found, dtype=np.int16).reshape(-1, len(knobs))


def kernels_of(launched: Launched, knobs: Sequence[Knob], codes: NDArray[np.int16]) -> NDArray[np.int64]:
    """Numbers of the kernels that configurations are compiled as, given as codes of shape [configurations, knobs].

    A number has the codes of what is compiled as its digits, the last knob's the lowest.
    """
    columns = dict(zip((knob.name for knob in knobs), np.asarray(codes).T, strict=True))
    for names, known in combinations(launched):
        among = [knob for name in names for knob in knobs if knob.name == name]
        sizes = [len(knob.values) for knob in among]
        places = [[knob.code(value) for knob, value in zip(among, each, strict=True)] for each in known]
        at = np.ravel_multi_index(np.transpose(places), sizes)
        compiled = np.arange(np.prod(sizes))
        compiled[at] = at[0]
        given = columns[names[0]]
        for name, size in zip(names[1:], sizes[1:], strict=True):
            given = given.astype(np.int64) * size + columns[name]
        digits = np.unravel_index(compiled, sizes)  # of each combination
        columns.update(zip(names, (digit.take(given) for digit in digits), strict=True))
    numbers = np.zeros(len(codes), dtype=np.int64)
    for knob in knobs:
        numbers *= len(knob.values)
        numbers += columns[knob.name]
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
