"""Grouped matrix products of Dao-AILab/quack on Hopper that gather the rows of A, as a search space.

It is the kernel of ``quack_varlen`` told which rows of A to read (``A_idx`` of ``quack.gemm.gemm``). Hopper's TMA loads
no scattered rows: four warps copy them instead of one that starts TMA, and no two blocks can share them.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.gathered import GatheredProblem
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Knob, Value
from tilescout.spaces.libraries.quack_varlen import QuackVarlenTemplate
from tilescout.spaces.templates import Built

_LEFT_OUT = 208  # columns of a tile


def _quack_lists_it(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    return np.asarray(columns["tile_n"] != _LEFT_OUT)


class QuackGatheredTemplate(QuackVarlenTemplate):
    """The template of ``quack_gathered``; its problems are `GatheredProblem`."""

    name = "quack_gathered"
    summary = "products of experts of rows gathered in the kernel on Hopper, by Quack's"
    sources = (*QuackVarlenTemplate.sources, "quack_gathered_build.py")
    workload = "tilescout.spaces.gathered:Gathered"
    knobs = tuple(
        Knob("cluster_n", (1,), "blocks of a cluster along the columns; of gathered rows they would share none")
        if knob.name == "cluster_n"
        else knob
        for knob in QuackVarlenTemplate.knobs
    )
    constraints = (
        *QuackVarlenTemplate.constraints,
        Constraint(
            "listed",
            f"Quack lists no tiles of {_LEFT_OUT} columns where it gathers on Hopper (``quack.gemm_config``)",
            ("tile_n",),
            _quack_lists_it,
        ),
    )

    def warm_up(self) -> None:
        import tilescout.spaces.libraries.quack_gathered_build  # noqa: F401

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.libraries.quack_gathered_build import build_gathered

        return build_gathered(configuration, GatheredProblem.small(signature), path)


TEMPLATE = QuackGatheredTemplate()
