"""Suites: named sets of problems, as data in TOML files.

A file names problems outright (``problems``), or the products of a model's layers (``[[product]]``) and the numbers of
tokens with which they are computed (``[tokens]``), by phase. A product of `n` outputs and `k` inputs with t tokens is
the problem t x n x k. Of a mixture of experts with ``experts = [A, E]``, A of E a token, each expert sees t * A / E of
the tokens, evenly. The phase ``training`` has the products of the gradients too, in the layouts in which the tensors
lie: of the inputs (t x k x n, layout kn) and of the weights (n x k x t, layout mn).
"""

import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tilescout.spaces.errors import MALFORMED, ProblemError, check_keys, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.problems import Problem

PHASES = ("decode", "prefill", "training")
_KEYS = {"title", "source", "dtype", "problems", "tokens", "product"}
_PRODUCT_KEYS = {"name", "n", "k", "count", "experts"}


@dataclass(frozen=True)
class Entry:
    """A problem of a suite.

    Attributes
    ----------
    problem
        The problem.
    label
        What computes it: a layer of a model, ...
    phase
        One of `PHASES`; empty outside of a model.
    count
        How often it is computed in one pass of the model.
    """

    problem: Problem
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
    def problems(self) -> list[Problem]:
        """The problems, each once, in the order of the entries."""
        return list(dict.fromkeys(entry.problem for entry in self.entries))

    @property
    def phases(self) -> list[str]:
        """The phases that occur, in order."""
        found = {entry.phase for entry in self.entries}
        return [phase for phase in PHASES if phase in found]


def suite_names() -> list[str]:
    """Names of the suites that come with the package."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def find_suite(name: str) -> Suite:
    """A suite by its name, ``NAME`` or ``NAME:PHASE``, or from a file whose path ends in ``.toml``.

    Raises
    ------
    ProblemError
        If there is none, the file can't be read or is malformed, or the suite has nothing of the phase.
    """
    stem, _, phase = name.rpartition(":") if name.rpartition(":")[2] in PHASES else (name, "", "")
    if stem.endswith(".toml"):
        path = Path(stem)
        try:
            suite = parse_suite(path.stem, path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise ProblemError(f"can't read the suite {stem}: {error}") from error
    elif stem in suite_names():
        suite = parse_suite(stem, _folder().joinpath(f"{stem}.toml").read_text())
    else:
        raise ProblemError(f"unknown suite {stem!r}, known are {', '.join(suite_names())} and files that end in .toml")
    if not phase:
        return suite
    kept = tuple(entry for entry in suite.entries if entry.phase == phase)
    if not kept:
        has = ", ".join(suite.phases) or "no phases"
        raise ProblemError(f"suite {stem} has nothing of {phase}, it has {has}")
    return Suite(name, suite.title, suite.source, kept)


def parse_suite(name: str, text: str) -> Suite:
    """The suite in a TOML text; see the module.

    Raises
    ------
    ProblemError
        If it is malformed.
    """
    try:
        record = tomllib.loads(text)
        check_keys(record, _KEYS)
        entries = [*_listed(record), *_products(record)]
    except MALFORMED as error:
        raise ProblemError(f"malformed suite {name}: {one_line(error)}") from error
    except ProblemError as error:
        raise ProblemError(f"suite {name}: {error}") from error
    if not entries:
        raise ProblemError(f"suite {name}: it has no problems")
    return Suite(name, str(record.get("title", name)), str(record.get("source", "")), tuple(entries))


def write_suite(title: str, source: str, entries: Sequence[Entry]) -> str:
    """The text of a suite that names its problems outright, for `parse_suite`."""
    lines = [f"title = {_quoted(title)}", f"source = {_quoted(source)}", "problems = ["]
    for entry in entries:
        parts = [
            f"problem = {_quoted(str(entry.problem))}",
            f"label = {_quoted(entry.label)}",
            f"count = {entry.count}",
        ]
        lines.append(f"    {{ {', '.join(parts)} }},")
    return "\n".join([*lines, "]", ""])


def _listed(record: Mapping[str, Any]) -> Iterator[Entry]:
    for given in record.get("problems", []):
        if isinstance(given, str):
            yield Entry(GemmProblem.parse(given))
        else:
            check_keys(given, {"problem", "label", "count"})
            yield Entry(GemmProblem.parse(given["problem"]), given.get("label", ""), "", _count(given.get("count", 1)))


def _products(record: Mapping[str, Any]) -> Iterator[Entry]:
    tokens = record.get("tokens", {})
    check_keys(tokens, set(PHASES))
    dtype = record.get("dtype", "bf16")
    for phase in PHASES:
        for count in tokens.get(phase, []):
            for product in record.get("product", []):
                check_keys(product, _PRODUCT_KEYS)
                chosen, of = product.get("experts", [1, 1])
                rows, n, k = max(math.ceil(count * chosen / of), 1), product["n"], product["k"]
                shapes = {"": f"{rows}x{n}x{k}:{dtype}"}
                if phase == "training":
                    shapes[", gradient of the input"] = f"{rows}x{k}x{n}:{dtype}:kn"
                    shapes[", gradient of the weight"] = f"{n}x{k}x{rows}:{dtype}:mn"
                for suffix, text in shapes.items():
                    problem = GemmProblem.parse(text)
                    yield Entry(problem, product["name"] + suffix, phase, _count(product.get("count", 1)))


def _count(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"a count is an integer of at least 1, not {value!r}")
    return value


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{"".join(c if c.isprintable() else " " for c in escaped)}"'


def _folder() -> Any:
    return files("tilescout.spaces").joinpath("suites")
