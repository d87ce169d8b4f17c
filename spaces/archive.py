"""NumPy archives (``.npz``) of somebody else's: read as plain arrays, of a bounded size, or refused."""

import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.errors import MALFORMED, SpaceError, one_line
from tilescout.spaces.inputs import parse_json, read_regular
from tilescout.spaces.outputs import check_replaceable, publish

_SUFFIX = ".npy"
_ARRAYS = 1000  # in one archive
_ENTRY = b"PK\x01\x02"  # begins what an archive says of each member, of which `zipfile` makes an object
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # of others, `zipfile` unpacks more than it is asked for
_KINDS = "fiuU"  # real numbers, integers and text; no objects


def read_arrays(content: bytes, limit: int) -> dict[str, NDArray[Any]]:
    """The arrays of an archive by name.

    Parameters
    ----------
    content
        The archive.
    limit
        Most bytes of all arrays together, unpacked.

    Raises
    ------
    ValueError
        If it is no such archive, is damaged, holds something else or more.
    """
    if content.count(_ENTRY) > 2 * _ARRAYS:  # packed bytes may look like some
        raise ValueError(f"it holds more than {_ARRAYS} arrays")
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            members = archive.infolist()
            if len(members) > _ARRAYS or sum(member.file_size for member in members) > limit:
                raise ValueError(f"it holds more than {_ARRAYS} arrays or {limit / 1e6:.4g} MB")
            if any(member.compress_type not in _PACKED for member in members):
                raise ValueError("it is packed in another way than NumPy packs")
            found = {}
            for member in members:
                with archive.open(member) as file:
                    found[member.filename.removesuffix(_SUFFIX)] = _array(file, member.file_size)
            return found
    except ValueError:
        raise
    except Exception as error:  # zipfile, its decompressors and NumPy raise a dozen types over what is damaged
        raise ValueError(f"{type(error).__name__}: {error}") from error


class CardedArchive:
    """A kind of file: arrays, and a card that says of what they are.

    Parameters
    ----------
    kind
        What such a file holds, for messages: ``defaults``.
    limit
        Most bytes of the file, and of its arrays when they are unpacked.
    """

    def __init__(self, kind: str, limit: int) -> None:
        self._kind, self._limit = kind, limit

    def write(self, path: Path, card: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write a file; one of such a form that is there is replaced.

        Raises
        ------
        SpaceError
            If the file can't be written, or is something else.
        """
        check_replaceable(path, self._kind, lambda there: "card" in self._arrays(there), SpaceError)
        content = BytesIO()
        np.savez_compressed(content, allow_pickle=False, card=np.array(json.dumps(card)), **arrays)
        try:
            publish({path: content.getvalue()})
        except OSError as error:
            raise SpaceError(f"can't write the {self._kind} {path}: {error.strerror}") from error

    @contextmanager
    def read(self, path: Path) -> Iterator[tuple[Any, dict[str, NDArray[Any]]]]:
        """Give the card and the arrays to the block, which checks them; what it raises over them is told of the file.

        Raises
        ------
        SpaceError
            If the file is missing, damaged, or not what the block expects.
        """
        try:
            arrays = self._arrays(path)
            yield parse_json(str(arrays.pop("card"))), arrays
        except (OSError, *MALFORMED) as error:
            raise SpaceError(f"can't read {path} as {self._kind}: {one_line(error)}") from error

    def _arrays(self, path: Path) -> dict[str, NDArray[Any]]:
        return read_arrays(read_regular(path, self._limit), self._limit)


def _array(file: IO[bytes], size: int) -> NDArray[Any]:
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in read:
        raise ValueError(f"an array has the version {version}")
    shape, along_columns, dtype = read[version](file)
    if dtype.kind not in _KINDS or (along_columns and len(shape) > 1):
        raise ValueError(f"an array has the type {dtype} or another order")
    data = file.read(size + 1)  # the last read compares the checksum
    return np.frombuffer(data, dtype).reshape(shape)
