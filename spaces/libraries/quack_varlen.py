"""Grouped matrix products of Dao-AILab/quack (package quack-kernels) on Hopper, as a search space.

Quack calls them products of variable m (``cu_seqlens_m`` of ``quack.gemm.gemm``). The knobs are those arguments of
which each value needs a kernel of its own. Operands can't be swapped and k can't be split, by Quack's own rules.
Dynamic scheduling is left out, as Quack has it off on Hopper.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilescout.spaces.constraints import Columns, Constraint, Mask
from tilescout.spaces.devices import Device
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT
from tilescout.spaces.gemm_sm90.rules import check_alignment
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.libraries.quack import (
    CLUSTER,
    QUACK,
    REGISTERS,
    SCHEDULE,
    SWIZZLE,
    TILE,
    TILE_K,
    TILE_N,
    stages,
)
from tilescout.spaces.libraries.template import LibraryTemplate
from tilescout.spaces.templates import Built

_LEAST_STAGES = 2


def _ring_fits(columns: Columns, problem: GroupedProblem, device: Device) -> Mask:
    whole: dict[str, Any] = {**columns, "split_mode": np.full(1, "serial")}
    return np.asarray(stages(whole, problem, device.shared_memory) >= _LEAST_STAGES)


class QuackVarlenTemplate(LibraryTemplate[GroupedProblem]):
    """The template of ``quack_varlen``: ``GemmSm90`` of variable m, persistent with a static schedule."""

    name = "quack_varlen"
    summary = "products of experts on Hopper, by Quack's kernel"
    library = QUACK
    sources: tuple[str, ...] = ("build.py", "quack_build.py", "quack_varlen_build.py")
    workload = "tilescout.spaces.grouped:Grouped"
    archs = ("sm_90a",)
    knobs: tuple[Knob, ...] = (
        SCHEDULE,
        Knob("tile_m", (64, 128, 192, 256, 320), "tokens of an expert that a block computes at a time"),
        TILE_N,
        TILE_K,
        Knob("cluster_m", (1, 2, 4), "blocks of a cluster along the tokens of an expert"),
        Knob("cluster_n", (1, 2, 4), "blocks of a cluster along the columns of the product"),
        SWIZZLE,
        Knob("raster", ("n", "m"), "direction in which the tiles of an expert are walked within a band"),
    )
    constraints: tuple[Constraint[GroupedProblem], ...] = (
        TILE,
        REGISTERS,
        Constraint(
            "shared_memory",
            "fewer than two stages of the ring fit the shared memory of a block beside the epilogue's tiles",
            ("schedule", "tile_m", "tile_n", "tile_k"),
            _ring_fits,
        ),
        CLUSTER,
    )

    def check(self, problem: GroupedProblem) -> None:
        self.library.version(self.name)
        step = ALIGNMENT // problem.element.bytes
        check_alignment(self.name, problem, dict.fromkeys("nk", step))

    def default(self, problem: GroupedProblem, device: Device) -> Configuration:
        """The answer of ``quack.gemm_config.default_config``, which is the same for every problem."""
        return self._configuration(
            schedule="pingpong",
            tile_m=128,
            tile_n=192,
            tile_k=64,
            cluster_m=2,
            cluster_n=1,
            swizzle=8,
            raster="n",  # which Quack's heuristic stands for, where m is variable
        )

    def warm_up(self) -> None:
        import tilescout.spaces.libraries.quack_varlen_build  # noqa: F401

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        from tilescout.spaces.libraries.quack_varlen_build import build_grouped

        return build_grouped(configuration, GroupedProblem.small(signature), path)


TEMPLATE = QuackVarlenTemplate()
