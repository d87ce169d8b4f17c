"""Compile two grouped kernels and the choice between them to one object file, with no GPU."""

from collections.abc import Sequence
from pathlib import Path

from cutlass import Uint8, cute
from cutlass.cute.runtime import make_fake_compact_tensor

from tilescout.spaces.building import compile_object
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import GemmSm90
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_building import stand_ins
from tilescout.spaces.grouped_gemm_sm90.kernel import GroupedGemmSm90
from tilescout.spaces.grouped_gemm_sm90.layout import block_bytes
from tilescout.spaces.grouped_gemm_sm90.template import shape_of
from tilescout.spaces.grouped_pair_sm90.kernel import GroupedPairSm90
from tilescout.spaces.grouped_pair_sm90.rule import PairRule
from tilescout.spaces.grouped_streamk_sm90.kernel import GroupedStreamKSm90
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import Built

FUNCTION = "grouped_pair_sm90"


def build_object(sides: Sequence[Configuration], rule: PairRule, problem: GroupedProblem, path: Path) -> Built:
    """Write the object file: ``grouped_pair_sm90(a, b, ends, d, max_blocks, workspace)``.

    Parameters
    ----------
    sides
        The two kernels, of ``grouped_streamk_sm90``.
    rule
        Which of them runs.
    problem
        A problem of the signature.
    path
        The file.

    Raises
    ------
    BuildError
        If CuteDSL or ptxas refuse the configuration.
    """
    first, second = (_generator(each, problem) for each in sides)
    workspace = make_fake_compact_tensor(Uint8, (cute.sym_int(symbol="bytes"),), assumed_align=ALIGNMENT)
    compile_object(GroupedPairSm90(first, second, rule), (*stand_ins(problem), workspace), path, FUNCTION)
    return Built(FUNCTION, max(block_bytes(each.shape, problem.element.bytes) for each in (first, second)))


def _generator(configuration: Configuration, problem: GroupedProblem) -> GroupedGemmSm90:
    gemm = GemmSm90(shape_of(configuration), GemmProblem.small(problem.signature))
    kind = GroupedStreamKSm90 if configuration["shares"] else GroupedGemmSm90
    return kind(gemm, configuration["order"] == "mixed", configuration["trim"] == 1)
