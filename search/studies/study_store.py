"""The interface of what keeps studies."""

import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import AbstractContextManager
from typing import Any

import optuna
from optuna.samplers import BaseSampler

from tilescout.search.studies.reading import study_result
from tilescout.search.studies.records import StudyResult
from tilescout.search.studies.sharing import SharingOptions, Tuner
from tilescout.search.studies.trials import RESULT
from tilescout.spaces.errors import StoreError
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import NONE_NAMED, Named
from tilescout.spaces.texts import alternatives

_LOG = logging.getLogger(__name__)

_NUMBER = r"-([2-9]|[1-9][0-9]+)"  # behind the names of studies that are not the first of their kind
NONE_YET = "tune a problem first, or name the store that has studies"
"""The next step where a place holds no study."""


class StudyStore(ABC):
    """A place that keeps studies by their names. Everything but `join` and `delete` reads, and changes nothing there.

    Attributes
    ----------
    name
        The place, as people are told it: without a password.
    """

    name: str

    @abstractmethod
    def join(
        self, base: str, resume: bool | str, sampler: BaseSampler, space: SearchSpace, sharing: SharingOptions
    ) -> AbstractContextManager[tuple[optuna.Study, Tuner]]:
        """Open a study for searching. The context gives the study and this process's `Tuner`.

        Parameters
        ----------
        base
            What the study is named after.
        resume
            Go on with the newest study of that name, or the one that is named here, in a database together with the
            tuners that search it now. Otherwise a new study is made.
        sampler, space
            The strategy, and the space that it searches.
        sharing
            How tuners of one study keep track of each other.

        Raises
        ------
        StoreError
            If the study can't be opened or written, or another process is searching its journal.
        """

    @abstractmethod
    def check(self) -> None:
        """Make sure that studies can be searched here.

        Raises
        ------
        StoreError
            If not, with the reason.
        """

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all studies, sorted.

        Raises
        ------
        StoreError
            If the place can't be read.
        """

    @abstractmethod
    def load(self, name: str) -> optuna.Study:
        """A study, for reading.

        Raises
        ------
        StoreError
            If there is no such study, or it can't be read.
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a study with all its trials.

        Raises
        ------
        StoreError
            If there is no such study, another process is searching it, or it can't be written.
        """

    def attributes(self, name: str) -> dict[str, Any]:
        """The user attributes of a study.

        Raises
        ------
        StoreError
            If there is no such study, or it can't be read.
        """
        return self.load(name).user_attrs

    def result(self, name: str) -> dict[str, Any] | None:
        """The evidence that a study's last finished search stored, see `StudyResult.evidence`; None if none finished.

        Raises
        ------
        StoreError
            If there is no such study, or it can't be read.
        """
        return self.attributes(name).get(RESULT)

    def results(self) -> dict[str, dict[str, Any] | None]:
        """The `result` of every study, by name.

        Raises
        ------
        StoreError
            If one can't be read.
        """
        return {name: self.result(name) for name in self.names()}

    def read(self, name: str, named: Named = NONE_NAMED) -> StudyResult:
        """A study, as far as it has come.

        Parameters
        ----------
        name
            The study.
        named
            Templates that it may be of, beside those that tilescout and installed packages bring. The problem of a
            study of any other space is known by its name only.

        Raises
        ------
        StoreError
            If there is no such study, or it is damaged or of a tilescout that did not say what a study is about.
        """
        return study_result(self.load(name), named)

    def missing(self, name: str) -> StoreError:
        """The error of a name that no study has; it tells of those that there are."""
        if known := self.names():
            return StoreError(f"there is no study {name} in {self.name}; there are: {alternatives(name, known)}")
        return StoreError(f"there is no study {name} in {self.name}, which holds none: {NONE_YET}")


def unused(names: Collection[str], name: str) -> str:
    """`name`, or `name` with a number behind it that is higher than any among `names`: gaps are of deleted studies."""
    taken = _numbered(names, name)
    return f"{name}-{max(taken) + 1}" if taken else name


def latest(names: Collection[str], name: str) -> str:
    """The one of `names` that `unused` has made of `name` last; `name` itself if there is none."""
    there = _numbered(names, name)
    return there[max(there)] if there else name


def newest_like(names: Collection[str], name: str) -> str:
    """The newest of `names` that is of the same kind as one of them, `name`; `name` itself if no other is newer."""
    if name not in names:
        return name
    behind = latest(names, name)  # `name` itself may be what others are named after
    return behind if behind != name else latest(names, re.sub(rf"{_NUMBER}$", "", name))


def _numbered(names: Collection[str], name: str) -> dict[int, str]:
    """Those of `names` that `unused` may have made of `name`, by their numbers; `name` itself is the first."""
    made = (re.fullmatch(rf"{re.escape(name)}(?:{_NUMBER})?", each) for each in names)
    return {int(found[1] or 1): found[0] for found in made if found}


def resumed(names: Collection[str], base: str, resume: bool | str) -> str:
    """The study to go on with: the newest that is named after `base`, or the one that `resume` names.

    Raises
    ------
    StoreError
        If that is not there, or not named after `base`.
    """
    if not isinstance(resume, str):
        if (found := latest(names, base)) not in names:
            _LOG.info("there is no study %s to continue: starting it", base)
        return found
    if resume not in names:
        there = f"there are: {alternatives(resume, sorted(names))}" if names else f"there is none yet: {NONE_YET}"
        raise StoreError(f"there is no study {resume} to go on with; {there}")
    if not _numbered([resume], base):
        raise StoreError(
            f"the study {resume} is of another space, problem, device, sampler or seed: studies of this search are "
            f"named {base}"
        )
    return resume
