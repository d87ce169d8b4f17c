"""The completion of names that commands take, for the tab key of a shell."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from tilescout.search.studies.folders import STORE, studies
from tilescout.spaces.suite import suite_names
from tilescout.spaces.templates import template_names
from tilescout.spaces.texts import alternatives


def complete_spaces(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """The spaces that begin with what is typed."""
    return [name for name in template_names() if name.startswith(typed)]


def complete_samplers(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """The samplers that begin with what is typed behind the last comma."""
    from tilescout.search.samplers import SAMPLERS

    before, comma, last = typed.rpartition(",")
    return [before + comma + name for name in SAMPLERS if name.startswith(last)]


def complete_suites(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """The suites that begin with what is typed; where none does, files."""
    named = [CompletionItem(name) for name in suite_names() if name.startswith(typed)]
    return named or [CompletionItem(typed, type="file")]


def complete_studies(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """The names of the store's studies that begin with what is typed."""
    from tilescout.search.studies.journal_folder import SUFFIX

    folder = studies(Path(context.params.get("store") or STORE))
    names = (path.stem for path in sorted(Path(folder).glob(f"*{SUFFIX}")))
    return [name for name in names if name.startswith(typed) and name.isprintable()]  # the shell acts on the rest


class ShippedPath(click.Path):
    """A file, or the name of one that is shipped.

    Parameters
    ----------
    name
        The kind of file, as in a command's help.
    shipped
        Finds the shipped ones; called only where it must be.
    """

    def __init__(self, name: str, shipped: Callable[[], list[Path]]) -> None:
        super().__init__(path_type=Path)
        self.name = name
        self._shipped = shipped

    def convert(
        self, value: str | PathLike[str], parameter: click.Parameter | None, context: click.Context | None
    ) -> Path:
        """The file; a name that no file has here is looked up among the shipped ones.

        Raises
        ------
        BadParameter
            If it has no suffix, and none is shipped under that name.
        """
        path = Path(value)
        if len(path.parts) != 1 or path.suffix or path.exists():
            return path
        shipped = {each.stem: each for each in self._shipped()}
        if path.name not in shipped:
            known = alternatives(path.name, sorted(shipped))
            self.fail(f"no {self.name} {path.name!r} is here or shipped; shipped are {known}.", parameter, context)
        return shipped[path.name]

    def shell_complete(self, context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        """The shipped ones that begin with what is typed; where none does, files."""
        named = [CompletionItem(each.stem) for each in self._shipped() if each.stem.startswith(typed)]
        return named or super().shell_complete(context, parameter, typed)


def _tables() -> list[Path]:
    from tilescout.search.tables.shipped import shipped_tables

    return shipped_tables()


def _subspaces() -> list[Path]:
    from tilescout.search.tables.shipped import shipped_subspaces

    return shipped_subspaces()


TABLE = ShippedPath("table", _tables)
SUBSPACE = ShippedPath("sub-space", _subspaces)
