"""The spellings of earlier versions: they still work, and name today's."""

from collections.abc import Sequence

_COMMANDS = {"table": "tables", "suite": "suites"}
_SECOND = {("tables", "import-kernel-tuner"): "import"}
_OPTIONS = {"--target": "--device", "--model-file": "--model"}


def todays(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A command line in today's spelling, and a hint for each word that was spelt as before."""
    spelt: list[str] = []
    hints: list[str] = []
    for number, word in enumerate(words):
        option, equals, value = word.partition("=")
        command = _COMMANDS.get(word) if number == 0 else _SECOND.get((spelt[0], word)) if number == 1 else None
        new = command or _OPTIONS.get(option if number else "")
        old = word if command else option
        if new is not None:
            hints.append(f"{old} is called {new} now")
        spelt.append(word if new is None else new if command else f"{new}{equals}{value}")
    return spelt, hints
