"""The options of a sampler, declared as data: their names, what they do, and the values that are allowed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from tilescout.spaces.errors import SamplerError

OptionValue = int | float


@dataclass(frozen=True)
class Option:
    """One number that changes what a sampler does.

    Attributes
    ----------
    name
        As it is given to the sampler and on the command line.
    default
        Its value if it is not given; an option with an integer here takes integers only.
    low, high
        The least and the largest value.
    doc
        What it changes, in a sentence.
    """

    name: str
    default: OptionValue
    low: OptionValue
    high: OptionValue
    doc: str

    def read(self, owner: str, value: OptionValue | str) -> OptionValue:
        """The value as a number of the option's kind.

        Raises
        ------
        SamplerError
            If it is no such number, or out of range.
        """
        kind = type(self.default)
        try:
            number = kind(value)
        except (ValueError, TypeError, OverflowError):
            number = None
        if number is None or not self.low <= number <= self.high or (not isinstance(value, str) and number != value):
            what = "an integer" if kind is int else "a number"
            raise SamplerError(
                f"{owner}: option {self.name} can't be {value}, allowed is {what} from {self.low} to {self.high}"
            )
        return number


def option(default: OptionValue, low: OptionValue, high: OptionValue, doc: str) -> Any:
    """A field of a frozen dataclass that is an option, see `Option`; `options_of` lists them."""
    return field(default=default, metadata={"low": low, "high": high, "doc": doc})


def options_of(record: type[Any]) -> tuple[Option, ...]:
    """The options that are declared as the fields of a dataclass, in their order."""
    defaults: dict[str, Any] = {each.name: each.default for each in fields(record)}
    return tuple(Option(each.name, defaults[each.name], **each.metadata) for each in fields(record))


def parse_options(text: str, parts: int = 1) -> tuple[str, dict[str, str]]:
    """A name and the options behind it, from ``NAME:OPTION=VALUE:OPTION=VALUE...``.

    Parameters
    ----------
    text
        As a person writes it.
    parts
        Of how many parts with a colon between them the name is: ``module:Class`` is of two.

    Raises
    ------
    SamplerError
        If it is malformed.
    """
    words = text.split(":")
    name, pairs = words[:parts], [setting.partition("=") for setting in words[parts:]]
    options = {key: value for key, _, value in pairs}
    if not all(name) or not all(key and equals and value for key, equals, value in pairs):
        forms = "NAME or NAME:OPTION=VALUE:OPTION=VALUE..., NAME may be module:Class"
        raise SamplerError(f"malformed strategy {text!r}: expected {forms}")
    if len(options) < len(pairs):
        raise SamplerError(f"malformed strategy {text!r}: an option is given twice")
    return ":".join(name), options


def read_options(
    owner: str, options: Iterable[Option], given: Mapping[str, OptionValue | str]
) -> dict[str, OptionValue]:
    """A value for every option: the one given, or the default.

    Raises
    ------
    SamplerError
        If an option is unknown, or a value is not one of its.
    """
    known = {option.name: option for option in options}
    unknown = [name for name in given if name not in known]
    if unknown:
        allowed = f"known are {', '.join(known)}" if known else "it has none"
        raise SamplerError(f"{owner}: unknown option {unknown[0]!r}, {allowed}")
    return {
        name: option.read(owner, given[name]) if name in given else option.default for name, option in known.items()
    }
