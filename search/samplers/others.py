"""Trials of other problems: a search of one problem of a suite learns from them."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.trial import TrialState

from tilescout.costmodel.coordinates import coordinates
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import Features, space_features
from tilescout.search.samplers.base import distributions
from tilescout.spaces.description import Describes
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import Indices, SearchSpace
from tilescout.spaces.templates import find_template

Floats = NDArray[np.float64]

OCTAVES = 4.0
"""Logarithm to base 2 of the ratio of two sizes of a problem that counts as much as a knob's whole range."""

MOST = 256
"""Most trials of other problems that correct a prior, those of the most similar problems first. The time of a proposal
grows with the cube of their number."""


@dataclass(frozen=True, eq=False)
class OtherTrials:
    """The measurements of a problem, for the search of another one.

    Attributes
    ----------
    space
        The configurations that were measured, and no others.
    log_time
        Natural logarithm of the time of each in µs, of shape [configurations]; of a pruned one, its pilot's.
    pruned
        Which of them were pruned, of the same shape.
    """

    space: SearchSpace
    log_time: Floats
    pruned: NDArray[np.bool_]

    @classmethod
    def of(cls, space: SearchSpace, indices: Indices, times_us: Floats, pruned: NDArray[np.bool_]) -> Self | None:
        """Measurements of configurations of a space, each given once; None if there is none.

        Parameters
        ----------
        space
            The problem's whole space, or any part that holds them.
        indices
            Which were measured.
        times_us, pruned
            Of each, of the shape of `indices`.
        """
        if not len(indices):
            return None
        order = np.argsort(indices)
        return cls(space.subset(indices), np.log(times_us[order]), pruned[order])

    @classmethod
    def of_study(cls, study: optuna.Study, space: SearchSpace) -> Self | None:
        """The timed and the pruned trials of a study of times; None if there is none."""
        names = list(distributions(space))
        found = [
            trial
            for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
            if trial.value is not None and trial.value > 0 and all(name in trial.params for name in names)
        ]
        codes = np.array([[trial.params[name] for name in names] for trial in found], dtype=np.int64)
        indices = np.asarray(space.find(codes.reshape(-1, len(names))), dtype=np.int64)
        times = np.array([trial.value for trial in found], dtype=np.float64)
        pruned = np.array([trial.state is TrialState.PRUNED for trial in found], dtype=np.bool_)
        _, first = np.unique(indices, return_index=True)
        first = first[indices[first] >= 0]
        return cls.of(space, indices[first], times[first], pruned[first])

    def __len__(self) -> int:
        return len(self.log_time)

    @cached_property
    def features(self) -> Features:
        """The features of the configurations, as a cost model sees them."""
        return features_of(self.space)

    @cached_property
    def points(self) -> Floats:
        """Where they lie among those of all problems; see `points_of`."""
        return points_of(self.space)

    def telling(self, most: int) -> Indices:
        """Positions of so many of them at most, in order: half the fastest, half evenly spaced among the rest."""
        if len(self) <= most:
            return np.arange(len(self))
        fastest, by_time = most - most // 2, np.argsort(self.log_time, kind="stable")
        spaced = np.linspace(fastest, len(self) - 1, most // 2).astype(np.int64)
        return np.sort(by_time[np.concatenate([np.arange(fastest), spaced])])

    def sample(self) -> Sample:
        """The measurements as a cost model learns from them."""
        return Sample(str(self.space.problem), self.features, self.log_time, self.pruned)


def features_of(space: SearchSpace) -> Features:
    """The features of a space as a cost model sees them: those of its template or, if there is none, the knobs.

    The template is the one that made the space, which a person may have named, or the known one of that name.

    Raises
    ------
    SpaceError
        If the template can't describe the configurations.
    """
    template: Describes | None = space.template
    if template is None:
        with suppress(SpaceError):
            template = find_template(space.name)
    return space_features(space, template)


def points_of(space: SearchSpace) -> Floats:
    """Coordinates of the configurations, then those of the problem, of shape [configurations, coordinates]."""
    place = place_of(space.problem)
    return np.concatenate([coordinates(space), np.tile(place, (len(space), 1))], axis=1)


def place_of(problem: Problem) -> Floats:
    """Where a problem lies among others, of shape [dimensions]; without any, all problems lie in one place."""
    return np.log2(np.maximum(problem.dimensions, 1.0)) / OCTAVES


def nearest(others: Sequence[OtherTrials], problem: Problem) -> list[tuple[OtherTrials, Indices]]:
    """Those of the most similar problems, with the positions of the trials that count: `MOST` in all.

    Problems that only their names tell of may have more sizes or fewer: nothing is learned from these.
    """
    place = place_of(problem)
    alike = [other for other in others if len(place_of(other.space.problem)) == len(place)]
    away = [float(np.abs(place_of(other.space.problem) - place).sum()) for other in alike]
    found, left = [], MOST
    for at in np.argsort(away, kind="stable"):
        if left:
            found.append((alike[at], alike[at].telling(left)))
            left -= len(found[-1][1])
    return found
