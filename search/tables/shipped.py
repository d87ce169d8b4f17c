"""The tables that come with the package, and the template whose measurements a table holds."""

import math
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from tilescout.search.tables.recorded_template import RecordedTemplate
from tilescout.search.tables.table import Table, find_tables
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.errors import TableError
from tilescout.spaces.problems import Problem
from tilescout.spaces.templates import KernelTemplate, find_template, load_template, template_names
from tilescout.spaces.texts import alternatives
from tilescout.spaces.trust import named_folder


def shipped_tables() -> list[Path]:
    """The tables that come with the package."""
    folder = _recorded()
    return find_tables([folder]) if folder.is_dir() else []


def shipped_subspaces() -> list[Path]:
    """The sub-spaces that shipped and published tables are of."""
    return sorted(_recorded().glob("*-subspace.toml"))


def _recorded() -> Path:
    with as_file(files("tilescout.search.tables").joinpath("recorded")) as folder:
        return folder


def default_table(template: KernelTemplate, problem: Problem) -> Table:
    """The shipped table of a template that holds a problem.

    Raises
    ------
    TableError
        If there is none, with what there is, or either of them is something else.
    """
    check_kinds(TableError, template=(template, KernelTemplate), problem=(problem, Problem))
    held: list[Problem] = []
    others: set[str] = set()
    for path in shipped_tables():
        card = Table.read_card(path)
        if card.space == template.name:
            if problem in card.baselines:
                return Table.read(path)
            held += card.baselines
        else:
            others.add(card.space)
    if not held:
        others.discard(template.name)
        instead = f"; the shipped tables are of {', '.join(sorted(others))} alone" if others else ""
        raise TableError(f"no table of {template.name} is shipped; name one with `table`, or measure on a GPU{instead}")
    raise TableError(
        f"no shipped table of {template.name} holds {problem}: measure it on a GPU, or replay one that is held; the "
        f"nearest is {nearest(problem, held)}, of {len(set(held))} that `tilescout tables` lists"
    )


def check_held(names: Sequence[str], held: Sequence[str]) -> None:
    """Refuse names of problems that are not among those which some tables hold.

    Raises
    ------
    TableError
        If there is one.
    """
    missing = [name for name in names if name not in held]
    if missing:
        raise TableError(f"no table holds {missing[0]}, held are {alternatives(missing[0], dict.fromkeys(held))}")


def held_problems(
    template: KernelTemplate, problems: Sequence[Problem], path: Path | None
) -> tuple[Path, list[Problem]]:
    """The table that replays several problems, and those of them that it holds.

    Parameters
    ----------
    template, problems
        What is replayed.
    path
        The table; None takes the shipped one that holds the most of the problems.

    Raises
    ------
    TableError
        If there is no such table, or it holds none of the problems.
    """
    named = {template.name: template}
    cards = {each: Table.read_card(each, named) for each in (shipped_tables() if path is None else [path])}
    held = {
        each: [problem for problem in problems if problem in card.baselines]
        for each, card in cards.items()
        if card.space == template.name
    }
    if not any(held.values()):  # then each of these raises
        if path is None:
            default_table(template, problems[0])
        else:
            named_table(template, path).rows(problems[0])
    return max(held.items(), key=lambda each: len(each[1]))


def held_elsewhere(template: KernelTemplate, problems: Sequence[Problem], path: Path) -> dict[Path, list[Problem]]:
    """The shipped tables of a template that hold some of several problems, with those; `path` is left out."""
    found = {}
    for each in shipped_tables():
        if each != path and (card := Table.read_card(each)).space == template.name:
            found[each] = [problem for problem in problems if problem in card.baselines]
    return {each: held for each, held in found.items() if held}


def nearest(problem: Problem, among: Sequence[Problem]) -> Problem:
    """The problem whose sizes are nearest in ratio; one of the same types, layout and epilogue where there is one."""

    def distance(other: Problem) -> tuple[bool, float]:
        sizes = problem.sizes
        apart = sum(abs(math.log(size / sizes.get(name, 1))) for name, size in other.sizes.items())
        return other.signature != problem.signature, apart

    return min(among, key=distance)


def largest_table(template: KernelTemplate) -> Table:
    """The shipped table of a template with the most rows.

    Raises
    ------
    TableError
        If there is none.
    """
    rows = _shipped_rows(template)
    if not rows:
        raise TableError(f"no table of {template.name} is shipped; name one with `table`")
    return Table.read(max(rows, key=rows.__getitem__))


def _shipped_rows(template: KernelTemplate) -> dict[Path, int]:
    """The shipped tables of a template, with the number of rows of each; their cards tell both."""
    cards = {path: Table.read_card(path) for path in shipped_tables()}
    return {path: card.rows for path, card in cards.items() if card.space == template.name}


def named_table(template: KernelTemplate, path: Path | None) -> Table:
    """The table in a file, or the largest shipped one of the template.

    Raises
    ------
    TableError
        If there is none, it is damaged, or it is of another space than the template's.
    """
    table = Table.read(path, {template.name: template}) if path is not None else largest_table(template)
    table.check_space(template)
    return table


def named_tables(template: KernelTemplate, paths: Sequence[Path]) -> list[Table]:
    """The tables in files, one that is named twice once, or all shipped ones of the template.

    Raises
    ------
    TableError
        As of `named_table`.
    """
    if paths:
        named = (named_table(template, path) for path in paths)
        return list({table.card.sha256: table for table in named}.values())
    return [Table.read(path) for path in _shipped_rows(template)] or [largest_table(template)]


def template_of(table: Table) -> KernelTemplate:
    """The template of a table's configurations: ours of that name, or one made from the table.

    The latter also if our template has other knobs by now: searches of the table can be compared as before.
    """
    if table.card.space in template_names():
        template = find_template(table.card.space)
        if table.fits(template):
            return template
    return RecordedTemplate(table)


def table_file(table: Path | str | None) -> Path | None:
    """The file of a table that is named in Python, if one is.

    Raises
    ------
    TableError
        If it is no name of a file.
    """
    return named_folder(table, "table", TableError) if table is not None else None


def named_template(space: str, table: Path | None) -> KernelTemplate:
    """The template that a person asks for; if a table is named, one that is known by that table only will do.

    Pass what somebody typed or wrote into a program, never what was read from a file: see `load_template`.

    Raises
    ------
    SpaceError
        If there is none.
    TableError
        If the table can't be read.
    """
    if table is not None and space not in template_names():
        recorded = template_of(Table.read(table))
        if recorded.name == space:
            return recorded
    return load_template(space)
