"""Compile a ``grouped_scaled_sm90`` kernel to an object file, with no GPU."""

from pathlib import Path

from cutlass import Float32

from tilescout.spaces.building import check_shared_memory, compile_object
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import GemmSm90
from tilescout.spaces.gemm_sm90.layout import GemmShape
from tilescout.spaces.grouped_building import stand_ins
from tilescout.spaces.grouped_gemm_sm90.kernel import GroupedGemmSm90
from tilescout.spaces.grouped_gemm_sm90.layout import block_bytes
from tilescout.spaces.grouped_scaled_sm90.kernel import GroupedScaledSm90
from tilescout.spaces.scaled import ScaledProblem
from tilescout.spaces.templates import Built

FUNCTION = "grouped_scaled_sm90"


def build_object(shape: GemmShape, mixed: bool, trim: bool, problem: ScaledProblem, path: Path) -> Built:
    """Write the object file; its entry point is ``grouped_scaled_sm90(a, b, ends, scale, d, max_clusters)``.

    Parameters
    ----------
    shape, mixed, trim
        The compile-time parameters: see `GroupedGemmSm90`.
    problem
        A problem of the signature.
    path
        The file.

    Raises
    ------
    BuildError
        If CuteDSL or ptxas refuse the configuration.
    """
    grouped = GroupedGemmSm90(GemmSm90(shape, GemmProblem.small(problem.dtype)), mixed, trim)
    compile_object(GroupedScaledSm90(grouped), stand_ins(problem, Float32), path, FUNCTION)
    needed = block_bytes(shape, problem.element.bytes)
    check_shared_memory(path, needed)
    return Built(FUNCTION, needed)
