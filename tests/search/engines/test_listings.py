"""Kernels that a library has, kept in a store."""

from pathlib import Path

import pytest

from tilescout.search.engines.listings import FOLDER, ListingKey, ListingStore
from tilescout.spaces.errors import StoreError
from tilescout.spaces.loaders import Listing

KEY = ListingKey("a_space", "64x64x64:bf16", "a library", "1.0", 7, "a GPU", {"driver": "1"})


def listing(rows: list[list[int]]) -> Listing:
    return Listing(rows, "a library", "1.0", asked=len(rows), complete=True, seconds=0.5, census=7)


@pytest.mark.parametrize("rows", [[[0, 3]], [[-5, 3], [7, 200]], [[-70000, 0]], [[2**40, -1]]])
def test_what_is_kept_is_found_as_it_was(tmp_path: Path, rows: list[list[int]]) -> None:
    store = ListingStore(tmp_path)
    store.keep(KEY, listing(rows))
    found = store.find(KEY)
    assert found is not None
    assert found == listing(rows)


def test_a_place_where_nothing_can_be_kept_is_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way")
    with pytest.raises(StoreError, match="can't write"):
        ListingStore(tmp_path).keep(KEY, listing([[1]]))
