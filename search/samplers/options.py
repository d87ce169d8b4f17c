"""The options of a strategy, declared as data: what they are called, what they do and what they can be."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilescout.spaces.errors import SamplerError

OptionValue = int | float


@dataclass(frozen=True)
class Option:
    """One number that changes what a strategy does.

    Attributes
    ----------
    name
        As it is given to the strategy and on the command line.
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
        except ValueError:
            number = None
        if number is None or not self.low <= number <= self.high or (isinstance(value, float) and number != value):
            what = "an integer" if kind is int else "a number"
            raise SamplerError(
                f"{owner}: option {self.name} can't be {value}, allowed is {what} from {self.low} to {self.high}"
            )
        return number


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
