"""Suites: named sets of problems, as data in TOML files.

A file lists problems as texts (``problems``). The template that is to compute them reads the texts, so that a suite is
for any template that knows their form. A kind of problem may have a shorter form of its own: the matrix products of a
model are written by its layers, see `tilescout.spaces.gemm_suites`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any

from tilescout.spaces.errors import MALFORMED, ProblemError, check_keys, fault_of, one_line
from tilescout.spaces.inputs import SMALL, parse_toml, read_regular
from tilescout.spaces.plugins import find
from tilescout.spaces.problems import P

SUFFIX = ".toml"
_LARGEST_COUNT = 2**31 - 1
_MOST = 20_000  # entries: a thousand numbers of tokens and a thousand products would make three million
# Of all problems: that of each batch has its routing in it, of 4096 experts some 20,000 characters.
_CHARACTERS = 1 << 24
_LONGEST_NAME = 200  # characters
_KEYS = {"title", "source", "problems"}
# The shorter forms: the keys of a file that belong to each, and the function, as module:name, that turns them into
# entries. It is imported for files that have one of the keys.
_FORMS = {
    ("dtype", "product", "tokens"): "tilescout.spaces.gemm_suites:layer_entries",
    ("expert", "routings", "batches"): "tilescout.spaces.grouped_suites:expert_entries",
}


@dataclass(frozen=True)
class Entry:
    """A problem of a suite.

    Attributes
    ----------
    problem
        The problem as text.
    label
        What computes it: a layer of a model, ...
    phase
        The part of a model's work that it belongs to, as ``decode``, or the form of a product; empty without parts.
    count
        How often it is computed in one pass of the model.
    """

    problem: str
    label: str = ""
    phase: str = ""
    count: int = 1


@dataclass(frozen=True)
class Suite:
    """A named set of problems.

    Attributes
    ----------
    name, title
        A short name, and what it is in a line.
    source
        Where its sizes come from.
    entries
        The problems, with what computes them; one problem may be computed by several.
    """

    name: str
    title: str
    source: str
    entries: tuple[Entry, ...]

    @property
    def problems(self) -> list[str]:
        """The problems as texts, each once, in the order of the entries."""
        return list(dict.fromkeys(entry.problem for entry in self.entries))

    @property
    def phases(self) -> list[str]:
        """The phases that occur, in order."""
        return [phase for phase in dict.fromkeys(entry.phase for entry in self.entries) if phase]

    def parsed(self, parse: Callable[[str], P]) -> list[P]:
        """The problems, each once, in the order of the entries.

        Parameters
        ----------
        parse
            Reads a problem: the `parse` of the template or of the class of problems that asks.

        Raises
        ------
        ProblemError
            If it can't read one of them.
        """
        try:
            return list(dict.fromkeys(map(parse, self.problems)))
        except ProblemError as error:
            raise ProblemError(f"suite {self.name}: {error}; its problems may be another space's") from error


def suite_names() -> list[str]:
    """Names of the suites that come with the package."""
    return sorted(entry.name.removesuffix(SUFFIX) for entry in _folder().iterdir() if entry.name.endswith(SUFFIX))


def find_suite(name: str) -> Suite:
    """A suite by its name, ``NAME`` or ``NAME:PHASE``, or from a file whose path ends in ``.toml``.

    Raises
    ------
    ProblemError
        If there is none, the file can't be read or is malformed, or the suite has nothing of the phase.
    """
    whole = name.endswith(SUFFIX) or ":" not in name
    stem, _, phase = (name, "", "") if whole else name.rpartition(":")
    if stem.endswith(SUFFIX):
        path = Path(stem)
        try:
            suite = parse_suite(path.stem, read_regular(path, SMALL).decode())
        except OSError as error:
            raise ProblemError(f"can't read the suite {stem}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ProblemError(f"can't read the suite {stem}: {error}") from error
    elif stem in suite_names():
        suite = parse_suite(stem, _folder().joinpath(f"{stem}{SUFFIX}").read_text())
    else:
        raise ProblemError(f"unknown suite {stem!r}, known are {', '.join(suite_names())} and files that end in .toml")
    if whole:
        return suite
    kept = tuple(entry for entry in suite.entries if entry.phase == phase)
    if not kept or not phase:
        has = ", ".join(suite.phases) or "no phases"
        raise ProblemError(f"suite {stem} has nothing of {phase or 'an empty phase'}, it has {has}")
    return Suite(name, suite.title, suite.source, kept)


def parse_suite(name: str, text: str) -> Suite:
    """The suite in a TOML text; see the module.

    Raises
    ------
    ProblemError
        If it is malformed.
    """
    try:
        record = parse_toml(text)
        check_keys(record, _KEYS.union(*_FORMS))
        title, source = (checked_text(record.get(key, usual), key) for key, usual in (("title", name), ("source", "")))
        forms = [target for keys, target in _FORMS.items() if not record.keys().isdisjoint(keys)]
        found = chain(_listed(record), *(_expanded(record, target) for target in forms))
        entries = list(_bounded(found))
    except MALFORMED as error:
        raise ProblemError(f"malformed suite {name}: {fault_of(error)}") from error
    except ProblemError as error:
        raise ProblemError(f"suite {name}: {error}") from error
    if not entries:
        raise ProblemError(f"suite {name}: it has no problems")
    return Suite(name, title, source, tuple(entries))


def write_suite(title: str, source: str, entries: Sequence[Entry]) -> str:
    """The text of a suite that names its problems outright, for `parse_suite`."""
    lines = [f"title = {_quoted(title)}", f"source = {_quoted(source)}", "problems = ["]
    for entry in entries:
        parts = [
            f"problem = {_quoted(entry.problem)}",
            f"label = {_quoted(entry.label)}",
            *([f"phase = {_quoted(entry.phase)}"] if entry.phase else []),
            f"count = {entry.count}",
        ]
        lines.append(f"    {{ {', '.join(parts)} }},")
    return "\n".join([*lines, "]", ""])


def checked_count(value: Any) -> int:
    """How often a problem is computed, as a file says it.

    Raises
    ------
    ValueError
        If that is no integer of at least 1.
    """
    if type(value) is not int or not 1 <= value <= _LARGEST_COUNT:
        raise ValueError(f"a count is an integer from 1 to {_LARGEST_COUNT}, not {one_line(repr(value), 40)}")
    return value


def checked_tokens(value: Any) -> int:
    """A number of tokens, as a file says it.

    Raises
    ------
    ValueError
        If that is no integer of at least 1.
    """
    if type(value) is not int or value < 1:
        raise ValueError(f"tokens are integers of at least 1, not {one_line(repr(value), 40)}")
    return value


def checked_experts(value: Any) -> tuple[int, int]:
    """To how many experts each token goes, and of how many, as a file says it.

    Raises
    ------
    ValueError
        If that is something else.
    """
    numbers = isinstance(value, list) and len(value) == 2 and all(type(number) is int for number in value)
    if not numbers or not 1 <= value[0] <= value[1]:
        raise ValueError(f"experts = [A, E] are integers, A from 1 to E, not {one_line(repr(value), 40)}")
    return value[0], value[1]


def checked_text(value: Any, key: str) -> str:
    """The text that a file has under a key.

    Raises
    ------
    TypeError
        If it is none.
    """
    if not isinstance(value, str):
        raise TypeError(f"`{key}` is no text")
    return value


def checked_name(value: Any) -> str:
    """The name of a product, as a file says it: a short one, since it may label thousands of problems.

    Raises
    ------
    TypeError, ValueError
        If that is no text, or a long one.
    """
    if len(name := checked_text(value, "name")) > _LONGEST_NAME:
        raise ValueError(f"a name has {len(name):,} characters, {name[:20]!r}…: {_LONGEST_NAME} at most")
    return name


def _listed(record: Mapping[str, Any]) -> Iterator[Entry]:
    problems = record.get("problems", [])
    if not isinstance(problems, list):
        raise TypeError("`problems` is no list")
    for given in problems:
        if not isinstance(given, str | Mapping):
            raise TypeError(f"each of `problems` is a text or a table with the key problem, not {given!r}")
        named = {"problem": given} if isinstance(given, str) else given
        check_keys(named, {"problem", "label", "phase", "count"})
        problem, label, phase = named["problem"], named.get("label", ""), named.get("phase", "")
        if not all(isinstance(each, str) for each in (problem, label, phase)):
            raise TypeError(f"a problem, its label and its phase are texts, not {named}")
        yield Entry(problem.strip(), label, phase, checked_count(named.get("count", 1)))


def _bounded(entries: Iterable[Entry]) -> Iterator[Entry]:
    characters = 0
    for number, entry in enumerate(entries):
        characters += len(entry.problem)
        if number == _MOST or characters > _CHARACTERS:
            raise ValueError(f"it has more than {_MOST} problems, or more than {_CHARACTERS} characters in them")
        yield entry


def _expanded(record: Mapping[str, Any], target: str) -> Iterator[Entry]:
    entries: Iterator[Entry] = find(target)(record)
    return entries


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{"".join(c if c.isprintable() else " " for c in escaped)}"'


def _folder() -> Any:
    return files("tilescout.spaces").joinpath("suites")
