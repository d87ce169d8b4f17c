"""The completion of names that commands take, for the tab key of a shell."""

from os import PathLike
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from tilescout.search.studies.folders import STORE, studies
from tilescout.spaces.suite import suite_names
from tilescout.spaces.templates import template_names


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
    return [path.stem for path in sorted(Path(folder).glob(f"*{SUFFIX}")) if path.stem.startswith(typed)]


class TablePath(click.Path):
    """A recorded table: a file, or the name of one that is shipped."""

    name = "table"

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self, value: str | PathLike[str], parameter: click.Parameter | None, context: click.Context | None
    ) -> Path:
        """The file; a name that no file has here is looked up among the shipped tables."""
        path = Path(value)
        shipped = _shipped()
        return shipped[path.name] if len(path.parts) == 1 and path.name in shipped and not path.exists() else path

    def shell_complete(self, context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
        """The shipped tables that begin with what is typed; where none does, files."""
        named = [CompletionItem(name) for name in _shipped() if name.startswith(typed)]
        return named or super().shell_complete(context, parameter, typed)


def _shipped() -> dict[str, Path]:
    from tilescout.search.tables.shipped import shipped_tables

    return {path.stem: path for path in shipped_tables()}


TABLE = TablePath()
