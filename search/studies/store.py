"""Where in a store what lies: compiled kernels by content, and a journal a study."""

from pathlib import Path

STORE = Path(".tilescout")
"""The store where none is named."""


def artifacts(store: Path) -> Path:
    """Where compiled kernels lie in a store."""
    return store / "artifacts"


def is_database(place: Path | str) -> bool:
    """Whether studies are kept in a database: a URL, not a path."""
    return isinstance(place, str) and "://" in place


def studies(store: Path, storage: str | Path | None = None) -> Path | str:
    """Where studies are kept: in a store, unless `storage` names another folder or the URL of a database."""
    if storage is None:
        return store / "studies"
    return str(storage) if is_database(storage) else Path(storage)
