"""The spellings of earlier versions: they still work, and name today's."""

from collections.abc import Sequence

_COMMANDS = {"table": "tables", "suite": "suites"}
_OPTIONS = {"--target": "--device", "--model-file": "--model"}


def todays(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line in today's spelling, and a hint for each word that was spelt as before."""
    spelt, hints = [], []
    for number, word in enumerate(words):
        option, equals, value = word.partition("=")
        new = _COMMANDS.get(word) if number == 0 else _OPTIONS.get(option)
        old = word if number == 0 else option
        if new is not None:
            hints.append(f"{old} is called {new} now")
        spelt.append(word if new is None else f"{new}{equals}{value}" if number else new)
    return spelt, hints
