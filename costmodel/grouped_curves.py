"""Times of grouped kernels at numbers of tokens and routings that were not measured, told from those that were.

A kernel's time goes in steps: with a tile more for an expert, and with a round of the grid more. So it is not drawn
from one measured number of tokens to the next. It is taken to be what memory, tensor cores and the way from the L2 ask
for, their squares added up, times a factor; and the log of the factor is a Gaussian process of the features that tell
where on the steps a problem is (`tilescout.costmodel.grouped`). A part of it all kernels share, another is each
kernel's own.

The length scales and variances were chosen on two models' experts with each number of tokens left out in turn
(`experiments/results/grouped-tables.md`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.grouped import grouped_features
from tilescout.spaces.constraints import Columns, Mask
from tilescout.spaces.description import Describes
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration

_SCALES = {"tokens": 6.0, "group": 6.0, "waves": 6.0, "fill": 3.0, "tail": 3.0}
_AGAINST_MEMORY = {"time_mma": 4.0, "time_rounds": 4.0}  # both are logs, so is their distance
_SHARED, _OWN, _CONSTANT = 0.02, 0.03, 0.02  # variances of the log of the factor
_LOCAL, _NARROWER = 0.001, 16  # of what holds near by alone, within a quarter of the length scales
_NOISE, _ROUGH = 0.03, 0.1  # of measured times, and of those that a pilot told, as shares


@dataclass(frozen=True, eq=False)
class Curves:
    """Fitted times of some kernels of one grouped product.

    Attributes
    ----------
    template, device
        What divides the work, and what runs it.
    columns
        The kernels' knob values, each of shape [configurations].
    places
        Where what was measured lies, of shape [measured, features].
    kernels
        Its kernels, by number, of shape [measured].
    weights, mean
        Of the Gaussian process.
    """

    template: Describes
    device: Device
    columns: Columns
    places: Floats
    kernels: NDArray[np.int64]
    weights: Floats
    mean: float

    def predict(self, problem: GroupedProblem) -> Floats:
        """The log of the time of each kernel on a problem, in µs, of shape [configurations]."""
        places, asked = _described(self.template, self.device, self.columns, problem)
        numbers = np.arange(len(asked))
        near = _covariance(places, numbers, self.places, self.kernels)
        return np.asarray(asked + self.mean + near @ self.weights)


def fit_curves(
    template: Describes,
    device: Device,
    configurations: Sequence[Configuration],
    problems: Sequence[GroupedProblem],
    times_us: Floats,
    rough: Mask,
) -> Curves:
    """Fit the curves of kernels.

    Parameters
    ----------
    template, device
        Of the kernels.
    configurations, problems
        The kernels, and what they were measured on.
    times_us
        Times, of shape [configurations, problems]; not finite where there is none.
    rough
        Whether a time is a pilot's, of the same shape.

    Raises
    ------
    SpaceError
        If the template does not say how its kernels divide a grouped product.
    """
    columns = {name: np.array([one[name] for one in configurations]) for name in configurations[0]}
    described = [_described(template, device, columns, problem) for problem in problems]
    places = np.stack([each for each, _ in described], axis=1)
    asked = np.stack([each for _, each in described], axis=1)
    kernels, at = np.nonzero(np.isfinite(times_us))
    factor = np.log(times_us[kernels, at]) - asked[kernels, at]
    mean, known = float(factor.mean()), places[kernels, at]
    noise = np.where(rough[kernels, at], _ROUGH, _NOISE) ** 2
    covariance = _covariance(known, kernels, known, kernels) + np.diag(noise)
    weights = np.asarray(np.linalg.solve(covariance, factor - mean), dtype=np.float64)
    return Curves(template, device, columns, known, kernels, weights, mean)


def _described(template: Describes, device: Device, columns: Columns, problem: GroupedProblem) -> tuple[Floats, Floats]:
    """Of each kernel, its place among the features [configurations, features], and the log of what it asks for."""
    tiling = template.grouped_tiling(columns, problem)
    if tiling is None:
        raise SpaceError(f"{template.name} does not say how its kernels divide grouped products")
    features = grouped_features(tiling, device)
    asked = [4.0 ** features[f"time_{name}"] for name in ("memory", "mma", "l2")]
    scaled = [features[name] / scale for name, scale in _SCALES.items()]
    scaled += [(features[name] - features["time_memory"]) / scale for name, scale in _AGAINST_MEMORY.items()]
    return np.stack(scaled, axis=1), np.asarray(np.log(np.sum(asked, axis=0)) / 2)


def _covariance(places: Floats, kernels: NDArray[np.int64], others: Floats, theirs: NDArray[np.int64]) -> Floats:
    """Of the logs of the factors at some places, and those at others, of shape [places, others]."""
    squares = (places**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None] - 2 * places @ others.T
    near = np.exp(-np.maximum(squares, 0.0) / 2)
    own = _OWN * near + _LOCAL * near**_NARROWER + _CONSTANT
    return np.asarray(_SHARED * near + own * (kernels[:, None] == theirs[None]))
