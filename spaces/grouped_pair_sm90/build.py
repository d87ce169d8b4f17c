"""Compile two grouped kernels and the choice between them to one object file, with no GPU."""

from pathlib import Path

from cutlass import Int32, Uint8, cute
from cutlass.cute.runtime import make_fake_compact_tensor

from tilescout.spaces.building import compile_object
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import GemmSm90
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT, GemmShape
from tilescout.spaces.grouped import GroupedProblem
from tilescout.spaces.grouped_gemm_sm90.kernel import GroupedGemmSm90
from tilescout.spaces.grouped_gemm_sm90.layout import block_bytes
from tilescout.spaces.grouped_pair_sm90.kernel import GroupedPairSm90
from tilescout.spaces.grouped_pair_sm90.rule import PairRule
from tilescout.spaces.templates import Built

FUNCTION = "grouped_pair_sm90"
_OFFSET_BYTES = 4

Parameters = tuple[GemmShape, bool, bool]
"""The compile-time parameters of a kernel of ``grouped_gemm_sm90``: see its `build_object`."""


def build_object(first: Parameters, second: Parameters, rule: PairRule, problem: GroupedProblem, path: Path) -> Built:
    """Write the object file: ``grouped_pair_sm90(a, b, ends, d, max_blocks, workspace)``.

    Parameters
    ----------
    first, second
        The two kernels.
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
    kernels = [
        GroupedGemmSm90(GemmSm90(shape, GemmProblem.small(problem.signature)), mixed, trim)
        for shape, mixed, trim in (first, second)
    ]
    element, step = kernels[0].gemm.element, ALIGNMENT // problem.element.bytes
    experts, tokens = cute.sym_int(symbol="experts"), cute.sym_int(symbol="tokens")
    n, k = (cute.sym_int(divisibility=step, symbol=name) for name in "nk")

    def tensor(*sizes: cute.SymInt) -> cute.Tensor:
        order = tuple(reversed(range(len(sizes))))
        return make_fake_compact_tensor(element, sizes, stride_order=order, assumed_align=ALIGNMENT)

    ends = make_fake_compact_tensor(Int32, (experts,), assumed_align=_OFFSET_BYTES)
    workspace = make_fake_compact_tensor(Uint8, (cute.sym_int(symbol="bytes"),), assumed_align=ALIGNMENT)
    arguments = (tensor(tokens, k), tensor(experts, n, k), ends, tensor(tokens, n), Int32(1), workspace)
    compile_object(GroupedPairSm90(kernels[0], kernels[1], rule), arguments, path, FUNCTION)
    return Built(FUNCTION, max(block_bytes(shape, problem.element.bytes) for shape, _, _ in (first, second)))
