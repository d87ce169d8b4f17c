"""An argument of a caller is told by its name if it is of another kind."""

from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilescout.spaces.arguments import check_kind, check_kinds
from tilescout.spaces.errors import StoreError, TableError

PATH: Any = str | PathLike


class Bytes(PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return b"x"


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "kind", "told"),
    [
        (5, str, "5: allowed are texts"),
        (5, bool | str, "5: allowed are True and False and texts"),
        (5, PATH | None, "5: allowed are texts, paths and None"),
        (b"x", PATH, "b'x': allowed are texts and paths"),
        ("a\0b", PATH, "'a\\\\x00b': no path has a null character"),
        (None, Callable, "None: allowed are functions"),
        (5, Collection, "5: allowed are sequences"),
        (True, Integral | None, "True: allowed are whole numbers and None"),
        (1.5, Integral, "1.5: allowed are whole numbers"),
        ("x" * 1000, Mapping, "'x+…: allowed are mappings by name"),
        (Rude(), Path, "an object of type Rude: allowed are Path"),
        ("a\nb", Path, "'a.*b': allowed are Path"),
    ],
)
def test_what_is_of_another_kind_is_told_with_what_is_allowed(value: object, kind: Any, told: str) -> None:
    with pytest.raises(StoreError, match=f"^the thing can't be {told}$"):
        check_kind("the thing", value, kind, StoreError)


def test_a_path_is_a_text_and_the_names_of_a_mapping_are() -> None:
    with pytest.raises(StoreError, match="allowed are texts and paths"):
        check_kind("it", Bytes(), PATH, StoreError)
    with pytest.raises(StoreError, match="it can't have the name 5: names are texts"):
        check_kind("it", {"a": 1, 5: 2}, Mapping, StoreError)


@pytest.mark.parametrize(
    ("value", "kind"),
    [("", PATH), (Path("x"), PATH), (None, PATH | None), (True, bool), (np.int64(5), Integral), (print, Callable),
     ({"a": 1}, Mapping), ({"a"}, Collection), ("a\0b", str)],
)  # fmt: skip
def test_what_is_of_the_kind_is_taken(value: object, kind: Any) -> None:
    check_kinds(TableError, it=(value, kind))


def test_the_first_that_is_of_another_kind_is_named() -> None:
    with pytest.raises(TableError, match=r"^`second` can't be 2"):
        check_kinds(TableError, first=(1, int), second=(2, str), third=(3, str))
