"""Kernels that are known only by a table: what replays a recording of a space that no template is here for."""

from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from tilescout.search.tables.table import Table
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import BuildError, DeviceError
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.named import NamedProblem
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import Built, KernelTemplate


class RecordedTemplate(KernelTemplate):
    """A template made from a table: its space is what was recorded, and there is no kernel.

    The knobs are those of the table's card. The configurations of a problem are those that the table has for it, with
    no rules: why others were not recorded is not known. The default is the card's.

    Parameters
    ----------
    table
        The recording.
    """

    package = ""
    sources = ()
    workload = ""
    constraints = ()

    def __init__(self, table: Table) -> None:
        card = table.card
        self._table = table
        self.name = card.space
        self.knobs = tuple(Knob(name, values, "as it was recorded") for name, values in card.knobs.items())
        self.archs = (self.device(card.device).arch,)

    @property
    def source_hash(self) -> str:
        """The hash in the card: recorded kernels can't have changed since."""
        return self._table.card.source_hash

    def parse(self, text: str) -> Problem:
        named = {str(problem): problem for problem in self._table.problems}
        return named.get(text.strip()) or NamedProblem.parse(text)

    def device(self, name: str) -> Device:
        """The device of this name; one that is not among ours has no facts: its numbers are 0."""
        try:
            return find_device(name)
        except DeviceError:
            return Device(name, self._table.card.product, "", 0, 0, 0, 0.0, 0.0)

    def check(self, problem: Problem) -> None:
        self._table.rows(problem)

    def default(self, problem: Problem, device: Device) -> Configuration:
        return self._table.card.baselines[problem].default

    def space(self, problem: Problem, device: Device) -> SearchSpace:
        """The configurations that were recorded for a problem.

        Raises
        ------
        TableError
            If the table lacks the problem.
        """
        codes = self._table.codes(self.knobs, self._table.rows(problem))
        return SearchSpace.of_codes(self.name, self.knobs, codes, problem, device)

    def blocks_per_cluster(self, configuration: Mapping[str, Value]) -> int:
        self._refuse()

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise BuildError(f"{self.name} is known by {self._table.path.name} only: there is no kernel to build or launch")
