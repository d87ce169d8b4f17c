"""The plan of a campaign: which configurations are measured, on which problems."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.errors import SpaceError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import Indices, SearchSpace
from tilescout.spaces.subspace import SubSpace


@dataclass(frozen=True)
class Plan:
    """Configurations by problems.

    Attributes
    ----------
    problems
        The problems.
    configurations
        The configurations, without repeats; the problems' defaults are the first.
    legal
        On which problems each is to be measured, of shape [problems, configurations].
    how
        How they were chosen, in a sentence.
    """

    problems: tuple[Problem, ...]
    configurations: tuple[Configuration, ...]
    legal: NDArray[np.bool_]
    how: str

    @property
    def rows(self) -> int:
        """How many measurements that is."""
        return int(self.legal.sum())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that is to be measured, and of its order."""
        configurations = [list(configuration.items()) for configuration in self.configurations]
        text = json.dumps([list(map(str, self.problems)), configurations])
        return hashlib.sha256(text.encode() + np.packbits(self.legal).tobytes()).hexdigest()


def make_plan(
    spaces: Sequence[SearchSpace],
    defaults: Sequence[Configuration],
    sample: int | None,
    seed: int,
    within: SubSpace | None = None,
    also: Sequence[Configuration] = (),
    own: Sequence[Sequence[Configuration]] = (),
) -> Plan:
    """Choose configurations, and measure each on every problem for which it is legal.

    Parameters
    ----------
    spaces
        The legal configurations of every problem, of one template.
    defaults
        The default of every problem; all of them are measured on all problems for which they are legal.
    sample
        How many are drawn, the defaults included; None takes all. Every value of a knob that occurs in one of the
        spaces occurs in the sample too, even if that takes more configurations. A configuration that is legal for
        more of the problems is more likely to be drawn.
    seed
        Of the sample, and of the order.
    within
        The sub-space to choose from; None is the whole space. Defaults and given configurations need not be in it.
    also
        Given configurations, which count towards the sample. Those that are legal for one of the problems are measured.
    own
        Of each problem those that are measured on it alone, where they are not among the others; none by default. They
        do not count towards the sample.

    Raises
    ------
    SpaceError
        If nothing is left.
    """
    first = spaces[0]

    def position(configuration: Configuration) -> int:
        return int(np.ravel_multi_index(tuple(first.code(configuration)), first.shape))

    positions, weights = _union(spaces, within)
    generator = np.random.default_rng(seed)
    chosen = list(dict.fromkeys(map(position, (*defaults, *also))))
    given = np.stack(np.unravel_index(np.array(chosen, dtype=np.int64), first.shape), axis=1)
    legal_somewhere = np.logical_or.reduce([space.find(given) >= 0 for space in spaces])
    chosen = [position for position, kept in zip(chosen, legal_somewhere, strict=True) if kept]
    if sample is None:
        drawn = generator.permutation(positions)
    else:
        drawn = _stratified(first.shape, np.array(chosen, dtype=np.int64), positions, weights, sample, generator)
    of_all = [*chosen, *drawn.tolist()]
    of_one = [
        sorted({position(each) for each in some if each in space})
        for space, some in zip(spaces, own or [()] * len(spaces), strict=True)
    ]
    chosen = list(dict.fromkeys([*of_all, *chain.from_iterable(of_one)]))
    codes = np.stack(np.unravel_index(np.array(chosen), first.shape), axis=1)
    wanted = [np.isin(chosen, [*of_all, *some]) for some in of_one]
    legal = np.stack([space.find(codes) >= 0 for space in spaces]) & wanted
    values = [[knob.values[code] for code in codes[:, axis]] for axis, knob in enumerate(first.knobs)]
    names = [knob.name for knob in first.knobs]
    configurations = tuple(Configuration(tuple(zip(names, row, strict=True))) for row in zip(*values, strict=True))
    restricted = f" of {within}" if within else ""
    if sample is None:
        how = f"all {len(configurations):,} legal configurations{restricted}"
    else:
        how = f"{len(configurations):,} configurations sampled with seed {seed}{restricted}, every value of every knob"
    how += f", {len(also):,} given ones" if also else ""
    how += f", {sum(map(len, own)):,} given for single problems" if own else ""
    where = "those for single problems on these, each other one" if own else "each"
    legal_defaults = "every default" if set(defaults) <= set(configurations) else "every legal default"
    return Plan(
        problems=tuple(space.problem for space in spaces),
        configurations=configurations,
        legal=legal,
        how=f"{how} and {legal_defaults} among them, {where} on every problem for which it is legal",
    )


def _union(spaces: Sequence[SearchSpace], within: SubSpace | None) -> tuple[Indices, NDArray[np.float64]]:
    """Positions in the full grid of the wanted configurations, and their weights: every space has the same weight."""
    shape = spaces[0].shape
    found, weights = [], []
    for space in spaces:
        codes = space.codes[within.holds(space)] if within else space.codes
        found.append(np.ravel_multi_index(tuple(codes.astype(np.int64).T), shape))
        weights.append(np.full(len(found[-1]), 1 / len(space)))
    positions, where = np.unique(np.concatenate(found), return_inverse=True)
    if not len(positions):
        raise SpaceError(f"{spaces[0].name}: no legal configuration is in {within}")
    return positions, np.asarray(np.bincount(where, np.concatenate(weights)), dtype=np.float64)


def _stratified(
    shape: tuple[int, ...],
    chosen: Indices,
    positions: Indices,
    weights: NDArray[np.float64],
    count: int,
    generator: np.random.Generator,
) -> Indices:
    """A weighted random order of `positions`, cut at `count`; those that show a missing value of a knob come first."""
    # The largest of log(u) / w first is the order of drawing without replacement with weights w (P. S. Efraimidis and
    # P. G. Spirakis: Weighted random sampling with a reservoir, Information Processing Letters 97, 2006).
    order = np.argsort(np.log(1 - generator.random(len(positions))) / weights)[::-1]
    drawn = positions[order]
    drawn = drawn[~np.isin(drawn, chosen)]
    codes = np.stack(np.unravel_index(drawn, shape), axis=1)
    have = np.stack(np.unravel_index(chosen, shape), axis=1)
    taken: list[int] = []
    for axis, size in enumerate(shape):
        for code in range(size):
            held = (have[:, axis] == code).any() or (codes[taken, axis] == code).any()
            having = np.flatnonzero(codes[:, axis] == code)
            if not held and len(having):
                taken.append(int(having[0]))
    rest = np.delete(np.arange(len(drawn)), np.array(taken, dtype=np.int64))
    room = max(0, count - len(chosen) - len(taken))
    kept: Indices = drawn[np.concatenate([np.array(taken, dtype=np.int64), rest[:room]])]
    return kept
