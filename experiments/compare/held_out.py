"""Models that were trained without some problems of tables: trained once, on all cores, and kept as files."""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from tilescout.costmodel.blend import BlendModel, BlendOptions
from tilescout.costmodel.estimator import Sample
from tilescout.costmodel.features import BINARY_PREFIX
from tilescout.costmodel.persistence import ModelCard, load_model, save_model
from tilescout.experiments.compare.processes import each
from tilescout.search.tables.shipped import template_of
from tilescout.search.tables.table import Table
from tilescout.search.tables.training import card_of, samples_of
from tilescout.spaces.devices import DEVICES
from tilescout.spaces.problems import Problem
from tilescout.spaces.shapes import shape_groups
from tilescout.spaces.texts import file_name


def held_out_folder(store: Path) -> Path:
    """The folder of these models in a store."""
    return store / "models" / "held-out"


@dataclass(frozen=True)
class HeldOutModels:
    """The learned models of one table or several, each without some of their problems.

    A file's name is a hash of everything that its model follows from. So a model that is there is not trained again, by
    this or another command, or after an interruption.

    Attributes
    ----------
    tables
        The tables' files.
    folder
        Where the models are kept.
    options
        How they are fitted.
    built, binaries
        Learn only from rows whose kernel was read; and also what its binary says.
    """

    tables: tuple[Path, ...]
    folder: Path
    options: BlendOptions = field(default_factory=BlendOptions)
    built: bool = False
    binaries: bool = False

    @classmethod
    def of(cls, tables: Sequence[Table], store: Path, options: BlendOptions, built: bool = False) -> Self:
        """The models of tables of one space that are kept in a store."""
        return cls(tuple(table.path.absolute() for table in tables), held_out_folder(store), options, built)

    def samples(self) -> list[Sample]:
        """The training samples, one a problem; the same list at every call."""
        return [sample for table in self.tables for sample in _samples(table, self.built, self.binaries)]

    def problems(self) -> list[Problem]:
        """All that is learned from, in the order of `samples`."""
        return [problem for table in self.tables for problem in _table(table).problems]

    def shapes(self) -> dict[str, str]:
        """The label of the shape of each problem of the tables, see `tilescout.spaces.shapes.shape_groups`."""
        problems = self.problems()
        return dict(zip(map(str, problems), shape_groups(problems), strict=True))

    def of_shape(self, problem: str) -> tuple[str, ...]:
        """The problems that are of one shape with this one, itself included: it is judged without them."""
        labels = self.shapes()
        return tuple(other for other, label in labels.items() if label == labels[problem])

    def can_learn(self) -> bool:
        """Whether a model can learn from some of the problems for others: there are shapes, and the devices are known.

        A table that was imported from another tuner often has one problem, or a device that nothing is known of.
        """
        known = all(_table(path).card.device in DEVICES for path in self.tables)
        return known and len(set(self.shapes().values())) > 1

    def without(self, problems: Collection[str]) -> BlendModel:
        """The model that never saw these problems, named by their text: read if it is there, else trained and kept.

        Raises
        ------
        TableError, ModelError
            If nothing is left to learn from, or a file can't be read or written.
        """
        path = self.file_without(problems)
        kept, _ = load_model(path)
        assert isinstance(kept, BlendModel)
        return kept

    def file_without(self, problems: Collection[str]) -> Path:
        """The file of the model that never saw these problems; it is trained if it is missing.

        Raises
        ------
        TableError, ModelError
            As `without` does.
        """
        card = self._card(problems)
        path = self._path(card)
        if not path.is_file():
            seen = [sample for sample in self.samples() if sample.problem in card.problems]
            save_model(path, BlendModel(self.options).fit(seen), card)
        return path

    def train(self, groups: Sequence[Collection[str]], processes: int, title: str = "train cost models") -> None:
        """Have the models without each of these groups on disk; those that are missing are trained, so many at a time.

        Raises
        ------
        TableError, ModelError
            As `without` does.
        """
        missing = [tuple(group) for group in groups if not self._path(self._card(group)).is_file()]
        for _ in each(_train, [(self, group) for group in missing], processes, title):
            pass

    def of_family(self, problem: Problem) -> tuple[str, ...]:
        """The problems of the tables that are of one family or of one shape with this one."""
        learned = self.problems()
        labels = shape_groups([*learned, problem])
        return tuple(
            str(other)
            for other, label in zip(learned, labels, strict=False)
            if other.family == problem.family or label == labels[-1]
        )

    def _card(self, problems: Collection[str]) -> ModelCard:
        rest = [sample for sample in self.samples() if sample.problem not in problems]
        return card_of([_table(path) for path in self.tables], rest)

    def _path(self, card: ModelCard) -> Path:
        causes = [asdict(card), asdict(self.options), self.samples()[0].features.names]
        digest = hashlib.sha256(json.dumps(causes, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{file_name(f'{card.space}-{card.device}')}-{digest[:16]}.npz"


def _train(models: HeldOutModels, problems: tuple[str, ...]) -> None:
    models.file_without(problems)


@lru_cache(maxsize=4)  # a process trains several models of a table
def _table(path: Path) -> Table:
    return Table.read(path)


@lru_cache(maxsize=4)
def _samples(path: Path, built: bool, binaries: bool) -> list[Sample]:
    table = _table(path)
    found = samples_of(table, template_of(table), binaries=built or binaries)
    if binaries:
        return found
    names = tuple(name for name in found[0].features.names if not name.startswith(BINARY_PREFIX))
    return [replace(sample, features=sample.features.only(names)) for sample in found]
