"""The templates of cuBLASLt's algorithms: nothing is compiled, and the library says on the device what is legal."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from tilescout.spaces.constraints import Columns
from tilescout.spaces.cublaslt.algorithms import VALUES
from tilescout.spaces.cublaslt.loader import describe
from tilescout.spaces.cublaslt.shapes import cluster_shapes, tile_shapes
from tilescout.spaces.devices import Device, find_device
from tilescout.spaces.errors import ProblemError, SpaceError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration, Knob, Value
from tilescout.spaces.space import SearchSpace
from tilescout.spaces.templates import Built, KernelTemplate
from tilescout.spaces.tiling import Tiling

_NVJET = 66  # the number of the algorithm that has the library's kernels for Hopper and newer
# The bits of its custom option. The library does not say what they are: the first goes with tiles whose rows, else with
# those whose columns are a multiple of 64, the second with clusters that are longer along the columns, and the third
# with tiles that are too large for the registers of one group of warps.
_ROWS_FIRST, _ALONG_COLUMNS, _TWO_GROUPS = 1, 2, 4
_OLDER_MMA = 8  # columns of a matrix instruction before Hopper (mma.m16n8k16), which the older algorithms use
_EPILOGUE = 32 * 1024  # bytes of shared memory for a part of a tile of the result, at most
_FIRST = 8  # guesses that a search tries first: timing them takes milliseconds

_MEANING = {
    "guess": "rank in the list of the library's heuristic, 0 if it is not there",
    "algorithm": "the library's number of the algorithm",
    "tile": "its number of the tile; 0 leaves it to the algorithm",
    "stages": "its number of stages and their depth; 0 leaves them to the algorithm",
    "split_k": "parts of k that are computed in parallel",
    "reduction": "how these are added: 1 in place, 2 in fp32, 4 in the type of the result",
    "swizzle": "order in which blocks walk over the tiles",
    "inner_shape": "its number of the matrix instruction; 0 leaves it to the algorithm",
    "cluster": "its number of the shape of a cluster; 0 leaves it to the algorithm",
    "custom_option": "what else the algorithm can be told; the library does not say what that is",
}


class CublasLtTemplate(KernelTemplate[GemmProblem]):
    """The template of ``cublaslt``: every algorithm with every configuration that the library allows for a problem.

    The numbers of tiles, stages, inner shapes and clusters are those of the enumerations in `cublasLt.h`. An algorithm
    may take up to 32 MiB of device memory for itself. What the library does not fuse to a product (exact GELU, SiLU) is
    done by a further operation, as in `torch.mm`'s place.
    """

    name = "cublaslt"
    summary = "matrix products, by the algorithms of cuBLASLt; needs a GPU, compiles nothing"
    package = "tilescout.spaces.cublaslt"
    sources = ("operation.py", "product.py")
    workload = "tilescout.spaces.gemm:Gemm"
    loader = "tilescout.spaces.cublaslt.loader:CublasLt"
    archs: tuple[str, ...] = ("sm_90a", "sm_100a", "sm_120a")
    knobs = tuple(Knob(name, values, _MEANING[name]) for name, values in VALUES.items())

    def default(self, problem: GemmProblem, device: Device) -> Configuration:
        raise _unknown(self.name, "default")

    def stock(self, problem: GemmProblem, device: Device) -> Sequence[Configuration]:
        """Nothing: none of its kernels is compiled."""
        return ()

    def default_in(self, space: SearchSpace[GemmProblem]) -> Configuration:
        """The first guess of the library's heuristic, which it runs unless it is told.

        Raises
        ------
        SpaceError
            If the space lacks it.
        """
        first = (space.columns["guess"] == 1).nonzero()[0]
        if not len(first):
            raise SpaceError(f"{self.name}: the first guess of the library for {space.problem} is missing")
        return space[int(first[0])]

    def first_in(self, space: SearchSpace[GemmProblem]) -> Sequence[int]:
        """The next guesses of the library's heuristic, the best first."""
        guess = space.columns["guess"]
        listed = np.flatnonzero((guess > 1) & (guess <= _FIRST))
        return [int(index) for index in listed[np.argsort(guess[listed])]]

    def space(self, problem: GemmProblem, device: Device) -> SearchSpace[GemmProblem]:
        self.check(problem)
        raise _unknown(self.name, "algorithms")

    def space_of(self, codes: ArrayLike, problem: GemmProblem, device: Device) -> SearchSpace[GemmProblem] | None:
        """The space of configurations that the library said are legal, here or when a table was recorded."""
        self.check(problem)
        if device.arch not in self.archs:
            raise SpaceError(f"{self.name} is for {', '.join(self.archs)}, not for {device.arch} ({device.name})")
        if np.size(codes) == 0:
            return None
        return SearchSpace.of_codes(self.name, self.knobs, codes, problem, device)

    def tiling(self, columns: Columns, problem: GemmProblem) -> Tiling:
        # The library computes D.T: rows of its tiles and clusters are columns of ours.
        tiles, clusters = tile_shapes()[columns["tile"]], cluster_shapes()[columns["cluster"]]
        rows, wide = tiles[:, 1], tiles[:, 0]
        option, newest = columns["custom_option"], columns["algorithm"] == _NVJET
        groups = np.where(newest & (option & _TWO_GROUPS == 0), 1, 2)
        depth = np.full_like(rows, 128 // problem.element.bytes)
        stage = (rows + wide) * depth * problem.element.bytes
        available = find_device("h200").shared_memory  # the same on all devices that it lists kernels for
        epilogue = np.minimum(rows * wide * problem.result.bytes, _EPILOGUE)
        stages = np.maximum((available - 1024 - epilogue) // stage, 2)
        return Tiling(
            product=problem,
            rows=rows,
            columns=wide,
            depth=depth,
            cluster_m=clusters[:, 1],
            cluster_n=clusters[:, 0],
            split_k=np.maximum(columns["split_k"], 1),
            stages=stages,
            swizzle=1 + 7 * columns["swizzle"],
            along_m=np.asarray(option & _ALONG_COLUMNS == 0),
            warp_groups=groups,
            ping_pong=np.zeros(len(rows), dtype=np.bool_),
            mma_columns=np.where(newest, np.minimum(np.where(option & _ROWS_FIRST, rows, wide), 256), _OLDER_MMA),
            accumulators=np.maximum(rows * wide // (128 * groups), 1),
            shared_memory=np.minimum(1024 + epilogue + stages * stage, available),
            early_launch=np.zeros(len(rows), dtype=np.bool_),
            split_in_cluster=False,
        )

    def build(self, configuration: Mapping[str, Value], signature: str, arch: str, path: Path) -> Built:
        path.write_text(describe(configuration, signature))
        return Built("cublasLtMatmul", None)


class FastCublasLtTemplate(CublasLtTemplate):
    """The template of ``cublaslt_fast``: the same for e4m3 with fast accumulation.

    Sums of 8-bit products are then not promoted to fp32 on the way (`use_fast_accum` of `torch._scaled_mm`). That is
    less accurate, and another computation than that of the library's default, which speeds are over.
    """

    name = "cublaslt_fast"
    summary = "the same for e4m3, with fast accumulation"
    loader = "tilescout.spaces.cublaslt.loader:FastCublasLt"
    fast_sums = True

    def check(self, problem: GemmProblem) -> None:
        if problem.element.bytes != 1:
            raise ProblemError(f"{self.name}: only sums of e4m3 can be accumulated fast, not those of {problem.dtype}")


def _unknown(name: str, what: str) -> SpaceError:
    return SpaceError(f"{name}: only the library knows its {what}: search where there is a GPU, or replay a table")


TEMPLATE, FAST = CublasLtTemplate(), FastCublasLtTemplate()
