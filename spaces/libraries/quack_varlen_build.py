"""Compile a grouped matrix product of Dao-AILab/quack, its kernel for variable m, to an object file, with no GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, Int32, cute
from cutlass.cute.runtime import make_fake_compact_tensor

from tilescout.spaces.building import compile_object
from tilescout.spaces.errors import BuildError
from tilescout.spaces.faults import described
from tilescout.spaces.gemm_sm90.kernel import ELEMENTS
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.libraries.build import launched_with
from tilescout.spaces.libraries.quack_build import RASTERS
from tilescout.spaces.templates import Built

# Behind quack_build, which makes Quack importable bare.
from quack.gemm_default_epi import GemmDefaultSm90  # isort: skip
from quack.tile_scheduler import TileSchedulerOptions  # isort: skip
from quack.varlen_utils import VarlenArguments  # isort: skip

FUNCTION = "quack_varlen"
_OFFSET_BYTES = 4


@dataclass(frozen=True)
class Entry:
    """Launches Quack's kernel on tensors as we pass them.

    Attributes
    ----------
    gemm
        Quack's kernel.
    raster
        A key of `RASTERS`.
    swizzle
        Width of the bands in which the tiles of a group are walked, in clusters, at most.
    """

    gemm: Any
    raster: str
    swizzle: int

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, ends: cute.Tensor, d: cute.Tensor, clusters: Int32, stream: cuda.CUstream
    ) -> None:
        """Launch on A [tokens, k], B [experts, n, k], the ends of the groups [experts], D [tokens, n]."""
        # Quack wants the 0 before the first end too: it lies there, see tilescout.spaces.grouped.
        bounds = cute.make_tensor(ends.iterator - 1, cute.make_layout((cute.size(ends) + 1,)))
        schedule = TileSchedulerOptions(clusters, RASTERS[self.raster], Int32(self.swizzle))
        epilogue = self.gemm.EpilogueArguments()
        self.gemm(a, b, d, None, epilogue, schedule, VarlenArguments(mCuSeqlensM=bounds), stream, None, None)


def build_grouped(knobs: Mapping[str, Any], problem: GroupedProblem, path: Path) -> Built:
    """Write the object file; its entry point is ``quack_varlen(a, b, ends, d, max_clusters)``.

    All sizes are dynamic; rows are promised to be multiples of 16 bytes. The kernel runs on the caller's current
    stream.

    Raises
    ------
    BuildError
        If Quack, CuteDSL or ptxas refuse the configuration.
    """
    dtype = ELEMENTS[problem.dtype]
    step = ALIGNMENT // problem.element.bytes
    experts, tokens = cute.sym_int(symbol="experts"), cute.sym_int(symbol="tokens")
    n, k = (cute.sym_int(divisibility=step, symbol=name) for name in "nk")

    def tensor(*shape: cute.SymInt) -> cute.Tensor:
        order = tuple(reversed(range(len(shape))))
        return make_fake_compact_tensor(dtype, shape, stride_order=order, assumed_align=ALIGNMENT)

    ends = make_fake_compact_tensor(Int32, (experts,), assumed_align=_OFFSET_BYTES)
    tile = tuple(knobs[name] for name in ("tile_m", "tile_n", "tile_k"))
    cluster = (knobs["cluster_m"], knobs["cluster_n"], 1)
    try:
        gemm = GemmDefaultSm90(Float32, dtype, tile, cluster, pingpong=knobs["schedule"] == "pingpong")
        entry = Entry(gemm, str(knobs["raster"]), int(knobs["swizzle"]))
    except Exception as error:  # Quack asserts
        raise BuildError(described(error)) from error
    arguments = (tensor(tokens, k), tensor(experts, n, k), ends, tensor(tokens, n), Int32(1))
    return Built(FUNCTION, launched_with(str(compile_object(entry, arguments, path, FUNCTION).ir_module)))
