"""The kernels among which a dispatcher chooses, and what is known of them without a measurement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.costmodel.arrays import Floats
from tilescout.costmodel.estimator import CostModel
from tilescout.costmodel.features import space_features
from tilescout.costmodel.portfolio import CAP, choose_portfolio
from tilescout.spaces.constraints import Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import check_keys
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import KernelTemplate, complement_on
from tilescout.spaces.tiling import Integers

MOST_ROWS = 16_384
"""The largest m that a dispatcher serves, unless another is asked for."""

MOST_CANDIDATES = 1000
"""Kernels to choose among, at most: every m is looked at for each."""

_PROBES = 46  # sizes at which candidates are predicted


Models = Mapping[str, CostModel]
"""Cost models by the names of the spaces that they know."""


@dataclass(frozen=True, eq=False)
class _Part:
    """The kernels of one template: their numbers, and where they are in a space of them."""

    template: KernelTemplate
    numbers: Integers
    space: SearchSpace[GemmProblem]
    rows: Integers


@dataclass(frozen=True, eq=False)
class Kernels:
    """Some configurations, of one template or of several, for problems that differ only in m.

    Attributes
    ----------
    device
        Where they run.
    problem
        The problem; its m stands for any.
    configurations
        The kernels; they are named by their numbers in this sequence.
    templates
        The template of each.
    """

    device: Device
    problem: GemmProblem
    configurations: Sequence[Configuration]
    templates: Sequence[KernelTemplate]

    @classmethod
    def of(
        cls, template: KernelTemplate, device: Device, problem: GemmProblem, configurations: Sequence[Configuration]
    ) -> "Kernels":
        """The kernels of one template."""
        return cls(device, problem, tuple(configurations), (template,) * len(configurations))

    def __len__(self) -> int:
        return len(self.configurations)

    def at(self, m: int) -> GemmProblem:
        """The problem with m rows."""
        return replace(self.problem, m=m)

    def take(self, numbers: Sequence[int]) -> "Kernels":
        """Some of the kernels; their numbers are their places in `numbers`."""
        chosen = tuple(self.configurations[number] for number in numbers)
        return replace(self, configurations=chosen, templates=tuple(self.templates[number] for number in numbers))

    def and_others(self, others: "Kernels") -> "Kernels":
        """These and others of the same problem, none twice; the numbers of these stay."""
        known = set(self.configurations)
        new = others.take([number for number, each in enumerate(others.configurations) if each not in known])
        return replace(
            self,
            configurations=(*self.configurations, *new.configurations),
            templates=(*self.templates, *new.templates),
        )

    def check_knobs(self) -> None:
        """Refuse a kernel with a knob or a value that its template does not have: nothing is known of such.

        Raises
        ------
        KeyError, ValueError, SpaceError
            If there is one.
        """
        for template, kernel in zip(self.templates, self.configurations, strict=True):
            check_keys(kernel, [knob.name for knob in template.knobs])
            for knob in template.knobs:
                knob.code(kernel[knob.name])

    @cached_property
    def _parts(self) -> Sequence[_Part]:
        """The kernels of each template."""
        parts = []
        for template in dict.fromkeys(self.templates):
            numbers = np.array([number for number, each in enumerate(self.templates) if each is template])
            knobs = template.knobs
            values = [tuple(self.configurations[number][knob.name] for knob in knobs) for number in numbers]
            codes = SearchSpace.codes_of(knobs, values)
            space = SearchSpace.of_codes(template.name, knobs, codes, self.problem, self.device)
            parts.append(_Part(template, numbers, space, np.asarray(space.find(codes))))
        return parts

    def of_each(
        self, found: Callable[[KernelTemplate, SearchSpace[GemmProblem]], NDArray[Any]], m: int
    ) -> NDArray[Any]:
        """Something of each kernel, found for all of a template at once.

        Parameters
        ----------
        found
            Tells it of a template and a space of its kernels, legal or not; of shape [kernels of the space, …].
        m
            Rows of the space's problem.
        """
        of_parts = []
        for part in self._parts:
            held = part.space
            space = SearchSpace(held.name, held.knobs, (), self.at(m), self.device, held.codes)
            of_parts.append(found(part.template, space)[part.rows])
        order = np.argsort(np.concatenate([part.numbers for part in self._parts]))
        return np.asarray(np.concatenate(of_parts)[order])

    def legal(self, m: int) -> Mask:
        """Which of the kernels their templates allow for m rows, of shape [kernels]."""
        held, problem = np.empty(len(self), dtype=np.bool_), self.at(m)
        for part in self._parts:  # their columns are laid out once: plans ask for thousands of m
            masks = [rule.holds(part.space.columns, problem, self.device) for rule in part.template.constraints]
            allowed = np.logical_and.reduce([np.ones(len(part.space), dtype=np.bool_), *masks])
            held[part.numbers] = allowed[part.rows]
        return held

    def predict(self, models: Models, sizes: Sequence[int]) -> Floats:
        """Predicted log of the time in µs, of shape [kernels, sizes]; NaN where a kernel is not allowed."""

        def predicted(template: KernelTemplate, space: SearchSpace[GemmProblem]) -> Floats:
            return models[template.name].predict(space_features(space, template)).mean

        logs = np.empty((len(self), len(sizes)))
        for at, m in enumerate(sizes):
            logs[:, at] = self.of_each(predicted, m)
            logs[~self.legal(m), at] = np.nan
        return logs


def portfolio_of(template: KernelTemplate, problem: GemmProblem, device: Device) -> Kernels:
    """All kernels of the template's portfolio for a problem's types."""
    return Kernels.of(template, device, problem, template.portfolio(problem, device))


def portfolios_of(template: KernelTemplate, problem: GemmProblem, device: Device) -> Kernels:
    """The same of the template and of its complement, if it has one."""
    mine, other = portfolio_of(template, problem, device), complement_on(template, device)
    return mine if other is None else mine.and_others(portfolio_of(other, problem, device))


def probes(most_rows: int, count: int = _PROBES) -> list[int]:
    """Sizes that no tile divides in particular: half in logarithmic steps and half in even ones, in rising order."""
    half = -(-count // 2) | 1  # odd, so that the even steps are no multiples of a tile
    shares = (np.arange(half) + 0.5) / half
    found = np.concatenate([np.exp(shares * np.log(most_rows)), shares * most_rows])
    return sorted({max(1, round(float(m))) for m in found})


def promising(kernels: Kernels, models: Models, most_rows: int, count: int) -> Kernels:
    """The kernels that models expect to serve all sizes best, at most `count`.

    They are those with the least mean regret over `probes`, chosen one after the other. Once none of the others is
    expected to save anything, those follow that are alone expected to have the least. There are none where no kernel is
    legal for any size, as large tiles are for few rows.
    """
    sizes = probes(most_rows)
    logs = kernels.predict(models, sizes)
    known = np.isfinite(logs).any(axis=0)  # sizes for which a kernel is legal
    if not known.any():
        return kernels.take([])
    regret = logs[:, known] - np.nanmin(logs[:, known], axis=0)
    weights = np.full(regret.shape[1], 1 / regret.shape[1])
    chosen = choose_portfolio(regret, weights, count)
    saving = 1 + int(np.count_nonzero(np.diff(chosen.regret) < 0))
    alone = np.argsort(np.nan_to_num(regret, nan=CAP).clip(max=CAP) @ weights, kind="stable").tolist()
    return kernels.take(list(dict.fromkeys([*chosen.picked[:saving], *alone]))[:count])
