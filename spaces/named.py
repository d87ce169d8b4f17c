"""Problems that are known by name only: those of recordings whose kernel is not known here."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from tilescout.spaces.errors import ProblemError
from tilescout.spaces.problems import DType, Problem
from tilescout.spaces.texts import quoted

_TEXT = re.compile(r"[\w.+:-]{1,200}")
_DIMENSIONS = re.compile(r"\d{1,15}(x\d{1,15})*(?![\w.])")


@dataclass(frozen=True, order=True)
class NamedProblem(Problem):
    """A problem that a recording names.

    It is not known here what it computes. Its only `dimensions` are the numbers that its name begins with, as
    ``4096x4096`` does. It has no sizes that a kernel takes, and its operations and bytes are 0, so that no rate and no
    bound on the time follow from them.

    Parameters
    ----------
    name
        Letters, digits and ``_ . + : -``.

    Raises
    ------
    ProblemError
        If it is no such name.
    """

    name: str

    def __post_init__(self) -> None:
        if not _TEXT.fullmatch(self.name):
            raise ProblemError(f"malformed problem {quoted(self.name)}: expected letters, digits and _ . + : -")

    def __str__(self) -> str:
        return self.name

    @classmethod
    def parse(cls, text: str) -> "NamedProblem":
        return cls(text.strip())

    @classmethod
    def small(cls, signature: str) -> "NamedProblem":
        raise ProblemError(f"a problem that is known by its name only has no signature, and so not {signature!r}")

    @property
    def sizes(self) -> Mapping[str, int]:
        return {}

    @property
    def dimensions(self) -> tuple[int, ...]:
        found = _DIMENSIONS.match(self.name)
        return tuple(int(number) for number in found[0].split("x")) if found else ()

    @property
    def signature(self) -> str:
        return ""

    @property
    def element(self) -> DType:
        self._refuse()

    @property
    def result(self) -> DType:
        self._refuse()

    @property
    def tolerance(self) -> float:
        self._refuse()

    @property
    def flops(self) -> int:
        return 0

    @property
    def bytes(self) -> int:
        return 0

    def _refuse(self) -> NoReturn:
        raise ProblemError(f"problem {self} is known by its name only: its types are not recorded")
