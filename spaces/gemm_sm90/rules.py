"""Rules of rows, warp groups and the ring, which the Hopper GEMM, the grouped one and Quack's have in common."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import ProblemError
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT, MMA_ROWS, SWIZZLE_BYTES, groups_per_tile
from tilescout.spaces.problems import Problem


def check_alignment(space: str, problem: Problem, multiples: Mapping[str, int]) -> None:
    """Refuse a problem with rows that TMA can't move.

    Parameters
    ----------
    space
        The name of the space, for the message.
    problem
        The problem.
    multiples
        The number of elements that each of its sizes has to be a multiple of, by their names.

    Raises
    ------
    ProblemError
        With the first size that is none.
    """
    for name, step in multiples.items():
        if getattr(problem, name) % step:
            raise ProblemError(
                f"{space}: {name} = {getattr(problem, name)} is not a multiple of {step}; TMA moves rows whose length "
                f"is a multiple of {ALIGNMENT} bytes"
            )


def sharing_groups(columns: Columns) -> Any:
    """The warp groups that share a tile, of shape [configurations]."""
    return groups_per_tile(columns["warp_groups"], columns["schedule"] == "pingpong")


def _turns_of_two(columns: Columns, problem: Problem, device: Device) -> Mask:
    return np.asarray((columns["schedule"] == "cooperative") | (columns["warp_groups"] == 2))


def _rows_divide(columns: Columns, problem: Problem, device: Device) -> Mask:
    return np.asarray(columns["tile_m"] % (MMA_ROWS * sharing_groups(columns)) == 0)


def _stages_are_aligned(columns: Columns, problem: Problem, device: Device) -> Mask:
    return np.asarray(columns["tile_n"] * columns["tile_k"] * problem.element.bytes % SWIZZLE_BYTES == 0)


TURNS = Constraint(
    "turns",
    "two warp groups take turns: schedule pingpong needs warp_groups == 2",
    ("schedule", "warp_groups"),
    _turns_of_two,
)
ROWS = Constraint(
    "rows",
    "each warp group computes whole 64-row WGMMA tiles: tile_m is a multiple of 64 for each that shares the tile",
    ("schedule", "warp_groups", "tile_m"),
    _rows_divide,
)
ALIGNED = Constraint(
    "aligned",
    "the ring's stages and what follows it must start where the swizzle repeats: tile_n * tile_k * the size of an "
    f"element is a multiple of {SWIZZLE_BYTES} bytes",
    ("tile_n", "tile_k"),
    _stages_are_aligned,
)
