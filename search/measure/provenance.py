"""Where measurements come from: a GPU that measures, or the recorded table that stands in for one."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilescout.search.measure.protocol import UNNAMED, Objective

FOREIGN = "kernel-tuner"
"""The protocol of results of other tuners; behind it stands the figure that is no time, if it is none."""


def figure_of(protocol: str) -> str:
    """The figure of another tuner that stands where times do; empty where there are times."""
    return protocol.removeprefix(FOREIGN).removeprefix(", ") if protocol.startswith(FOREIGN) else ""


def unit_of(protocol: str) -> str:
    """The unit of what stands where times do; other figures are relative to that of the median configuration."""
    return "relative" if figure_of(protocol) else "µs"


@dataclass(frozen=True)
class Dataset:
    """A table that answers in the place of a GPU, as a tracker lists it.

    Attributes
    ----------
    name, path
        Name and place of its file.
    sha256
        Checksum of the file.
    rows
        Number of its rows.
    columns
        Types of its columns, as Arrow calls them.
    """

    name: str
    path: str
    sha256: str
    rows: int
    columns: Mapping[str, str]


@dataclass(frozen=True)
class Provenance:
    """Where measurements come from, for people who read them later.

    Attributes
    ----------
    kind
        ``live`` or ``replay``.
    description
        One line: the GPU that measures, or the table that stands in for it.
    versions
        Versions of what matters: driver, torch, compiler, protocol, ...
    table
        The table that is replayed; None where something is measured.
    objective
        What ran around a kernel while it was timed.
    """

    kind: str
    description: str
    versions: Mapping[str, str] = field(default_factory=dict)
    table: Dataset | None = None
    objective: Objective = UNNAMED

    @property
    def unit(self) -> str:
        """The unit of its times: µs, but ``relative`` where another tuner's figure that is no time stands for them."""
        return unit_of(self.versions.get("protocol", ""))

    @property
    def replayed(self) -> bool:
        """Whether a recorded table answered, and nothing was measured."""
        return self.kind == "replay"
