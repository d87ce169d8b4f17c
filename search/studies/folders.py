"""The folders of a store: compiled kernels by content, and a journal a study."""

import os
from pathlib import Path

from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.errors import StoreError
from tilescout.spaces.trust import check_folder

STORE = Path(".tilescout")
"""The store where none is named."""


def check_store(store: Path) -> Path:
    """A store, unless it is another user's or others may write it: its kernels run, and its studies are believed.

    Raises
    ------
    StoreError
        If it is there and can't be trusted, or not be looked at.
    """
    try:
        check_folder(store, StoreError)
    except FileNotFoundError:  # it is made when something is kept in it
        pass
    except OSError as error:
        raise StoreError(f"can't use the store {store}: {error.strerror}") from error
    return store


def artifacts(store: Path) -> Path:
    """Where compiled kernels lie in a store."""
    return store / "artifacts"


def studies(store: Path, storage: str | Path | None = None) -> Path | str:
    """Where studies are kept: in a store, unless `storage` names another folder or the URL of a database.

    Raises
    ------
    StoreError
        If `storage` is neither.
    """
    check_kinds(StoreError, storage=(storage, str | os.PathLike | None))
    return store / "studies" if storage is None else storage
