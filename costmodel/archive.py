"""NumPy archives (``.npz``) of somebody else's: read as plain arrays, of a bounded size, or refused."""

import zipfile
from io import BytesIO
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

_SUFFIX = ".npy"
_ARRAYS = 1000  # in one archive
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
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            members = archive.infolist()
            if len(members) > _ARRAYS or sum(member.file_size for member in members) > limit:
                raise ValueError(f"it holds more than {_ARRAYS} arrays or {limit / 1e6:.4g} MB")
            found = {}
            for member in members:
                with archive.open(member) as file:
                    found[member.filename.removesuffix(_SUFFIX)] = _array(file, member.file_size)
            return found
    except ValueError:
        raise
    except Exception as error:  # zipfile, its decompressors and NumPy raise a dozen types over what is damaged
        raise ValueError(f"{type(error).__name__}: {error}") from error


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
