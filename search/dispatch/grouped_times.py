"""Measured times of kernels of a grouped product, at several numbers of tokens and with several routings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from tilescout.costmodel.arrays import Floats
from tilescout.search.export.grouped.dispatch import any_tokens
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class GroupedTimes:
    """Measured times of kernels of one grouped product.

    Attributes
    ----------
    template, device
        Whose kernels, and where they were measured.
    problems
        The numbers of tokens and routings; all else is the same.
    library_us
        The library's times, in µs, of shape [problems].
    configurations
        The kernels.
    ratio, high
        Times over the library's, and the far ends of their 95 % intervals, of shape [configurations, problems];
        infinite where they are not known. A ratio without a far end is rough.
    """

    template: KernelTemplate
    device: Device
    problems: tuple[GroupedProblem, ...]
    library_us: Floats
    configurations: tuple[Configuration, ...]
    ratio: Floats
    high: Floats

    def __post_init__(self) -> None:
        if len({any_tokens(problem) for problem in self.problems}) != 1:
            raise SpaceError("the times are of several grouped products, or of none")

    @property
    def product(self) -> GroupedProblem:
        """The product; its tokens and their routing stand for any."""
        return any_tokens(self.problems[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of tokens, in rising order."""
        return tuple(sorted({problem.tokens for problem in self.problems}))

    @cached_property
    def usual(self) -> "GroupedTimes":
        """The times with usual routings: not (nearly) all tokens to one expert, unless there is no other.

        No router sends all tokens to one expert where each goes to several. What serves must stand that, but is not
        chosen for it.
        """
        usual = [at for at, problem in enumerate(self.problems) if not problem.routing.extreme]
        return self.take(usual) if usual else self

    def columns(self, tokens: int) -> list[int]:
        """The problems with so many tokens."""
        return [at for at, problem in enumerate(self.problems) if problem.tokens == tokens]

    def take(self, columns: Sequence[int]) -> "GroupedTimes":
        """The times on some of the problems."""
        kept = list(columns)
        problems = tuple(self.problems[at] for at in kept)
        return replace(
            self,
            problems=problems,
            library_us=self.library_us[kept],
            ratio=self.ratio[:, kept],
            high=self.high[:, kept],
        )

    def beside(self, other: "GroupedTimes") -> "GroupedTimes":
        """These times and others of the same product; where both know a kernel on a problem, these stand.

        Raises
        ------
        SpaceError
            If they are of another product, or of kernels of another space.
        """
        if self.template.name != other.template.name:
            raise SpaceError(
                f"times of {self.template.name} and of {other.template.name} can't stand beside each other"
            )
        configurations = tuple(dict.fromkeys((*self.configurations, *other.configurations)))
        problems = tuple(dict.fromkeys((*self.problems, *other.problems)))
        library_us = {**_library_of(other), **_library_of(self)}
        ratio = np.full((len(configurations), len(problems)), np.inf)
        high = ratio.copy()
        for exact in (False, True):
            for each in (other, self):
                place = np.ix_(_places(configurations, each.configurations), _places(problems, each.problems))
                known = np.isfinite(each.high if exact else each.ratio)
                ratio[place] = np.where(known, each.ratio, ratio[place])
                high[place] = np.where(known, each.high, high[place])
        return replace(
            self,
            problems=problems,
            library_us=np.array([library_us[each] for each in problems]),
            configurations=configurations,
            ratio=ratio,
            high=high,
        )


def _library_of(times: GroupedTimes) -> dict[GroupedProblem, float]:
    return dict(zip(times.problems, times.library_us.tolist(), strict=True))


def _places(whole: Sequence[T], some: Sequence[T]) -> list[int]:
    number = {each: at for at, each in enumerate(whole)}
    return [number[each] for each in some]
