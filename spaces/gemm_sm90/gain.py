"""The speed of the default of ``gemm_sm90`` over the library's that is expected where nothing was measured.

Where it is not expected to be faster by a margin, the library should run. The expectation is the mean of a Gaussian
process over the logarithms of the sizes: problems near each other gain alike. Its data, `gain.npz`, are fitted by the
study `default-gain` to problems on which a default that had not seen them and the library were timed.

C. Rasmussen, C. Williams: Gaussian Processes for Machine Learning, 2006, chapter 2.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.archive import CardedArchive
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm import GemmProblem

FORMAT = 1
MARGIN = 0.03
"""The default runs in the library's place where it is expected to be so much faster, as a log: of 56 problems in bf16
that were drawn anew, each left out, it then runs on 11, and is slower by more than 5 % on none; always, on 15."""
_FILE = CardedArchive("gains", 1_000_000)
_TILE = 128 * 128  # elements of a large tile: results that do not give each multiprocessor one are all alike
_SMALLEST = 1 / 64
_LENGTH = 3.0  # doublings of a size over which gains stay alike
_COORDINATES = 5


@dataclass(frozen=True, eq=False)
class Gains:
    """Gains that are known, and what follows from them.

    Attributes
    ----------
    places
        `place_of` the problems that were timed, of shape [problems, coordinates].
    weights
        What each adds to the expectation beside it, of shape [problems].
    mean
        Log of the speed over the library's, far from all of them.
    source
        What they were fitted to: names and checksums.
    """

    places: NDArray[np.float64]
    weights: NDArray[np.float64]
    mean: float
    source: Mapping[str, str]

    def expected(self, problem: GemmProblem, device: Device) -> float:
        """Log of the speed of the default over the library's."""
        return self.mean + float(likeness(place_of(problem, device)[None], self.places)[0] @ self.weights)


def place_of(problem: GemmProblem, device: Device) -> NDArray[np.float64]:
    """The coordinates of a problem, in lengths over which gains stay alike; of shape [coordinates]."""
    rows, size = problem.m * problem.batch, problem.element.bytes
    tiles = max(rows * problem.n / (device.sms * _TILE), _SMALLEST)
    logs = [math.log2(each) for each in (rows, problem.n, problem.k * size, tiles)]
    return np.array([*(each / _LENGTH for each in logs), float(size == 1)])


def likeness(some: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """How alike the gains at places are, from 0 to 1; of shape [some, others]."""
    return np.asarray(np.exp(-0.5 * ((some[:, None] - others[None]) ** 2).sum(axis=2)))


@cache
def shipped_gains() -> Gains:
    """The gains that come with the package."""
    with as_file(files("tilescout.spaces.gemm_sm90").joinpath("gain.npz")) as path:
        return read_gains(path)


def write_gains(path: Path, gains: Gains) -> None:
    """Write a file that `read_gains` reads; one that is there is replaced.

    Raises
    ------
    SpaceError
        If the file can't be written, or is something else.
    """
    card = {"format": FORMAT, "mean": gains.mean, "source": dict(gains.source)}
    _FILE.write(path, card, {"places": gains.places, "weights": gains.weights})


def read_gains(path: Path) -> Gains:
    """Read the file of gains, and check it.

    Raises
    ------
    SpaceError
        If it is missing or damaged.
    """
    with _FILE.read(path) as (card, arrays):
        found = Gains(arrays["places"], arrays["weights"], float(card["mean"]), dict(card["source"]))
        sound = found.places.shape == (len(found.weights), _COORDINATES) and found.weights.ndim == 1
        numbers = all(each.dtype == np.float64 and np.isfinite(each).all() for each in (found.places, found.weights))
        if card["format"] != FORMAT or not (sound and numbers and math.isfinite(found.mean)):
            raise ValueError("its numbers are not sound")
    return found
