"""The kernels among which a dispatcher chooses, and what is known of them without a measurement."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.features import space_features
from tilescout.costmodel.portfolio import choose_portfolio
from tilescout.spaces.constraints import Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate

MOST_ROWS = 16_384
"""The largest m that a dispatcher serves, unless another is asked for."""

MOST_CANDIDATES = 1000
"""Kernels to choose among, at most: every m is looked at for each."""

_PROBES = 46  # sizes at which candidates are predicted


@dataclass(frozen=True, eq=False)
class Kernels:
    """Some configurations of a template for problems that differ only in m.

    Attributes
    ----------
    template, device
        Where they come from, and where they run.
    problem
        The problem; its m stands for any.
    configurations
        The kernels; they are named by their numbers in this sequence.
    """

    template: KernelTemplate
    device: Device
    problem: GemmProblem
    configurations: Sequence[Configuration]

    def __len__(self) -> int:
        return len(self.configurations)

    def at(self, m: int) -> GemmProblem:
        """The problem with m rows."""
        return replace(self.problem, m=m)

    def take(self, numbers: Sequence[int]) -> "Kernels":
        """Some of the kernels; their numbers are their places in `numbers`."""
        return replace(self, configurations=tuple(self.configurations[number] for number in numbers))

    @cached_property
    def _sorted(self) -> tuple[SearchSpace[GemmProblem], Sequence[int]]:
        """The kernels as a space, and the row of each in it."""
        knobs = self.template.knobs
        codes = SearchSpace.codes_of(knobs, [tuple(each[knob.name] for knob in knobs) for each in self.configurations])
        space = SearchSpace.of_codes(self.template.name, knobs, codes, self.problem, self.device)
        return space, [int(row) for row in space.find(codes)]

    @property
    def order(self) -> Sequence[int]:
        """The row of each kernel in `space`."""
        return self._sorted[1]

    def space(self, m: int) -> SearchSpace[GemmProblem]:
        """The kernels, legal or not, as a space of the problem with m rows; its rows are in the order of codes."""
        held, _ = self._sorted
        return SearchSpace(held.name, held.knobs, (), self.at(m), self.device, held.codes)

    def legal(self, m: int) -> Mask:
        """Which of the kernels the template allows for m rows, of shape [kernels]."""
        held, rows = self._sorted
        problem = self.at(m)
        masks = [rule.holds(held.columns, problem, self.device) for rule in self.template.constraints]
        return np.asarray(np.logical_and.reduce([np.ones(len(held), dtype=np.bool_), *masks])[rows])

    def predict(self, model: CostModel, sizes: Sequence[int]) -> Floats:
        """Predicted log of the time in µs, of shape [kernels, sizes]; NaN where a kernel is not allowed."""
        _, rows = self._sorted
        logs = np.empty((len(self), len(sizes)))
        for at, m in enumerate(sizes):
            logs[:, at] = model.predict(space_features(self.space(m), self.template)).mean[rows]
            logs[~self.legal(m), at] = np.nan
        return logs


def portfolio_of(template: KernelTemplate, problem: GemmProblem, device: Device) -> Kernels:
    """All kernels of the template's portfolio for a problem's types."""
    return Kernels(template, device, problem, tuple(template.portfolio(problem, device)))


def probes(most_rows: int, count: int = _PROBES) -> list[int]:
    """Sizes that no tile divides in particular: half in logarithmic steps and half in even ones, in rising order."""
    half = -(-count // 2) | 1  # odd, so that the even steps are no multiples of a tile
    shares = (np.arange(half) + 0.5) / half
    found = np.concatenate([np.exp(shares * np.log(most_rows)), shares * most_rows])
    return sorted({max(1, round(float(m))) for m in found})


def promising(kernels: Kernels, model: CostModel, most_rows: int, count: int) -> Kernels:
    """The kernels that a model expects to serve all sizes best, at most `count`.

    They are those with the least mean regret over `probes`, chosen one after the other.
    """
    sizes = probes(most_rows)
    logs = kernels.predict(model, sizes)
    known = np.isfinite(logs).any(axis=0)  # sizes for which a kernel is legal
    regret = logs[:, known] - np.nanmin(logs[:, known], axis=0)
    weights = np.full(regret.shape[1], 1 / regret.shape[1])
    return kernels.take(choose_portfolio(regret, weights, count).picked)
