"""The grouped product of ``grouped_gemm_sm90`` with its rows scaled, in CuteDSL.

The kernel is that one's, but for what its stores do. What they need more, the numbers of the rows, takes the way of the
view of D that TMA stores to, which the kernel hands on to them as it is.

Importing this module imports cutlass; nothing but the compile workers does.
"""

from dataclasses import dataclass, fields
from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Int32, cute, extract_mlir_values, new_from_mlir_values, pipeline

from tilescout.spaces.grouped_gemm_sm90.epilogue import Store
from tilescout.spaces.grouped_gemm_sm90.groups import Groups
from tilescout.spaces.grouped_gemm_sm90.kernel import GroupedGemmSm90, Operand
from tilescout.spaces.grouped_scaled_sm90.epilogue import ScaledStore


@cute.Tensor.register  # kernels are told the types of their arguments
@dataclass(frozen=True)
class ScaledView:
    """The product D as TMA sees it, and the number of each of its rows, as one argument of a kernel."""

    d: cute.Tensor
    scale: cute.Tensor

    def __extract_mlir_values__(self) -> list[Any]:
        return [*extract_mlir_values(self.d), *extract_mlir_values(self.scale)]

    def __new_from_mlir_values__(self, values: list[Any]) -> "ScaledView":
        of_d = len(extract_mlir_values(self.d))
        return ScaledView(new_from_mlir_values(self.d, values[:of_d]), new_from_mlir_values(self.scale, values[of_d:]))


@dataclass(frozen=True)
class ScalingGemm(GroupedGemmSm90):
    """A kernel generator whose kernel finds the numbers of the rows beside the view of D."""

    def consume(
        self,
        operands: tuple[Operand, Operand],
        ring: pipeline.PipelineTmaAsync,
        groups: Groups,
        stores: Store,
        count: Int32,
        k_tiles: Int32,
    ) -> Any:
        """Drain the ring and store each finished tile, scaled: a consumer warp group."""
        given = {field.name: getattr(stores, field.name) for field in fields(stores)}
        view = given.pop("d_tma")
        scaling = ScaledStore(**given, d_tma=view.d, scale=view.scale)
        return GroupedGemmSm90.consume(self, operands, ring, groups, scaling, count, k_tiles)


@dataclass(frozen=True)
class _Launch(ScalingGemm):
    """A launch of its kernel with the numbers of the rows, [tokens]."""

    scale: cute.Tensor

    def kernel(self, *arguments: Any) -> Any:
        """The kernel, to be launched on its arguments with the numbers beside the view of D."""
        *operands, d_tma, ends, d, across = arguments
        scaling = ScalingGemm(self.gemm, self.mixed, self.trim)  # a kernel can't hold what the host does
        return scaling.kernel(*operands, ScaledView(d_tma, self.scale), ends, d, across)


@dataclass(frozen=True)
class GroupedScaledSm90:
    """A kernel generator: its entry point under ``cute.compile`` emits the kernel.

    Attributes
    ----------
    grouped
        The product without a scale.
    """

    grouped: GroupedGemmSm90

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        ends: cute.Tensor,
        scale: cute.Tensor,
        d: cute.Tensor,
        clusters: Int32,
        stream: cuda.CUstream,
    ) -> None:
        """Launch on the operands of `GroupedGemmSm90`, and the number of each row in fp32 [tokens]."""
        launch = _Launch(self.grouped.gemm, self.grouped.mixed, self.grouped.trim, scale)
        launch(a, b, ends, d, clusters, stream)
