"""The sizes that the library's numbers of tiles and clusters stand for, by the order of its enumerations.

`cublasLtMatmulTile_t` begins with tiles of older kernels. Two regular parts follow: tiles whose columns are a multiple
of 64, then the others whose rows are one; both without those that have a number already. `cublasLtClusterShape_t` has
the shapes up to 16 blocks. A number that is not known here stands for the smallest shape.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from tilescout.spaces.cublaslt.algorithms import VALUES

_OLDER_TILES = (
    "8x8 8x16 16x8 8x32 16x16 32x8 8x64 16x32 32x16 64x8 32x32 32x64 64x32 32x128 64x64 128x32 64x128 128x64 64x256 "
    "128x128 256x64 64x512 128x256 256x128 512x64 64x96 96x64 96x128 128x160 160x128 192x128 128x192 128x96 "
    "32x256 256x32"
)
_MOST_ROWS, _MOST_COLUMNS = 768, 768
_MOST_WIDE, _MOST_HIGH = 64 * 768, 256 * 256  # elements of a tile: of the first regular part, of the second
_CLUSTERS = (
    "1x1 1x1 1x1 2x1 4x1 1x2 2x2 4x2 1x4 2x4 4x4 8x1 1x8 8x2 2x8 16x1 1x16 3x1 5x1 6x1 7x1 9x1 10x1 11x1 12x1 13x1 "
    "14x1 15x1 3x2 5x2 6x2 7x2 1x3 2x3 3x3 4x3 5x3 3x4 1x5 2x5 3x5 1x6 2x6 1x7 2x7 1x9 1x10 1x11 1x12 1x13 1x14 1x15"
)

Shapes = NDArray[np.int64]


@cache
def tile_shapes() -> Shapes:
    """Rows and columns of each tile, of shape [numbers, 2]; 0, which leaves it to the algorithm, has 8 of each."""
    found = [(8, 8), *_parsed(_OLDER_TILES)]
    known = set(found[1:])
    regular = [
        *((rows, columns, _MOST_WIDE) for rows in range(8, _MOST_ROWS + 1, 8) for columns in range(64, 769, 64)),
        *((rows, columns, _MOST_HIGH) for rows in range(64, 769, 64) for columns in range(8, _MOST_COLUMNS + 1, 8)),
    ]
    for rows, columns, most in regular:
        if rows * columns <= most and (rows, columns) not in known:
            known.add((rows, columns))
            found.append((rows, columns))
    found += [(256, 512), (256, 1024), (512, 512), (512, 1024)]
    return _padded(found, len(VALUES["tile"]))


@cache
def cluster_shapes() -> Shapes:
    """Blocks along the rows and the columns of the result of each cluster, of shape [numbers, 2]."""
    return _padded(_parsed(_CLUSTERS), len(VALUES["cluster"]))


def _parsed(text: str) -> list[tuple[int, int]]:
    pairs = (each.split("x") for each in text.split())
    return [(int(rows), int(columns)) for rows, columns in pairs]


def _padded(found: list[tuple[int, int]], count: int) -> Shapes:
    return np.array([*found, *[found[0]] * (count - len(found))], dtype=np.int64)
