"""Kernels that a library has for problems, kept in a store: asking for them takes a second a problem."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from io import BytesIO
from pathlib import Path

import numpy as np

from tilescout.spaces.archive import read_arrays
from tilescout.spaces.checksums import digest_of
from tilescout.spaces.errors import MALFORMED
from tilescout.spaces.inputs import parse_json, read_regular
from tilescout.spaces.loaders import Listing
from tilescout.spaces.outputs import write_whole

FOLDER = "listings"
_LARGEST, _UNPACKED = 1 << 24, 1 << 26  # bytes; 177,239 kernels have 0.5 MB, 3.5 MB when they are unpacked


@dataclass(frozen=True)
class ListingKey:
    """All that a listing depends on.

    Attributes
    ----------
    space, problem
        The template's name, and the problem as text.
    library, version, census
        See `tilescout.spaces.loaders.Listing`.
    product, versions
        The GPU as the driver names it, and the versions of the software there.
    """

    space: str
    problem: str
    library: str
    version: str
    census: int
    product: str
    versions: Mapping[str, str]


class ListingStore:
    """Whole listings, in files by the digest of their keys; one that can't be read is as if it were not there.

    Parameters
    ----------
    store
        The folder of an artifact store, in which they get a folder.
    """

    def __init__(self, store: Path) -> None:
        self._folder = store / FOLDER

    def find(self, key: ListingKey) -> Listing | None:
        """The listing that was kept under a key; None if there is none."""
        try:
            arrays = read_arrays(read_regular(self._path(key), _LARGEST), _UNPACKED)
            about, rows = parse_json(str(arrays["about"])), arrays["rows"]
            if about.pop("key") != asdict(key) or rows.ndim != 2:
                return None
            return Listing(rows=rows.tolist(), **about)
        except (OSError, *MALFORMED):
            return None

    def keep(self, key: ListingKey, listing: Listing) -> None:
        """Keep a listing of numbers; one with texts is not kept.

        Raises
        ------
        StoreError
            If it can't be written.
        """
        rows = np.array(listing.rows)
        if rows.dtype.kind not in "iu":
            return
        about = asdict(replace(listing, rows=())) | {"key": asdict(key)}
        del about["rows"]
        small = np.result_type(*(np.min_scalar_type(int(end)) for end in (rows.min(initial=0), rows.max(initial=0))))
        file = BytesIO()
        np.savez_compressed(file, rows=rows.astype(small), about=np.array(json.dumps(about)))
        write_whole(self._path(key), file.getvalue())

    def _path(self, key: ListingKey) -> Path:
        return self._folder / f"{digest_of(asdict(key))}.npz"
