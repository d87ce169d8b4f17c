"""Objects that are found by ``module:attribute``: our own, and the spaces and samplers that other packages register.

Nothing of a package is imported before its space or sampler is asked for, so that a broken one breaks no other.
"""

import importlib
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any

from tilescout.spaces.errors import SpaceError, TilescoutError
from tilescout.spaces.faults import described
from tilescout.spaces.processes import own_folders
from tilescout.spaces.texts import alternatives

SPACES = "tilescout.spaces"
"""The entry point group of spaces."""


@dataclass(frozen=True)
class Registered:
    """A space or sampler that a package registers.

    Attributes
    ----------
    target
        Its class or object, as ``module:attribute``.
    distribution
        The package, with its version.
    """

    target: str
    distribution: str


@dataclass(frozen=True)
class Registry:
    """The targets that can be asked for by name, and why the others can't."""

    usable: Mapping[str, Registered]
    refused: Mapping[str, str]


def registered(group: str, kind: str, taken: Collection[str]) -> Registry:
    """The targets that installed packages register under an entry point group.

    Parameters
    ----------
    group
        The entry point group.
    kind
        What its entries are, for messages: ``space`` or ``sampler``.
    taken
        Names that are tilescout's own, and stay so.
    """
    return _registry(group, kind, frozenset(taken))


@cache
def _registry(group: str, kind: str, taken: frozenset[str]) -> Registry:
    claims: dict[str, list[Registered]] = {}
    for point in sorted(entry_points(group=group), key=_origin):
        claims.setdefault(point.name, []).append(Registered(point.value, _origin(point)))
    usable, refused = {}, {}
    for name, found in claims.items():
        claimants = " and ".join(each.distribution for each in found)
        if name in taken:
            refused[name] = f"{kind} {name!r} of {claimants} is refused: the name is tilescout's own"
        elif len(found) > 1:
            refused[name] = f"{kind} {name!r} is registered by {claimants}: uninstall all but one, or name module:Class"
        else:
            usable[name] = found[0]
    return Registry(usable, refused)


def find(target: str) -> Any:
    """The attribute that our own code writes as ``module:attribute``; the module is imported when it is needed."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def load(target: str, error: type[TilescoutError]) -> Any:
    """The class or object that is written as ``module:attribute``.

    Parameters
    ----------
    target
        The module and the attribute. The module is imported: load only what a person named.
    error
        Raised if there is no such module or attribute, or if importing it fails.
    """
    try:
        return find(target)
    except (Exception, SystemExit) as cause:  # whatever code of others raises when it is imported; a script may end
        raise error(f"can't load {target!r}: {described(cause)}{advice(target, cause)}") from cause


def advice(target: str, cause: BaseException) -> str:
    """Advice on a ``module:attribute`` that a person mistyped, behind the message of what importing it raised.

    Empty where the module was found and failed by itself.
    """
    module, _, attribute = target.partition(":")
    if isinstance(cause, ModuleNotFoundError) and cause.name and f"{module}.".startswith(f"{cause.name}."):
        if module.endswith(".py"):
            return f"; a module is written without .py: {module.removesuffix('.py')}:{attribute}"
        if "." not in cause.name:  # below a package, that is where Python looked
            return f"; Python looked in {_places()}: mend the name, or add the module's folder to PYTHONPATH"
    found = sys.modules.get(module)
    if isinstance(cause, AttributeError) and found is not None and not hasattr(found, attribute):
        names = [name for name, value in vars(found).items() if name[0] != "_" and not isinstance(value, ModuleType)]
        return f"; it has {alternatives(attribute, names, most=3)}"
    return ""


def _places() -> str:
    """Where modules are looked for: what is Python's own as one place, since a message is short."""
    own = (sys.prefix, sys.base_prefix)
    folders = [path or "the working directory" for path in map(str, sys.path) if not path.startswith((*own, "__"))]
    last = [f"last in the working directory {folder}" for folder in own_folders()]
    return ", ".join([sys.prefix, *dict.fromkeys(folders), *last])


def new_instance(path: str, kind: type, example: str) -> Any:
    """A new object of the class that is written as ``module:Class``.

    Parameters
    ----------
    path
        The module and the class. The module is imported: pass what our own code says, never what was read from a file.
    kind, example
        The base of the class, and one that there is, for the message.

    Raises
    ------
    SpaceError
        If there is none.
    """
    name, expected = kind.__name__.lower(), f"expected module:Class, as {example}"
    try:
        made = find(path)()
    except (Exception, SystemExit) as error:  # whatever code of others raises
        raise SpaceError(f"no {name} {path!r} ({described(error)}): {expected}") from error
    if not isinstance(made, kind):
        raise SpaceError(f"{path!r} is no {name}, but of type {type(made).__name__}: {expected}")
    return made


def _origin(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown package"
