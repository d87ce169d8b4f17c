"""The kernels that dispatchers are judged by, and which of them are worth a look at an m.

Models take a tenth of a second to say that of one m. That is long beside a race, so that other processes ask them.
"""

import math
import sys
from collections.abc import Sequence
from concurrent.futures import Executor

import numpy as np

from tilescout.search.dispatch.building import DispatchOptions, candidates
from tilescout.search.dispatch.kernels import Kernels, Models

PROCESSES = 8
HOPELESS = 0.2  # of a kernel's predicted time over the least of its space, as a share: beyond, it is not glanced at
MOST = 24  # kernels of a space that are


def worth_looking_at(kernels: Kernels, models: Models, sizes: Sequence[int]) -> list[list[int]]:
    """For each m, of each space, the legal kernels that its model does not put too far behind the first."""
    shown: list[list[int]] = []
    for logs in np.nan_to_num(kernels.predict(models, sizes), nan=np.inf).T:
        found = list[int]()
        for template in dict.fromkeys(kernels.templates):
            mine = np.array([number for number, each in enumerate(kernels.templates) if each is template])
            ordered = mine[np.argsort(logs[mine], kind="stable")][:MOST]
            near = logs[ordered] <= min(logs[ordered[0]], sys.float_info.max) + math.log1p(HOPELESS)
            found.extend(ordered[near].tolist())
        shown.append(found)
    return shown


def numbers_of_candidates(kernels: Kernels, models: Models, options: DispatchOptions) -> list[int]:
    """The numbers of the most promising of some kernels."""
    listed = candidates(kernels, models, options)
    numbers = {each: number for number, each in enumerate(kernels.configurations)}
    return [numbers[each] for each in listed.configurations]


def looks(kernels: Kernels, models: Models, sizes: Sequence[int], pool: Executor) -> dict[int, list[int]]:
    """The kernels that are worth a look, by m; the processes of a pool find them together."""
    parts = [[int(m) for m in part] for part in np.array_split(sizes, PROCESSES)]
    asked = [pool.submit(worth_looking_at, kernels, models, part) for part in parts if part]
    told = [look for each in asked for look in each.result()]
    return dict(zip(sizes, told, strict=True))
