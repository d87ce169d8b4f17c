"""Kernels of others, measured beside ours: the library at its best, and peers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Self, TypeVar

from tilescout.search.measure.measurement import check_interval
from tilescout.search.measure.race import Estimate, Race
from tilescout.spaces.knobs import Configuration

CANDIDATES = 8
"""Kernels of the library that are timed unless more are asked for: as many as the heuristic of cuBLASLt lists."""

CUBLASLT = "cublaslt"
"""The library in the versions of a provenance."""

BESIDE = -1
"""The number in a race of the library's best, which runs beside the configurations and can't win; none has it.

Peers have the numbers below.
"""


@dataclass(frozen=True)
class LibraryBest:
    """The fastest of the library's own candidates for a problem.

    The library's function, which every time is relative to, runs the first of them.

    Attributes
    ----------
    library, version
        The name of the library, ``cuBLASLt``, and its version.
    space, configuration
        The space of the library's kernels, and the fastest one there.
    listed
        Candidates that were timed.
    ratio
        Its time over that of the library's function.
    over
        The answer's time over its own, measured in the same rounds of a race; None without a race, and `ratio` is then
        by its own pairs.
    gpu_seconds
        What timing the candidates cost, without the race.
    """

    library: str
    version: str
    space: str
    configuration: Configuration
    listed: int
    ratio: Estimate
    over: Estimate | None = None
    gpu_seconds: float = 0.0

    @property
    def name(self) -> str:
        """Its name in tables, for example ``cuBLASLt's best of 8``."""
        return f"{self.library}'s best of {self.listed}"

    def speed_of(self, ratio: Estimate) -> Estimate:
        """The speed over it of what takes `ratio` times as long as the library's function, measured apart from it."""
        mine = self.ratio
        return Estimate(mine.value / ratio.value, mine.low / ratio.high, mine.high / ratio.low)

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping that `from_dict` reads back."""
        return asdict(self) | {"configuration": dict(self.configuration)}

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Raises
        ------
        LookupError, TypeError, ValueError
            If it is something else.
        """
        over = record.get("over")
        known = {field.name: record[field.name] for field in fields(cls) if field.name in record}
        made = cls(
            **{
                **known,
                "configuration": Configuration.of(record["configuration"]),
                "ratio": Estimate(**record["ratio"]),
                "over": None if over is None else Estimate(**over),
            }
        )
        texts = (made.library, made.version, made.space)
        if not all(isinstance(text, str) for text in texts) or type(made.listed) is not int:
            raise TypeError("a text or number of the library's best is something else")
        if not all(type(value) in (int, str) for value in made.configuration.values()):
            raise TypeError("a configuration has something else than integers and strings")
        for each in (made.ratio, *([] if made.over is None else [made.over])):
            check_interval(each.value, each.low, each.high)
        if not 0 <= made.gpu_seconds < float("inf"):
            raise ValueError("the GPU seconds of the library's best are negative")
        return made


@dataclass(frozen=True)
class Peer:
    """A kernel of others that was tuned and timed on request; it is never the answer.

    Attributes
    ----------
    name
        Its name, as it was asked for.
    seconds
        Seconds until it was tuned and timed.
    ratio
        Its time over that of the library's function; None if it does not work.
    over
        The answer's time over its own, in the same rounds of a race; None without a race.
    error
        Why it does not work; empty if it does.
    """

    name: str
    seconds: float
    ratio: Estimate | None = None
    over: Estimate | None = None
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping that `from_dict` reads back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote.

        Raises
        ------
        LookupError, TypeError, ValueError
            If it is something else.
        """
        ratio, over = (None if record[name] is None else Estimate(**record[name]) for name in ("ratio", "over"))
        made = cls(record["name"], float(record["seconds"]), ratio, over, record["error"])
        if not all(isinstance(text, str) for text in (made.name, made.error)):
            raise TypeError("a text of a peer is something else")
        for each in (ratio, over):
            if each is not None:
                check_interval(each.value, each.low, each.high)
        if not 0 <= made.seconds < float("inf"):
            raise ValueError("the seconds of a peer are negative")
        return made


Beside = TypeVar("Beside", LibraryBest, Peer)


def as_raced(kernel: Beside, race: Race, number: int = BESIDE) -> Beside:
    """A kernel of others with what a race tells of it, if it took part there under this number."""
    if number not in race.beside:
        return kernel
    return replace(kernel, ratio=race.beside[number], over=race.over_beside[number])
