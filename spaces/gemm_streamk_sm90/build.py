"""Compile a ``gemm_streamk_sm90`` kernel to an object file, with no GPU."""

import struct
from pathlib import Path

from cutlass import Float32, Int32, Uint8, cute
from cutlass.cute.runtime import make_fake_compact_tensor

from tilescout.spaces.building import compile_object
from tilescout.spaces.errors import BuildError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import ELEMENTS
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT, steps
from tilescout.spaces.gemm_streamk_sm90.kernel import GemmStreamKSm90
from tilescout.spaces.gemm_streamk_sm90.launch import LaunchedShape
from tilescout.spaces.templates import Built

FUNCTION = "gemm_streamk_sm90"


def build_object(shape: LaunchedShape, shares: bool, launch_number: int, problem: GemmProblem, path: Path) -> Built:
    """Write the object file: ``gemm_streamk_sm90(a, b[, alpha][, bias], d, max_clusters[, workspace])``.

    All sizes are dynamic; contiguous rows are promised to be multiples of 16 bytes. The kernels run on the caller's
    current stream.

    Parameters
    ----------
    shape, shares, launch_number
        See `GemmStreamKSm90`.
    problem
        A problem of the signature.
    path
        The file.

    Raises
    ------
    BuildError
        If CuteDSL or ptxas refuse the configuration.
    """
    element, result = ELEMENTS[problem.dtype], ELEMENTS[problem.out]
    batch = cute.sym_int(symbol="batch")
    m, n, k = (cute.sym_int(divisibility=step, symbol=name) for name, step in steps(problem).items())

    def operand(rows: cute.SymInt, k_major: bool) -> cute.Tensor:
        order = (2, 1, 0) if k_major else (2, 0, 1)
        return make_fake_compact_tensor(element, (batch, rows, k), stride_order=order, assumed_align=ALIGNMENT)

    generator = GemmStreamKSm90(shape, problem, shares, launch_number)
    arguments = [operand(m, problem.layout[0] == "k"), operand(n, problem.layout[1] == "k")]
    if problem.alpha:
        arguments.append(make_fake_compact_tensor(Float32, (1,), assumed_align=4))
    if problem.bias:
        arguments.append(make_fake_compact_tensor(result, (n,), assumed_align=result.width // 8))
    arguments.append(make_fake_compact_tensor(result, (batch, m, n), stride_order=(2, 1, 0), assumed_align=ALIGNMENT))
    arguments.append(Int32(1))
    if generator.shares:
        arguments.append(make_fake_compact_tensor(Uint8, (cute.sym_int(symbol="bytes"),), assumed_align=ALIGNMENT))
    compile_object(generator.run, arguments, path, FUNCTION)
    needed = shape.shared_memory(problem.element.bytes, problem.result.bytes)
    # The launch code stores the size as an immediate operand. That it is there proves the arithmetic that the rules
    # rest on against what the compiler laid out.
    if struct.pack("<I", needed) not in path.read_bytes():
        raise BuildError(f"the kernel does not ask for the {needed} bytes of shared memory that were computed")
    return Built(FUNCTION, needed)
