"""Compile a ``gemm_sm90`` kernel to an object file, with no GPU."""

import struct
from pathlib import Path

from cutlass import Float32, Int32, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from tilescout.spaces.errors import BuildError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import ELEMENTS, GemmSm90
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT, GemmShape, steps
from tilescout.spaces.templates import Built

FUNCTION = "gemm_sm90"


def build_object(shape: GemmShape, problem: GemmProblem, path: Path) -> Built:
    """Write the object file; its entry point is ``gemm_sm90(a, b[, alpha][, bias], d, max_clusters)``.

    All sizes are dynamic; contiguous rows are promised to be multiples of 16 bytes. The kernel runs on the caller's
    current stream.

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

    generator = GemmSm90(shape, problem)
    arguments = [operand(m, problem.layout[0] == "k"), operand(n, problem.layout[1] == "k")]
    if problem.alpha:
        arguments.append(make_fake_compact_tensor(Float32, (1,), assumed_align=4))
    if problem.bias:
        arguments.append(make_fake_compact_tensor(result, (n,), assumed_align=result.width // 8))
    arguments.append(make_fake_compact_tensor(result, (batch, m, n), stride_order=(2, 1, 0), assumed_align=ALIGNMENT))
    try:
        stream = make_fake_stream(use_tvm_ffi_env_stream=True)
        compiled = cute.compile(generator.entry(), *arguments, Int32(1), stream, options="--enable-tvm-ffi")
        compiled.export_to_c(str(path), function_name=FUNCTION)
    except Exception as error:  # CuteDSL raises many types, without a common base
        raise BuildError(f"{type(error).__name__}: {error}") from error
    bytes_needed = shape.shared_memory(problem.element.bytes, problem.result.bytes)
    # The launch code stores the size as an immediate operand. That it is there proves the arithmetic that the rules
    # rest on against what the compiler laid out.
    if struct.pack("<I", bytes_needed) not in path.read_bytes():
        raise BuildError(f"the kernel does not ask for the {bytes_needed} bytes of shared memory that were computed")
    return Built(FUNCTION, bytes_needed)
