"""Ranked lists: configurations that are measured from the top, in an order known before the first measurement.

A ranking is a function of a problem's space and its default configuration. It returns configurations, the most
promising first. They may leave knobs open, and name values that the space does not have. The nearest legal
configuration is measured then, see `places`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from tilescout.spaces.errors import SamplerError, one_line
from tilescout.spaces.inputs import parse_json, read_regular
from tilescout.spaces.knobs import Configuration, Knob, Value, listed_configurations
from tilescout.spaces.plugins import find
from tilescout.spaces.space import Indices, SearchSpace
from tilescout.spaces.templates import KernelTemplate

Wish = Mapping[str, Value]
Ranking = Callable[[SearchSpace, Configuration], Sequence[Wish]]

RANKINGS: Mapping[str, str] = {
    "quack": "tilescout.experiments.compare.quack:ranking",
    "heuristics": "tilescout.experiments.compare.heuristics:ranking",
    "flashinfer": "tilescout.experiments.compare.flashinfer:ranking",
    "portfolio": "tilescout.experiments.compare.portfolio:ranking",
}
"""Rankings by name, as module:function, imported when they are used."""

_OPEN = 1e-3  # weight of the knobs that a wish leaves open: they only choose between equally near configurations


def find_ranking(name: str) -> Ranking:
    """The ranking of this name, or of the configurations in a JSON file if the name ends in ``.json``.

    Raises
    ------
    SamplerError
        If there is none, or the file is not a list of configurations.
    """
    if name.endswith(".json"):
        wishes = _read(Path(name))
        return lambda space, default: wishes
    if name not in RANKINGS:
        raise SamplerError(f"unknown ranking {name!r}, known are {', '.join(RANKINGS)} and files that end in .json")
    ranking: Ranking = find(RANKINGS[name])
    return ranking


def ranked(template: KernelTemplate, space: SearchSpace, name: str) -> list[int]:
    """Indices of what the ranking of this name would measure of a space, in its order.

    Raises
    ------
    SamplerError
        If there is no such ranking, or it does not suit the space.
    """
    default = template.default_in(space)
    return [int(index) for index in places(space, default, find_ranking(name)(space, default))]


def places(space: SearchSpace, default: Configuration, wishes: Sequence[Wish]) -> Indices:
    """The configurations that wishes stand for, in their order and without repeats.

    A wish stands for the configuration of the space that is nearest in the knobs that it names, by the sum of the
    distances of their codes, each scaled to [0, 1]. A number between two values of a knob lies between their codes. Of
    equally near ones it is the one nearest to the default in the knobs that the wish leaves open.

    Raises
    ------
    SamplerError
        If a wish names a knob that the space does not have.
    """
    found = []
    for wish in wishes:
        unknown = [name for name in wish if name not in default]
        if unknown:
            raise SamplerError(f"a ranking names the knob {unknown[0]!r}, {space.name} has {', '.join(default)}")
        target = space.scale([_position(knob, wish.get(knob.name, default[knob.name])) for knob in space.knobs])
        weights = np.array([1.0 if knob.name in wish else _OPEN for knob in space.knobs])
        found.append(int((np.abs(space.features - target) @ weights).argmin()))
    return np.array(list(dict.fromkeys(found)), dtype=np.int64)


def _position(knob: Knob, value: Value) -> float:
    """Where a value lies among a knob's codes; between two for a number between two values."""
    if value in knob.values or isinstance(value, str) or isinstance(knob.values[0], str):
        return float(knob.code(value))
    order = np.argsort(np.array(knob.values))
    return float(np.interp(value, np.array(knob.values)[order], order))


_LARGEST = 1 << 20  # bytes; a configuration has 150
_MOST = 1000  # configurations: each is compared with the whole space, which takes 10 ms
_MOST_FAR = 2**31  # of a number


def _read(path: Path) -> Sequence[Wish]:
    try:
        wishes = listed_configurations(parse_json(read_regular(path, _LARGEST)))
    except OSError as error:
        raise SamplerError(f"can't read the ranking {path}: {error.strerror}") from error
    except ValueError as error:
        raise SamplerError(f"can't read the ranking {path}: {one_line(error)}") from error
    if len(wishes) > _MOST or any(
        isinstance(value, int) and abs(value) > _MOST_FAR for w in wishes for value in w.values()
    ):
        raise SamplerError(f"the ranking {path} has more than {_MOST} configurations, or a number beyond {_MOST_FAR}")
    return wishes
