"""Compile a matrix product of Dao-AILab/quack to an object file, with no GPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, Int32, const_expr, cute

from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import ELEMENTS
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.libraries.bare import without_init
from tilescout.spaces.libraries.build import build_object
from tilescout.spaces.templates import Built

FUNCTION = "quack_gemm"


# Of what these would import, the kernels need nothing: Triton, which is not there without a CUDA build of torch, and
# torch's compiler, which takes longer to import than a kernel to compile.
without_init("quack", "quack.blockscaled")

from quack.gemm_default_epi import GemmDefaultSm90, GemmDefaultSm100, GemmDefaultSm120  # noqa: E402
from quack.tile_scheduler import RasterOrderOption, TileSchedulerOptions  # noqa: E402

RASTERS = {
    "auto": RasterOrderOption.Heuristic,
    "m": RasterOrderOption.AlongM,
    "n": RasterOrderOption.AlongN,
}


@dataclass(frozen=True)
class Entry:
    """Launches a kernel of Quack on tensors as we pass them.

    Attributes
    ----------
    gemm
        Quack's kernel.
    swap_ab
        Whether D.T = B @ A.T is computed.
    raster
        A key of `RASTERS`.
    swizzle
        Width of the bands in which tiles are walked, in clusters, at most.
    """

    gemm: Any
    swap_ab: bool
    raster: str
    swizzle: int

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, clusters: Int32, stream: cuda.CUstream) -> None:
        """Launch on A [batch, m, k], B [batch, n, k], D [batch, m, n]."""
        if const_expr(self.swap_ab):
            a, b = b, a
            d = cute.make_tensor(d.iterator, cute.select(d.layout, [0, 2, 1]))
        schedule = TileSchedulerOptions(clusters, RASTERS[self.raster], Int32(self.swizzle))
        # A plain product has no C, arguments of the epilogue, variable lengths or block scales.
        self.gemm(a, b, d, None, self.gemm.EpilogueArguments(), schedule, None, stream, None, None)


def build_gemm(configuration: Configuration, problem: GemmProblem, arch: str, path: Path) -> Built:
    """Write the object file of a configuration of ``quack_sm90``, ``quack_sm100`` or ``quack_sm120``.

    Raises
    ------
    BuildError
        If Quack, CuteDSL or ptxas refuse the configuration.
    """
    knobs = {name: configuration[name] for name in configuration}

    def make_entry() -> Entry:
        tile = tuple(knobs[name] for name in ("tile_m", "tile_n", "tile_k") if name in knobs)
        cluster = (knobs.get("cluster_m", 1), knobs.get("cluster_n", 1), 1)
        pingpong, dynamic = knobs.get("schedule") == "pingpong", knobs.get("dynamic") == 1
        shape = (Float32, ELEMENTS[problem.dtype], tile, cluster)
        if arch == "sm_90a":
            gemm = GemmDefaultSm90(*shape, pingpong=pingpong)
        elif arch == "sm_100a":
            gemm = GemmDefaultSm100(*shape, use_clc_persistence=dynamic)
        else:
            gemm = GemmDefaultSm120(*shape, pingpong=pingpong, use_clc_persistence=dynamic)
        return Entry(gemm, knobs["swap_ab"] == 1, str(knobs["raster"]), int(knobs["swizzle"]))

    return build_object(make_entry, problem, FUNCTION, path)
