"""The terminal: where text from data is shown, and acts on nothing."""

from typing import Any

from rich import console
from rich.text import Text

from tilescout.spaces.texts import printable


class Console(console.Console):
    """Rich's console, for which a text is a text: no markup, no emoji, no escape sequences, unless asked for."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, **options})

    def render_str(self, text: str, **options: Any) -> Text:
        """A text as it is shown; Rich has all strings pass through here, those in tables too."""
        return super().render_str(printable(text), **options)
