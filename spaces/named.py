"""Problems of kernels that are known only by what was recorded of them: a name, and nothing else."""

import re
from collections.abc import Mapping
from reprlib import repr as short

from tilescout.spaces.errors import ProblemError
from tilescout.spaces.problems import DType, Problem

_TEXT = re.compile(r"[\w.+:-]{1,200}")


class NamedProblem(Problem):
    """A problem that a recording names.

    What it computes is not known: it has no sizes, and its operations and bytes are 0, from which neither a rate nor a
    bound on the time follows.

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

    def __init__(self, name: str) -> None:
        if not _TEXT.fullmatch(name):
            raise ProblemError(f"malformed problem {short(name)}: expected letters, digits and _ . + : -")
        object.__setattr__(self, "name", name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"NamedProblem({self.name!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NamedProblem) and self.name == other.name

    def __lt__(self, other: object) -> bool:
        return isinstance(other, NamedProblem) and self.name < other.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[type["NamedProblem"], tuple[str]]:
        return NamedProblem, (self.name,)

    @classmethod
    def parse(cls, text: str) -> "NamedProblem":
        return cls(text.strip())

    @property
    def sizes(self) -> Mapping[str, int]:
        return {}

    @property
    def signature(self) -> str:
        return ""

    @property
    def element(self) -> DType:
        raise ProblemError(f"problem {self} is known by its name only: its types are not recorded")

    @property
    def flops(self) -> int:
        return 0

    @property
    def bytes(self) -> int:
        return 0
