"""In how many parts along k a tile of the last wave is: arithmetic that the kernel, cost models and tests share.

All parts of a wave are alike, so that clusters that read the same weights stay at the same place of them. (Where each
cluster had as many steps as any other, tiles were begun anywhere along k, and a wave that was nearly full took up to
twice as long as a whole one: `experiments/results/grouped-products.md`.) Nothing is split where the last wave is more
than half full, or where k is too short for what splitting costs.

The functions take integers, columns of them, or CuteDSL's numbers.
"""

from collections.abc import Callable
from typing import Any

LOST_K = 2048  # elements along k in whose time the sums of parts are left in memory, and added up
MOST_PARTS = 8  # of a tile; one thread adds them up, one after the other


def parts_that_fit(tiles: Any, clusters: Any, least: Callable[[Any, Any], Any] = min) -> Any:
    """In how many parts each of the last wave's tiles may be, for all to run at once."""
    return least(clusters // tiles, MOST_PARTS)


def is_worth_splitting(parts: Any, k: Any) -> Any:
    """Whether so many parts save more than they cost."""
    return (parts - 1) * k > parts * LOST_K
