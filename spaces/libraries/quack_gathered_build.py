"""Compile a grouped matrix product of Dao-AILab/quack that gathers the rows of A to an object file, with no GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, Int32, cute

from tilescout.spaces.building import compile_object
from tilescout.spaces.errors import BuildError
from tilescout.spaces.faults import described
from tilescout.spaces.gathered import GatheredProblem
from tilescout.spaces.gemm_sm90.kernel import ELEMENTS
from tilescout.spaces.grouped_building import stand_ins
from tilescout.spaces.libraries.build import launched_with
from tilescout.spaces.libraries.quack_build import RASTERS
from tilescout.spaces.libraries.quack_varlen_build import Entry
from tilescout.spaces.templates import Built

# Behind quack_build, which makes Quack importable bare.
from quack.gemm_default_epi import GemmDefaultSm90  # isort: skip
from quack.tile_scheduler import TileSchedulerOptions  # isort: skip
from quack.varlen_utils import VarlenArguments  # isort: skip

FUNCTION = "quack_gathered"


@dataclass(frozen=True)
class GatheringEntry(Entry):
    """Launches Quack's kernel, told which rows of A to read, on tensors as we pass them."""

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        ends: cute.Tensor,
        index: cute.Tensor,
        d: cute.Tensor,
        clusters: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Launch on A [rows, k], B [experts, n, k], ends [experts], the rows of A [tokens] and D [tokens, n]."""
        # Quack wants the 0 before the first end too: it lies there, see tilescout.spaces.grouped.
        bounds = cute.make_tensor(ends.iterator - 1, cute.make_layout((cute.size(ends) + 1,)))
        schedule = TileSchedulerOptions(clusters, RASTERS[self.raster], Int32(self.swizzle))
        groups = VarlenArguments(mCuSeqlensM=bounds, mAIdx=index)
        self.gemm(a, b, d, None, self.gemm.EpilogueArguments(), schedule, groups, stream, None, None)


def build_gathered(knobs: Mapping[str, Any], problem: GatheredProblem, path: Path) -> Built:
    """Write the object file; its entry point is ``quack_gathered(a, b, ends, index, d, max_clusters)``.

    Raises
    ------
    BuildError
        If Quack, CuteDSL or ptxas refuse the configuration.
    """
    tile = tuple(knobs[name] for name in ("tile_m", "tile_n", "tile_k"))
    cluster = (knobs["cluster_m"], knobs["cluster_n"], 1)
    try:
        pingpong = knobs["schedule"] == "pingpong"
        gemm = GemmDefaultSm90(Float32, ELEMENTS[problem.dtype], tile, cluster, pingpong=pingpong, gather_A=True)
        entry = GatheringEntry(gemm, str(knobs["raster"]), int(knobs["swizzle"]))
    except Exception as error:  # Quack asserts
        raise BuildError(described(error)) from error
    compiled = compile_object(entry, stand_ins(problem, Int32, gathered=True), path, FUNCTION)
    return Built(FUNCTION, launched_with(str(compiled.ir_module)))
