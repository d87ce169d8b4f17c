"""Compile a ``grouped_swiglu_sm90`` kernel to an object file, with no GPU."""

import struct
from pathlib import Path

from cutlass import Int32, cute
from cutlass.cute.runtime import make_fake_compact_tensor

from tilescout.spaces.building import compile_object
from tilescout.spaces.errors import BuildError
from tilescout.spaces.gated import GatedProblem
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT, GemmShape
from tilescout.spaces.grouped_swiglu_sm90.kernel import GatedGemm, GroupedSwigluSm90
from tilescout.spaces.grouped_swiglu_sm90.layout import INTERLEAVED, block_bytes
from tilescout.spaces.templates import Built

FUNCTION = "grouped_swiglu_sm90"
_OFFSET_BYTES = 4


def build_object(shape: GemmShape, mixed: bool, trim: bool, problem: GatedProblem, path: Path) -> Built:
    """Write the object file; its entry point is ``grouped_swiglu_sm90(a, b, ends, d, max_clusters)``.

    All sizes are dynamic; rows are promised to be multiples of 16 bytes. The kernel runs on the caller's current
    stream.

    Parameters
    ----------
    shape, mixed, trim
        The compile-time parameters: see `GroupedSwigluSm90`.
    problem
        A problem of the signature.
    path
        The file.

    Raises
    ------
    BuildError
        If CuteDSL or ptxas refuse the configuration.
    """
    gemm, step = GatedGemm(shape, GemmProblem.small(problem.dtype)), ALIGNMENT // problem.element.bytes
    experts, tokens = cute.sym_int(symbol="experts"), cute.sym_int(symbol="tokens")
    n, half = cute.sym_int(divisibility=2 * INTERLEAVED, symbol="n"), cute.sym_int(divisibility=step, symbol="half")
    k = cute.sym_int(divisibility=step, symbol="k")

    def tensor(*sizes: cute.SymInt) -> cute.Tensor:
        order = tuple(reversed(range(len(sizes))))
        return make_fake_compact_tensor(gemm.element, sizes, stride_order=order, assumed_align=ALIGNMENT)

    ends = make_fake_compact_tensor(Int32, (experts,), assumed_align=_OFFSET_BYTES)
    arguments = (tensor(tokens, k), tensor(experts, n, k), ends, tensor(tokens, half), Int32(1))
    compile_object(GroupedSwigluSm90(gemm, mixed, trim, problem.pairs), arguments, path, FUNCTION)
    needed = block_bytes(shape, problem.element.bytes)
    # The launch code stores the size as an immediate operand. That it is there proves the arithmetic that the rules
    # rest on against what the compiler laid out.
    if struct.pack("<I", needed) not in path.read_bytes():
        raise BuildError(f"the kernel does not ask for the {needed} bytes of shared memory that were computed")
    return Built(FUNCTION, needed)
