"""The folders of a store: compiled kernels by content, and a journal a study."""

from pathlib import Path

STORE = Path(".tilescout")
"""The store where none is named."""


def artifacts(store: Path) -> Path:
    """Where compiled kernels lie in a store."""
    return store / "artifacts"


def studies(store: Path, storage: str | Path | None = None) -> Path | str:
    """Where studies are kept: in a store, unless `storage` names another folder or the URL of a database."""
    return store / "studies" if storage is None else storage
