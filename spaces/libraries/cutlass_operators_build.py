"""Compile a matrix product of CUTLASS's Operator API to an object file, with no GPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Float32, Int32, cute
from cutlass.operators.providers.cutedsl.gemm.implementations.operator_helpers import PersistentTileSchedulerType
from cutlass.operators.providers.cutedsl.gemm.implementations.sm90_static_persistent_impl import (
    Sm90StaticPersistentGemmKernel,
)
from cutlass.operators.providers.cutedsl.gemm.implementations.sm100_persistent_impl import PersistentDenseGemmKernel

from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.libraries.build import build_object
from tilescout.spaces.templates import Built

FUNCTION = "cutlass_operators_gemm"
SCHEDULERS = {"dynamic": PersistentTileSchedulerType.CLC, "static": PersistentTileSchedulerType.STATIC_PERSISTENT}


@dataclass(frozen=True)
class HopperEntry:
    """Launches the kernel of ``Sm90StaticPersistentGemmOperator`` on tensors as we pass them."""

    gemm: Any

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, clusters: Int32, stream: cuda.CUstream) -> None:
        """Launch on A [batch, m, k], B [batch, n, k], D [batch, m, n]; the kernel takes B as [batch, k, n]."""
        self.gemm(a, cute.make_tensor(b.iterator, cute.select(b.layout, [0, 2, 1])), d, clusters, stream)


@dataclass(frozen=True)
class BlackwellEntry:
    """Launches the kernel of ``PersistentDenseGemmOperator`` on tensors as we pass them."""

    gemm: Any

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, clusters: Int32, stream: cuda.CUstream) -> None:
        """Launch on A [batch, m, k], B [batch, n, k], D [batch, m, n]; the kernel takes B as [batch, k, n]."""
        b = cute.make_tensor(b.iterator, cute.select(b.layout, [0, 2, 1]))
        self.gemm(a, b, d, stream, clusters, self.gemm.epilogue_op)


def build_gemm(configuration: Configuration, problem: GemmProblem, arch: str, path: Path) -> Built:
    """Write the object file of a configuration of ``cutlass_operators`` or ``cutlass_operators_sm100``.

    Raises
    ------
    BuildError
        If the library, CuteDSL or ptxas refuse the configuration.
    """
    tile, cluster = (tuple(configuration[f"{what}_{axis}"] for axis in "mn") for what in ("tile", "cluster"))

    def make_entry() -> HopperEntry | BlackwellEntry:
        if arch == "sm_90a":
            order = (configuration["swizzle"], configuration["raster"] == "m")
            return HopperEntry(Sm90StaticPersistentGemmKernel(Float32, tile, cluster, *order))
        two_blocks, scheduler = configuration["mma_blocks"] == 2, SCHEDULERS[str(configuration["scheduler"])]
        return BlackwellEntry(
            PersistentDenseGemmKernel(Float32, two_blocks, tile, cluster, True, scheduler, lambda product: product)
        )

    return build_object(make_entry, problem, FUNCTION, path)
