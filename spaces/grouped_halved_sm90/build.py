"""Compile a ``grouped_halved_sm90`` kernel to an object file, with no GPU."""

from pathlib import Path

from tilescout.spaces.building import check_shared_memory, compile_object
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import GemmSm90
from tilescout.spaces.gemm_sm90.layout import GemmShape
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_building import stand_ins
from tilescout.spaces.grouped_gemm_sm90.layout import block_bytes
from tilescout.spaces.grouped_halved_sm90.kernel import GroupedHalvedSm90
from tilescout.spaces.templates import Built

FUNCTION = "grouped_halved_sm90"


def build_object(shape: GemmShape, mixed: bool, problem: GroupedProblem, path: Path) -> Built:
    """Write the object file; its entry point is ``grouped_halved_sm90(a, b, ends, d, max_clusters)``.

    Parameters
    ----------
    shape, mixed
        The compile-time parameters: see `GroupedHalvedSm90`.
    problem
        A problem of the signature.
    path
        The file.

    Raises
    ------
    BuildError
        If CuteDSL or ptxas refuse the configuration.
    """
    generator = GroupedHalvedSm90(GemmSm90(shape, GemmProblem.small(problem.signature)), mixed, trim=True)
    compile_object(generator.halving, stand_ins(problem), path, FUNCTION)
    needed = block_bytes(shape, problem.element.bytes)
    check_shared_memory(path, needed)
    return Built(FUNCTION, needed)
