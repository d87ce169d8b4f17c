"""The acquisition function: which configurations are looked at for a proposal, and which of them is taken."""

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import Prediction
from tilescout.costmodel.features import Features
from tilescout.search.samplers.guided.history import History
from tilescout.search.samplers.guided.options import GuidedOptions
from tilescout.spaces.space import Indices, SearchSpace


class Neighbours:
    """The configurations of a space that differ in few knobs from one of them; none is looked for twice."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self._found: dict[tuple[int, int], Indices] = {}

    def of(self, index: int, radius: int) -> Indices:
        """Those that differ from a configuration in at most so many knobs, itself included, in order."""
        if (index, radius) not in self._found:
            codes, ones = self.space.codes, np.ones(len(self.space.knobs), dtype=np.uint8)
            differing = (codes != codes[index]).view(np.uint8) @ ones
            self._found[index, radius] = np.flatnonzero(differing <= radius)
        return self._found[index, radius]


def candidates_among(
    free: Indices,
    neighbours: Neighbours,
    history: History,
    prior: Prediction | None,
    options: GuidedOptions,
    rng: np.random.Generator,
    also: Indices,
) -> Indices:
    """The free configurations to look at: all of few, else the most hopeful, neighbours of the best trials, and `also`.

    Without a prior none is more hopeful than another, and they are drawn at random.
    """
    if len(free) <= 2 * options.candidates:
        return free
    is_free, chosen = np.zeros((2, len(neighbours.space)), dtype=np.bool_)
    is_free[free] = True
    if prior is not None:
        # Of so many that come first, no more are taken than the space has fewer free ones.
        hopeful = prior.hopeful(options.candidates + len(is_free) - len(free))
        chosen[hopeful[is_free[hopeful]][: options.candidates]] = True
    else:
        chosen[rng.choice(free, options.candidates, replace=False)] = True
    order = np.argsort(history.values, kind="stable")[: options.tops]
    for index in history.settled[order]:
        chosen[neighbours.of(int(index), options.radius)] = True
    chosen[also] = True
    return np.flatnonzero(chosen & is_free)


def runs_of(some: Indices) -> bytes:
    """Configurations in order, as the first and the last one of each run without a gap: equal for equal ones.

    Of 250,000 of which a few are missing it takes 0.4 ms; a checksum of them took 1.1 ms (2026-11-27).
    """
    ends = np.flatnonzero(some[1:] != some[:-1] + 1)
    return np.concatenate([some[:1], some[ends], some[ends + 1], some[-1:]]).tobytes()


def held_by(free: Indices, some: Indices) -> NDArray[np.bool_]:
    """Which of the free configurations are among `some`, both in order, of shape [free].

    NumPy's sets sort both, which takes 60 ms where 250,000 are free; this takes 0.1 ms (2026-11-23).
    """
    held = np.zeros(len(free), dtype=np.bool_)
    at = np.searchsorted(free, some)
    at = at[at < len(free)]
    held[at[np.isin(free[at], some)]] = True
    return held


def furthest(points: Floats, known: Indices, free: Indices, drawn: int, rng: np.random.Generator) -> int:
    """Of some free configurations, drawn at random, the one that lies furthest from all that are known.

    J. Kennard, L. Stone: Computer aided design of experiments. Technometrics 11, 1969.

    Parameters
    ----------
    points
        Where the configurations lie, of shape [configurations, coordinates].
    known
        Those that were tried, or are in flight.
    free
        Those to choose from; at least one.
    drawn
        How many are drawn.
    rng
        Draws them.
    """
    some = rng.choice(free, min(drawn, len(free)), replace=False)
    if not len(known):
        return int(some[0])
    squares = np.square(points[some][:, None] - points[known]).sum(axis=2)
    return int(some[squares.min(axis=1).argmax()])


TILE = ("rows", "columns", "split", "warp_groups")
"""Features of the tile that a block computes. Configurations that have them alike are twins for a cost model's errors:
by distance alone, of knobs or of all features, twins are no nearer to each other than to other tiles."""


def looks_around(history: History, options: GuidedOptions) -> bool:
    """Whether the next proposal has a new tile: where a model is wrong about a whole tile, no twin of it tells."""
    return not history.finished and options.around > 0 and len(history.running) % options.around == options.around - 1


def ventures(history: History, options: GuidedOptions) -> bool:
    """Whether the next proposal before any outcome is to be compiled, though stored ones are expected to do as well."""
    return options.ventured > 0 and len(history.running) % options.ventured == options.ventured - 1


def new_tiles(features: Features, candidates: Indices, known: Indices) -> Indices:
    """Positions of the candidates whose tile no known configuration has; of all, where there is no such or no tiles."""
    names = tuple(name for name in TILE if name in features.names)
    tiles = features.only(names).values
    twins = (tiles[candidates][:, None] == tiles[known]).all(axis=2).any(axis=1)
    return np.flatnonzero(~twins) if names and not twins.all() else np.arange(len(candidates))


def incumbent(history: History, prior: Prediction | None, elsewhere: float | None = None) -> float | None:
    """The value to improve on: the best so far, also of another space, `elsewhere`.

    Before any is known, it is the best that is expected of those in flight: without it proposals that are made then
    would all lie together. None if there is neither.
    """
    known = [each for each in (history.best, elsewhere) if each is not None]
    if not known and prior is not None and len(history.running):
        return float(prior.mean[history.running].min())
    return min(known, default=None)


def most_promising(mean: Floats, worth: Floats | None) -> int:
    """The position of the candidate that is worth the most; of the smallest mean, where nothing is to be improved on.

    Parameters
    ----------
    mean, worth
        Of each candidate's value, and what trying it is worth, of shape [candidates].
    """
    return int(mean.argmin() if worth is None else worth.argmax())
