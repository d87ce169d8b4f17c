"""The default configuration of ``gemm_sm90``: of a portfolio, the one that small trees expect to be the fastest.

The portfolio and the trees are data, `defaults.npz`, fitted to recorded tables. NumPy alone reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np

from tilescout.spaces.archive import CardedArchive
from tilescout.spaces.constraints import Columns
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import SpaceError
from tilescout.spaces.gemm_sm90.layout import groups_per_tile, shared_memory
from tilescout.spaces.gemm_sm90.ranking import FEATURES
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.oblivious import ObliviousTrees

FORMAT = 1
_FILE = CardedArchive("defaults", 4_000_000)
_FEWEST_STAGES = 2


@dataclass(frozen=True, eq=False)
class Defaults:
    """A portfolio for elements of each size, and trees that rank its configurations.

    Attributes
    ----------
    portfolios
        Configurations, by the bytes of an element: rows of values in the order of the knobs.
    trees
        They predict the log of a configuration's time over the best, from the features of
        `tilescout.spaces.gemm_sm90.ranking`.
    source
        Which tables they were fitted to: name and checksum.
    """

    portfolios: Mapping[int, tuple[tuple[Value, ...], ...]]
    trees: ObliviousTrees
    source: Mapping[str, str]

    def columns(
        self,
        knobs: Sequence[Knob],
        element_bytes: int,
        result_bytes: int,
        device: Device,
        also: Sequence[Configuration] = (),
    ) -> Columns:
        """The portfolio for types of these sizes, and others, as columns, their rings no deeper than fits.

        A ring of less than two stages is none that a knob allows: such configurations are left out.
        """
        others = (tuple(each[knob.name] for knob in knobs) for each in also)
        rows = list(dict.fromkeys([*self.portfolios[element_bytes], *others]))
        columns = {knob.name: np.array([row[at] for row in rows]) for at, knob in enumerate(knobs)}
        groups = groups_per_tile(columns["warp_groups"], columns["schedule"] == "pingpong")

        def occupied(stages: Any) -> Any:
            return shared_memory(
                columns["tile_m"], columns["tile_n"], columns["tile_k"], stages, columns["warp_groups"], groups,
                columns["split_k"], element_bytes, result_bytes,
            )  # fmt: skip

        fitting = (device.shared_memory - occupied(0)) // (occupied(1) - occupied(0))
        columns["stages"] = np.minimum(columns["stages"], fitting)
        return {name: column[columns["stages"] >= _FEWEST_STAGES] for name, column in columns.items()}


def shipped_defaults(knobs: Sequence[Knob]) -> Defaults:
    """The defaults that come with the package."""
    with as_file(files("tilescout.spaces.gemm_sm90").joinpath("defaults.npz")) as path:
        return read_defaults(path, knobs)


def write_defaults(path: Path, defaults: Defaults, knobs: Sequence[Knob]) -> None:
    """Write a file that `read_defaults` reads; one that is there is replaced.

    Raises
    ------
    SpaceError
        If the file can't be written, or is something else.
    """
    card = {
        "format": FORMAT,
        "knobs": [knob.name for knob in knobs],
        "features": FEATURES,
        "portfolios": defaults.portfolios,
        "source": dict(defaults.source),
        "base": defaults.trees.base,
    }
    trees = {name: getattr(defaults.trees, name) for name in ("feature", "threshold", "leaf")}
    _FILE.write(path, card, trees)


def read_defaults(path: Path, knobs: Sequence[Knob]) -> Defaults:
    """Read the file of a portfolio and its trees, and check it.

    Raises
    ------
    SpaceError
        If it is missing, damaged, or made for other knobs or features.
    """
    with _FILE.read(path) as (card, arrays):
        trees = ObliviousTrees(arrays["feature"], arrays["threshold"], arrays["leaf"], float(card["base"]))
        known = (card["format"], tuple(card["features"]), tuple(card["knobs"]))
        if known != (FORMAT, FEATURES, tuple(knob.name for knob in knobs)):
            raise SpaceError(f"{path} was made for another format, other knobs or other features: make it anew")
        portfolios = {
            int(size): tuple(_checked(row, knobs) for row in rows) for size, rows in card["portfolios"].items()
        }
        trees.check(len(FEATURES))
    return Defaults(portfolios, trees, dict(card["source"]))


def _checked(row: Sequence[Value], knobs: Sequence[Knob]) -> tuple[Value, ...]:
    if len(row) != len(knobs) or any(value not in knob.values for value, knob in zip(row, knobs, strict=True)):
        raise ValueError(f"{row} has a value that its knob does not have")
    return tuple(row)
