"""The prior: log times that are expected of the configurations of a space before any of them is measured."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.contents import content_sha256
from tilescout.costmodel.coordinates import coordinates_of
from tilescout.costmodel.estimator import CostModel, Prediction
from tilescout.costmodel.features import KNOB, Features
from tilescout.costmodel.forest import ForestModel, ForestOptions
from tilescout.costmodel.likeness import Likeness
from tilescout.costmodel.persistence import ModelCard, load_model, model_file
from tilescout.costmodel.posterior import Covariance, Kernel, KernelSum, Observed, limited
from tilescout.costmodel.relatives import doubted, model_for, relative_model
from tilescout.search.samplers.guided.options import GuidedOptions
from tilescout.search.samplers.others import OtherTrials, features_of, nearest, place_of, points_of
from tilescout.spaces.errors import SpaceError, one_line
from tilescout.spaces.space import Indices, SearchSpace
from tilescout.spaces.templates import find_template

_LOG = logging.getLogger(__name__)

SHIPPED = "shipped"
"""Take the model that comes with the package for the space and the device. If there is none, take that of a sibling of
the device; if there is none either, that of a relative of the space."""


def model_beside(given: CostModel | Path | str | None) -> CostModel | Path | str | None:
    """The cost model of a second space that is searched with the one for which a cost model is given.

    A fitted model and a file are of one space, so that the other is searched by its shipped one. A folder has those of
    both.
    """
    of_one = isinstance(given, CostModel) or (given is not None and given != SHIPPED and not Path(given).is_dir())
    return SHIPPED if of_one else given


class Prior:
    """The log times that a cost model expects of a space, and how wrong it was on other problems.

    Nothing is read or predicted before it is asked for, and nothing twice.

    Parameters
    ----------
    space
        The configurations.
    given
        The cost model: `SHIPPED`, a fitted model, the file of one, a folder of some, or None for none.
    others
        Called for what is known by then of other problems with the same knobs; None if there are none.
    options
        The options of the search.
    earlier
        Called once, where nothing else is known, for what earlier studies tell of other problems; None if they do not.
    """

    def __init__(
        self,
        space: SearchSpace,
        given: CostModel | Path | str | None,
        others: Callable[[], Sequence[OtherTrials]] | None,
        options: GuidedOptions,
        earlier: Callable[[], Sequence[OtherTrials]] | None = None,
    ) -> None:
        self.space = space
        self.others = others
        self._given = given
        self._options = options
        self._earlier = earlier if options.recall else None
        self._learned: tuple[int, Prediction] | None = None
        self._predicted: dict[int, tuple[OtherTrials, Prediction]] = {}

    @property
    def file(self) -> Path | None:
        """The file of the model; None without a model, or if it came from no file."""
        if self._given is None or isinstance(self._given, CostModel):
            return None
        if self._given == SHIPPED:
            name, device = self.space.name, self.space.device.name
            return model_for(name, device) or relative_model(self.space.template or name, device)
        return model_file(self._given, self.space.name, self.space.device.name)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the bytes that the model was read from, or of an object's content.

        Empty without a model, or of an object whose content is not known.
        """
        if isinstance(self._given, CostModel):
            return content_sha256(self._given)
        return self._loaded[1].sha256 if self._loaded is not None else ""

    @property
    def hindsight(self) -> bool:
        """Whether the model was trained on the problem of the space."""
        return self._loaded is not None and not self.of_relative and str(self.space.problem) in self._loaded[1].problems

    @property
    def of_relative(self) -> bool:
        """Whether the model is one of another kernel; see `tilescout.costmodel.relatives`."""
        return self._loaded is not None and self._loaded[1].space != self.space.name

    def tell_if_lent(self) -> None:
        """Warn of a model that was named and is of another kernel."""
        if self._given != SHIPPED and self.of_relative:
            assert self._loaded is not None
            of = one_line(self._loaded[1].space, 60)
            _LOG.warning(
                "the cost model %s is of %s, not of %s: it is doubted, as that of a relative is",
                self.file,
                of,
                self.space.name,
            )

    @property
    def of_sibling(self) -> bool:
        """Whether the model is one of another device of the same architecture."""
        return self._loaded is not None and self._loaded[1].device != self.space.device.name

    @cached_property
    def of_library(self) -> bool:
        """Whether the kernels are a library's, which nobody compiles."""
        try:
            return bool(find_template(self.space.name).loader)
        except SpaceError:  # of a table, or of your own
            return False

    @cached_property
    def model(self) -> CostModel | None:
        """The cost model; None without one.

        Raises
        ------
        ModelError
            If it can't be read.
        SpaceError
            If one was given for a space that has no template.
        """
        if self._given is None:
            return None
        if self._given != SHIPPED and self.space.template is None:
            find_template(self.space.name)
        if isinstance(self._given, CostModel):
            return self._given
        return self._loaded[0] if self._loaded is not None else None

    @cached_property
    def of_model(self) -> Prediction | None:
        """The model's expectation of every configuration; None without a model.

        Raises
        ------
        ModelError
            If the model is not one of the space's template.
        """
        return None if self.model is None else self._predict(self.model, self.features)

    @cached_property
    def points(self) -> "Places":
        """Where the configurations lie among those of all problems.

        The prior errs alike on those that lie near one another; `covariance` says how much. First come their knobs,
        then their features, each with the sizes of the problem. Of a relative's model there are the features alone.
        """
        return Places(self.space, self.features, self._located)

    @cached_property
    def covariance(self) -> Covariance:
        """How the errors of the prior on the configurations vary together, by `points`."""
        options, coordinates = self._options, self.points[np.array([0])].shape[1]
        if self.of_relative:
            return Kernel.even(coordinates, options.length, options.noise)
        knobs = points_of(self.space.subset([0])).shape[1]
        parts = (
            Kernel.even(knobs, options.length, options.noise),
            Kernel.even(coordinates - knobs, options.work_length, options.noise),
        )
        return KernelSum(parts, (options.alone_apart if self.of_library else options.alone) ** 2)

    def now(self) -> Prediction | None:
        """The expectation of the model or of one that is learned from other problems; None if there is neither.

        One is learned where the template says how configurations divide the work. See `beside` for other kernels.
        """
        if self.of_model is not None or self.others is None or not self._is_described:
            return self.of_model
        others = self.others()
        known = sum(int((~other.pruned).sum()) for other in others)
        if known < self._options.enough:
            return None
        if self._learned is None or known >= 2 * self._learned[0]:  # not after every trial: it takes seconds
            options = ForestOptions(trees=self._options.trees)
            model = ForestModel(options).fit([other.sample() for other in others])
            self._learned = known, model.predict(features_of(self.space))
        return self._learned[1]

    def elsewhere(self) -> Observed | None:
        """How wrong the model was on other problems; None if nothing is known of that."""
        if self.model is None or self.others is None:
            return None
        parts = []
        for number, (other, kept) in enumerate(nearest(self.others(), self.space.problem), start=1):
            if id(other) not in self._predicted:
                self._predicted[id(other)] = other, self._predict(self.model, other.features)
            expected = self._predicted[id(other)][1]
            errors, noise = other.log_time - expected.mean, self._options.noise_of(other.pruned[kept])
            points = self._located(other.points[kept], other.features.take(kept), place_of(other.space.problem))
            parts.append(Observed(points, errors[kept], expected.spread[kept], noise, np.full(len(kept), number)))
        return reduce(Observed.and_, parts) if parts else None

    def beside(self) -> Observed | None:
        """Measurements of other problems, where there is neither a model nor one to be learned; None of too few.

        Each problem's log times are about their mean, for problems differ by more than configurations do.
        """
        if self.model is not None or self._is_described:
            return None
        others = nearest([*(self.others() if self.others is not None else ()), *self.earlier], self.space.problem)
        if sum(len(kept) for _, kept in others) < self._options.startup:
            return None
        parts = []
        for number, (other, kept) in enumerate(others, start=1):
            values, noise = limited(other.log_time), self._options.noise_of(other.pruned[kept])
            errors, ones = (values - values.mean())[kept], np.ones(len(kept))
            parts.append(Observed(other.points[kept], errors, ones, noise, np.full(len(kept), number)))
        return reduce(Observed.and_, parts)

    @cached_property
    def earlier(self) -> Sequence[OtherTrials]:
        """The trials of other problems that earlier studies have."""
        return self._earlier() if self._earlier is not None else ()

    @cached_property
    def features(self) -> Features:
        """The features of the space, as a cost model sees them."""
        return features_of(self.space)

    @cached_property
    def _is_described(self) -> bool:
        """Whether features say how configurations divide the work, not only what their knobs are."""
        return any(not name.startswith(KNOB) for name in self.features.names)

    @cached_property
    def _likeness(self) -> Likeness:
        return Likeness.of(self.features)

    def _located(self, by_knobs: Floats, features: Features, place: Floats) -> Floats:
        """See `points`."""
        by_work = self._likeness.points(features)
        if self.of_relative:
            return by_work
        return np.concatenate([by_knobs, by_work, np.tile(place, (len(by_work), 1))], axis=1)

    def _predict(self, model: CostModel, features: Features) -> Prediction:
        predicted = model.foresee(features)
        return doubted(predicted) if self.of_relative or self.of_sibling else predicted

    @cached_property
    def _loaded(self) -> tuple[CostModel, ModelCard] | None:
        return load_model(self.file) if self.file is not None else None


@dataclass(frozen=True, eq=False)
class Places:
    """Where configurations of a space lie: located as they are asked for, since few of them ever are.

    Attributes
    ----------
    space, features
        The configurations, and the features of all of them.
    located
        The points of some, by where they lie by their knobs, their features, and the place of the problem.
    """

    space: SearchSpace
    features: Features
    located: Callable[[Floats, Features, Floats], Floats]

    def __getitem__(self, indices: Indices) -> Floats:
        """The points of configurations, of shape [indices, coordinates]."""
        place = place_of(self.space.problem)
        knobs = coordinates_of(self.space.knobs, self.space.codes[indices])
        by_knobs = np.concatenate([knobs, np.tile(place, (len(indices), 1))], axis=1)
        return self.located(by_knobs, self.features.take(indices), place)
