"""Which tiles all clusters share along k: arithmetic that the kernel, the rules, cost models and tests have in common.

Where tiles are shared, clusters that read the same weights are no longer at the same place of them, so that a wave
takes longer than its share of a whole one, and a second kernel adds the sums up. So the last wave is shared where it
is thin and k is long. The bounds were chosen on times of the kernel that shared every last wave
(`experiments/results/grouped-products.md`).

The functions take integers, columns of them, or CuteDSL's numbers.
"""

from typing import Any

LOST_K = 2048  # elements along k that a wave takes longer for being shared, however thin it is
_TAKEN, _OF = 5, 8  # a shared wave takes as long as 8/5 of its share of a whole one, and what is lost


def is_worth_sharing(tiles: Any, clusters: Any, k: Any) -> Any:
    """Whether the so many tiles of the last wave are shared by all clusters."""
    return _OF * tiles * k <= _TAKEN * clusters * (k - LOST_K)


def fullest_shared(k: Any) -> Any:
    """The fullest last wave that is shared, as a share of a full one; below 0 where none is."""
    return _TAKEN * (k - LOST_K) / (_OF * k)
