"""Compile a ``gemm_sm90`` kernel to an object file, with no GPU."""

import struct
from pathlib import Path

import cutlass
from cutlass import Int32, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from tilescout.spaces.errors import BuildError
from tilescout.spaces.gemm_sm90.kernel import GemmSm90
from tilescout.spaces.gemm_sm90.layout import GemmShape, shared_memory
from tilescout.spaces.problems import DTYPES
from tilescout.spaces.templates import Built

FUNCTION = "gemm_sm90"
_ELEMENTS = {"bf16": cutlass.BFloat16, "fp16": cutlass.Float16}


def build_object(shape: GemmShape, dtype: str, path: Path) -> Built:
    """Write the object file; its entry point is ``gemm_sm90(a, b, d, max_clusters)``.

    All sizes are dynamic; n and k are promised to be multiples of 8. The kernel runs on the caller's current stream.

    Raises
    ------
    BuildError
        If CuteDSL or ptxas refuse the configuration.
    """
    element = _ELEMENTS[dtype]
    batch, m = cute.sym_int(symbol="batch"), cute.sym_int(symbol="m")
    n, k = cute.sym_int(divisibility=8, symbol="n"), cute.sym_int(divisibility=8, symbol="k")

    def matrix(rows: cute.SymInt, columns: cute.SymInt) -> cute.Tensor:
        return make_fake_compact_tensor(element, (batch, rows, columns), stride_order=(2, 1, 0), assumed_align=16)

    arguments = (matrix(m, k), matrix(n, k), matrix(m, n), Int32(1), make_fake_stream(use_tvm_ffi_env_stream=True))
    try:
        compiled = cute.compile(GemmSm90(shape, element), *arguments, options="--enable-tvm-ffi")
        compiled.export_to_c(str(path), function_name=FUNCTION)
    except Exception as error:  # CuteDSL raises many types, without a common base
        raise BuildError(f"{type(error).__name__}: {error}") from error
    bytes_needed = shared_memory(
        shape.tile_m, shape.tile_n, shape.tile_k, shape.stages, shape.warp_groups, DTYPES[dtype].bytes
    )
    # The launch code stores the size as an immediate operand. That it is there proves the arithmetic that the rules
    # rest on against what the compiler laid out.
    if struct.pack("<I", bytes_needed) not in path.read_bytes():
        raise BuildError(f"the kernel does not ask for the {bytes_needed} bytes of shared memory that were computed")
    return Built(FUNCTION, bytes_needed)
