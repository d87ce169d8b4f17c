"""How the steps along k of all tiles are divided among clusters: arithmetic that the rules, the kernel and tests share.

The steps of the first tiles, one tile after the other, are cut into parts of nearly the same length. Every further tile
is whole. The parts, then the whole tiles, are jobs; cluster c of a grid of g has the jobs c, c + g, c + 2 g, ... A part
may end one tile and begin the next. What it computes of a tile that it does not have whole, it leaves in memory, for
another kernel to add up.

The functions take integers, columns of them, or CuteDSL's numbers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MOST_BLOCKS = 144  # multiprocessors of a whole GH100 (NVIDIA H100 Tensor Core GPU Architecture, 2022)


@dataclass(frozen=True)
class Partition:
    """The division of the steps of all tiles. A tile is here one of every block of a cluster.

    Attributes
    ----------
    tiles
        Tiles in all.
    steps
        Steps along k of each, one or more.
    shared
        Tiles whose steps are divided into parts: the first ones.
    parts
        Parts of these, no more than they have steps.
    least
        The function that finds the smaller of two such numbers.
    """

    tiles: Any
    steps: Any
    shared: Any
    parts: Any
    least: Callable[[Any, Any], Any]

    @property
    def jobs(self) -> Any:
        """The parts and the whole tiles."""
        return self.parts + self.tiles - self.shared

    def begin(self, job: Any) -> Any:
        """The first step of a job, counted over the tiles; where one job ends the next begins."""
        total = self.shared * self.steps
        part = self.least(job, self.parts)
        # The remainder apart, so that no product is larger than the square of the parts, or the steps.
        here = part * (total // self.parts) + part * (total % self.parts) // self.parts
        return here + (job - part) * self.steps

    def segment(self, step: Any, end: Any) -> tuple[Any, Any, Any]:
        """The tile that a job is at with a step, and the steps of that tile, from the first up to the last, it has."""
        tile = step // self.steps
        before = tile * self.steps
        return tile, step - before, self.least(self.steps, end - before)

    def part_at(self, step: Any) -> Any:
        """The part that has a step of the shared tiles."""
        return ((step + 1) * self.parts - 1) // (self.shared * self.steps)

    def parts_of(self, tile: Any) -> tuple[Any, Any]:
        """The first and the last part that have steps of a shared tile; they are the same if it is whole."""
        return self.part_at(tile * self.steps), self.part_at((tile + 1) * self.steps - 1)


def slot(part: Any, tile: Any) -> Any:
    """The place in memory where a part leaves its sums of a tile; no other part, or tile, has the same."""
    return part + tile


def divide(
    split: Any, stream_k: bool, tiles: Any, steps: Any, clusters: Any, least: Callable[[Any, Any], Any] = min
) -> Partition:
    """The partition of tiles that have `steps` steps each.

    Parameters
    ----------
    split
        Parts of each tile, unless `stream_k`; each part has a step or more.
    stream_k
        Whether all clusters share the tiles of the last wave, which may not be full, evenly. (To share the full wave
        before it as well was never the best: `experiments/results/stream-k.md`.)
    tiles, steps
        Tiles, and steps of each.
    clusters
        Clusters of the grid.
    least
        See `Partition`.
    """
    if not stream_k:
        return Partition(tiles, steps, tiles, tiles * least(split, steps), least)
    shared = (tiles - 1) % clusters + 1
    return Partition(tiles, steps, shared, least(clusters, shared * steps), least)
