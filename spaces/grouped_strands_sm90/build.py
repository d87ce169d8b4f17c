"""Compile a ``grouped_strands_sm90`` kernel to an object file, with no GPU."""

from pathlib import Path

from cutlass import Uint8, cute
from cutlass.cute.runtime import make_fake_compact_tensor

from tilescout.spaces.building import check_shared_memory, compile_object
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import GemmSm90
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT, GemmShape
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_building import stand_ins
from tilescout.spaces.grouped_gemm_sm90.layout import block_bytes
from tilescout.spaces.grouped_strands_sm90.kernel import GroupedStrandsSm90
from tilescout.spaces.grouped_strands_sm90.order import Walk
from tilescout.spaces.templates import Built

FUNCTION = "grouped_strands_sm90"


def build_object(shape: GemmShape, walk: Walk, problem: GroupedProblem, path: Path) -> Built:
    """Write the object file; its entry point is ``grouped_strands_sm90(a, b, ends, d, max_clusters[, workspace])``.

    Parameters
    ----------
    shape, walk
        The compile-time parameters.
    problem
        A problem of the signature.
    path
        The file.

    Raises
    ------
    BuildError
        If CuteDSL or ptxas refuse the configuration.
    """
    gemm = GemmSm90(shape, GemmProblem.small(problem.signature))
    generator = GroupedStrandsSm90(gemm, walk.mixed, walk.trim, walk.strands)
    arguments = stand_ins(problem)
    if walk.shares:
        workspace = make_fake_compact_tensor(Uint8, (cute.sym_int(symbol="bytes"),), assumed_align=ALIGNMENT)
        compile_object(generator.sharing, (*arguments, workspace), path, FUNCTION)
    else:
        compile_object(generator, arguments, path, FUNCTION)
    needed = block_bytes(shape, problem.element.bytes)
    check_shared_memory(path, needed)
    return Built(FUNCTION, needed)
