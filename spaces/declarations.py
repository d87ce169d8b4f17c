"""Checks of what a template of a user's own declares, before anything is made of it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tilescout.spaces.constraints import Constraint
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.knobs import Configuration, Knob

_INT32 = range(-(2**31), 2**31)


def check_declarations(template: Any, where: str) -> None:
    """Refuse a template whose name, targets, knobs or constraints are not what they should be.

    Parameters
    ----------
    template
        The template.
    where
        What it was loaded from.

    Raises
    ------
    SpaceError
        With the first that is wrong, and what is expected.
    """
    for kind in ("name", "workload"):
        _check(where, kind, getattr(template, kind, None), _is_text, "a text that is not empty")
    _check(where, "archs", getattr(template, "archs", None), _are_texts, 'a tuple of texts, as ("sm_90a",)')
    knobs, rules = getattr(template, "knobs", None), getattr(template, "constraints", None)
    _check(where, "knobs", knobs, lambda knobs: bool(knobs) and _are(Knob, knobs), "a tuple of Knobs")
    _check(where, "constraints", rules, lambda rules: _are(Constraint, rules), "a tuple of Constraints")
    for rule in template.constraints:
        _check_rule(where, rule)
    names = [knob.name for knob in template.knobs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SpaceError(f"{where}: two knobs are named {twice[0]!r}: give each a name of its own")
    for knob in template.knobs:
        _check_values(where, knob)
    launched = getattr(template, "launched", {})
    _check(where, "launched", launched, lambda each: isinstance(each, Mapping), "a mapping of knobs to their values")
    for names, values in launched.items():
        _check(where, f"launched[{names!r}]", values, lambda each: isinstance(each, tuple | list), "a tuple of values")
        _check_launched(where, template.knobs, names, values)


def _check_launched(where: str, knobs: tuple[Knob, ...], given: object, values: Sequence[object]) -> None:
    """Refuse what no launch can know: values, or combinations of some, that the knobs do not have, or none."""
    known: dict[object, tuple[object, ...]] = {knob.name: knob.values for knob in knobs}
    together = given if isinstance(given, tuple) else (given,)
    fault = "" if values and together and known.keys() >= set(together) else f"{given!r} has none"
    for value in () if fault else values:
        each = value if isinstance(given, tuple) and isinstance(value, tuple) else (value,)
        if len(each) != len(together) or any(one not in known[name] for name, one in zip(together, each, strict=True)):
            fault = f"no value of {' and '.join(map(str, together))} is {value!r}"
    if fault:
        names = ", ".join(map(str, known))
        raise SpaceError(f"{where}: of what is launched {fault}: name values of its knobs, {names}")


def checked_default(found: object, name: str) -> Configuration:
    """The configuration that a template's `default` returned.

    Raises
    ------
    SpaceError
        If it is no configuration.
    """
    if not isinstance(found, Configuration):
        raise SpaceError(f"`default` of {name} returned a {type(found).__name__}, expected a Configuration")
    if wrong := [(knob, value) for knob, value in found.items() if not _is_value(value)]:
        knob, value = wrong[0]
        raise SpaceError(f"`default` of {name} has {knob} as {value!r}, expected an integer or a text of Python's own")
    return found


def _check_rule(where: str, rule: Constraint[Any]) -> None:
    if not _are_texts((rule.name, rule.reason)):
        raise SpaceError(
            f"{where}: a constraint has the name {rule.name!r} and the reason {rule.reason!r}, expected texts"
        )
    # A text is made of texts too: ("warps") would be five knobs of a letter each.
    looks_at: object = rule.knobs
    if not isinstance(looks_at, Collection) or isinstance(looks_at, str) or not all(map(_is_text, looks_at)):
        raise SpaceError(f'{where}: the knobs of constraint {rule.name} are {looks_at!r}, expected names, as ("tile",)')


def _check_values(where: str, knob: Knob) -> None:
    values: Any = knob.values
    what = f"{where}: knob {knob.name}"
    if not isinstance(knob.doc, str):
        raise SpaceError(f"{what} has the doc {knob.doc!r}, expected a text")
    listed = isinstance(values, tuple | list) and bool(values)
    if listed and (wrong := [value for value in values if not _is_value(value)]):
        raise SpaceError(f"{what} has the value {wrong[0]!r}, allowed are integers and texts")
    if not listed or len({*values}) < len(values):
        raise SpaceError(f"{where}: the values of knob {knob.name} are {values!r}, expected a tuple, each once")
    # Columns of both would hold texts alone, and so would what a rule compares.
    if len({isinstance(value, str) for value in values}) > 1:
        raise SpaceError(f"{what} has integers and texts, {values!r}: make all of them texts, or all integers")
    if wrong := [value for value in values if isinstance(value, int) and value not in _INT32]:
        raise SpaceError(f"{what} has the value {wrong[0]}, allowed are integers of 32 bits: tables hold no other")


def _is_value(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _check(where: str, kind: str, value: object, is_right: Callable[[Any], bool], expected: str) -> None:
    if not is_right(value):
        raise SpaceError(f"{where}: its {kind} is {value!r}, expected {expected}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_texts(values: object) -> bool:
    return isinstance(values, tuple | list) and bool(values) and all(map(_is_text, values))


def _are(kind: type, values: object) -> bool:
    return isinstance(values, tuple | list) and all(isinstance(value, kind) for value in values)
