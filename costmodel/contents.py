"""A checksum of the content of a fitted model, which tells models apart that came from no file."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass

import numpy as np

from tilescout.costmodel.estimator import CostModel


def content_sha256(model: CostModel) -> str:
    """The SHA-256 of what a model has learned: of its fitted numbers and texts, whatever file they came from.

    Empty if the model was not fitted, or holds something else than frozen dataclasses, arrays, numbers, texts and
    collections of these, as a model of one's own may: nothing says when two of such objects are equal.
    """
    if model.fitted is None:
        return ""
    found = hashlib.sha256()
    try:
        for part in _parts(model.fitted):
            found.update(len(part).to_bytes(8, "little") + part)
    except (_UnknownError, RecursionError):
        return ""
    return found.hexdigest()


class _UnknownError(Exception):
    """An object has no content that is known."""


def _parts(held: object) -> Iterator[bytes]:
    kind = type(held)
    yield kind.__qualname__.encode("utf-8", "backslashreplace")
    if is_dataclass(held):
        for each in fields(held):
            yield each.name.encode()
            yield from _parts(getattr(held, each.name))
    elif isinstance(held, np.ndarray | np.generic) and not held.dtype.hasobject:
        yield f"{held.dtype.str} {held.shape}".encode()
        yield held.tobytes()
    elif kind in (str, int, float, bool, type(None)):
        yield repr(held).encode("utf-8", "backslashreplace")
    elif isinstance(held, Mapping):
        yield from _parts(tuple(held.items()))
    elif kind in (list, tuple):
        assert isinstance(held, list | tuple)
        yield str(len(held)).encode()
        for each in held:
            yield from _parts(each)
    else:
        raise _UnknownError
