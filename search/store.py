"""Where in a store what lies: compiled kernels by content, and a journal a study."""

from pathlib import Path

STORE = Path(".tilescout")
"""The store where none is named."""


def artifacts(store: Path) -> Path:
    """Where compiled kernels lie in a store."""
    return store / "artifacts"


def studies(store: Path) -> Path:
    """Where studies lie in a store."""
    return store / "studies"
