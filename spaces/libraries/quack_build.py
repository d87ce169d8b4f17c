"""Compile a matrix product of Dao-AILab/quack to an object file, with no GPU."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, Int32, cute

from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import ELEMENTS
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.libraries.bare import without_init
from tilescout.spaces.libraries.build import build_object
from tilescout.spaces.libraries.quack_split import block_rows, whole_tiles
from tilescout.spaces.templates import Built

FUNCTION = "quack_gemm"
_CLEARING_THREADS = 256


# Of what these would import, the kernels need nothing: Triton, which is not there without a CUDA build of torch, and
# torch's compiler, which takes longer to import than a kernel to compile.
without_init("quack", "quack.blockscaled")

from quack.gemm_config import SplitKMode  # noqa: E402
from quack.gemm_default_epi import GemmDefaultSm90, GemmDefaultSm100, GemmDefaultSm120  # noqa: E402
from quack.tile_scheduler import RasterOrderOption, TileSchedulerOptions  # noqa: E402

RASTERS = {
    "auto": RasterOrderOption.Heuristic,
    "m": RasterOrderOption.AlongM,
    "n": RasterOrderOption.AlongN,
}


SPLITS = {"serial": SplitKMode.SERIAL, "separate": SplitKMode.SEPARATE}


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
        self.launch(a, b, d, clusters, stream, self.gemm.EpilogueArguments())

    def launch(self, a: Any, b: Any, d: Any, clusters: Any, stream: Any, epilogue: Any) -> None:
        """Launch the product alone, of A, B and D as we pass them."""
        if self.swap_ab:
            a, b, d = b, a, transposed(d)
        schedule = TileSchedulerOptions(clusters, RASTERS[self.raster], Int32(self.swizzle))
        # A plain product has no C, variable lengths or block scales.
        self.gemm(a, b, d, None, epilogue, schedule, None, stream, None, None)


@dataclass(frozen=True)
class SerialEntry(Entry):
    """Launches a kernel whose blocks add up their parts of k in scratch memory, one after the other.

    Flags say whose turn it is, and are cleared first. Quack's kernel clears them again behind itself, which would spare
    that; but scratch memory is anybody's between two launches.

    Attributes
    ----------
    tile, cluster
        Rows and columns of the product that a block computes at a time, and blocks of a cluster along them.
    """

    tile: tuple[int, int]
    cluster: tuple[int, int]

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        clusters: Int32,
        scratch: cute.Tensor,
        stream: cuda.CUstream,
    ) -> None:
        """Launch on A [batch, m, k], B [batch, n, k], D [batch, m, n], scratch [bytes]: the sums, then the flags."""
        batch, m, n = d.shape
        extents = (n, m) if self.swap_ab else (m, n)
        along_m, along_n = map(whole_tiles, extents, self.tile, self.cluster)
        area, tiles = self.tile[0] * self.tile[1], along_m * along_n
        strides = (1, cute.assume(along_n * area, divby=4), area, cute.assume(tiles * area, divby=4))
        sums = cute.make_tensor(
            cute.recast_ptr(scratch.iterator, dtype=Float32),
            cute.make_layout((area, along_m, along_n, batch), stride=strides),
        )
        flags = cute.make_tensor(
            cute.recast_ptr(scratch.iterator, dtype=Int32) + tiles * batch * area,
            cute.make_layout((along_m, along_n, batch), stride=(along_n, 1, tiles)),
        )
        clear(flags).launch(
            grid=(cute.ceil_div(tiles * batch, _CLEARING_THREADS), 1, 1),
            block=(_CLEARING_THREADS, 1, 1),
            stream=stream,
            use_pdl=True,
        )
        epilogue = self.gemm.EpilogueArguments(split_k_semaphore=flags, split_k_workspace=sums)
        self.launch(a, b, d, clusters, stream, epilogue)


@cute.kernel
def clear(flags: cute.Tensor) -> None:
    """Set all flags to 0, once the kernel before has ended: it may use the same memory."""
    flag = cute.arch.block_idx()[0] * _CLEARING_THREADS + cute.arch.thread_idx()[0]
    cute.arch.griddepcontrol_wait()
    if flag < cute.size(flags):
        flags[flag] = Int32(0)
        cute.arch.fence_acq_rel_gpu()


@dataclass(frozen=True)
class SeparateEntry(Entry):
    """Launches a kernel whose blocks leave the sums over their parts of k in scratch memory, and one that adds them up.

    Attributes
    ----------
    reduce
        Quack's kernel that adds them up.
    split_k
        The number of parts.
    """

    reduce: Any
    split_k: int

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        clusters: Int32,
        scratch: cute.Tensor,
        stream: cuda.CUstream,
    ) -> None:
        """Launch on A [batch, m, k], B [batch, n, k], D [batch, m, n], scratch [bytes]: a D of every part."""
        batch, m, n = d.shape
        sums = cute.make_tensor(
            cute.recast_ptr(scratch.iterator, dtype=Float32),
            cute.make_layout((batch * self.split_k, m, n), stride=d.stride),
        )
        self.launch(a, b, sums, clusters, stream, self.gemm.EpilogueArguments())
        sums, d = (cute.make_tensor(each.iterator, cute.select(each.layout, [1, 2, 0])) for each in (sums, d))
        self.reduce(sums, d, None, None, None, None, None, stream)


def transposed(tensor: cute.Tensor) -> cute.Tensor:
    """The transposed matrices of [batch, rows, columns]."""
    return cute.make_tensor(tensor.iterator, cute.select(tensor.layout, [0, 2, 1]))


def build_gemm(configuration: Configuration, problem: GemmProblem, arch: str, path: Path) -> Built:
    """Write the object file of a configuration of ``quack_sm90``, ``quack_sm100`` or ``quack_sm120``.

    Raises
    ------
    BuildError
        If Quack, CuteDSL or ptxas refuse the configuration.
    """
    knobs: dict[str, Any] = dict(configuration)
    splits = knobs["split_k"] > 1
    return build_object(lambda: make_entry(knobs, problem, arch), problem, FUNCTION, path, scratch=splits)


def make_entry(knobs: Mapping[str, Any], problem: GemmProblem, arch: str) -> Entry:
    """What CuteDSL compiles."""
    tile = tuple(knobs[name] for name in ("tile_m", "tile_n", "tile_k") if name in knobs)
    cluster = (knobs.get("cluster_m", 1), knobs.get("cluster_n", 1), 1)
    split_k, mode = knobs["split_k"], knobs["split_mode"]
    shape = (Float32, ELEMENTS[problem.dtype], tile, cluster)
    split = {"split_k": split_k, "split_k_mode": SPLITS[mode]}
    pingpong, dynamic = knobs.get("schedule") == "pingpong", knobs.get("dynamic") == 1
    if arch == "sm_90a":
        gemm = GemmDefaultSm90(*shape, pingpong=pingpong, **split)
    elif arch == "sm_100a":
        gemm = GemmDefaultSm100(*shape, use_clc_persistence=dynamic, **split)
    else:
        gemm = GemmDefaultSm120(*shape, pingpong=pingpong, use_clc_persistence=dynamic, **split)
    common = (gemm, knobs["swap_ab"] == 1, str(knobs["raster"]), int(knobs["swizzle"]))
    if split_k == 1:
        return Entry(*common)
    if mode == "serial":
        return SerialEntry(*common, (block_rows(knobs, arch), knobs["tile_n"]), cluster[:2])
    from quack.split_k_reduce import SplitKReduce

    reduce = SplitKReduce(ELEMENTS[problem.out], split_k, add_to_output=False, vec_elems=4)
    return SeparateEntry(*common, reduce, split_k)
