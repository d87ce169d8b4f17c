"""Compile another project's matrix product to an object file that is launched as ours are, with no GPU."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cutlass import Int32, Uint8, cute
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from tilescout.spaces.errors import BuildError
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.gemm_sm90.kernel import ELEMENTS
from tilescout.spaces.gemm_sm90.layout import ALIGNMENT, steps
from tilescout.spaces.templates import Built

# CUDA's launch configuration in the host code: grid, block, bytes of shared memory, stream, attributes, their number.
_CONFIG = r"!llvm\.struct<\(array<3 x i32>, array<3 x i32>, i64, ptr, ptr, i32\)>"
_SHARED = re.compile(rf"(%\d+) = llvm\.getelementptr %\d+\[0, 2\] : [^\n]*{_CONFIG}\s+llvm\.store (%\d+), \1 : i64")


def build_object(
    make_entry: Callable[[], Any], problem: GemmProblem, function: str, path: Path, scratch: bool = False
) -> Built:
    """Write the object file; its entry point is ``function(a, b, d, max_clusters[, scratch])``.

    All sizes are dynamic; contiguous rows are promised to be multiples of 16 bytes. The kernel runs on the caller's
    current stream.

    Parameters
    ----------
    make_entry
        Makes what CuteDSL compiles: a callable of A [batch, m, k], B [batch, n, k], D [batch, m, n], the clusters that
        run at a time, scratch memory if it needs any, and a stream.
    problem
        A problem of the signature.
    function
        Name of the entry point.
    path
        The file.
    scratch
        Whether it needs scratch memory, which it gets as a vector of bytes.

    Raises
    ------
    BuildError
        If the library, CuteDSL or ptxas refuse the configuration.
    """
    element, result = ELEMENTS[problem.dtype], ELEMENTS[problem.out]
    batch = cute.sym_int(symbol="batch")
    m, n, k = (cute.sym_int(divisibility=step, symbol=name) for name, step in steps(problem).items())

    def tensor(rows: cute.SymInt, columns: cute.SymInt, dtype: Any, row_major: bool = True) -> cute.Tensor:
        order = (2, 1, 0) if row_major else (2, 0, 1)
        return make_fake_compact_tensor(dtype, (batch, rows, columns), stride_order=order, assumed_align=ALIGNMENT)

    a = tensor(m, k, element, problem.layout[0] == "k")
    b = tensor(n, k, element, problem.layout[1] == "k")
    try:
        stream = make_fake_stream(use_tvm_ffi_env_stream=True)
        memory = [make_fake_compact_tensor(Uint8, (cute.sym_int(),), assumed_align=ALIGNMENT)] if scratch else []
        arguments = (a, b, tensor(m, n, result), Int32(1), *memory, stream)
        compiled = cute.compile(make_entry(), *arguments, options="--enable-tvm-ffi")
        compiled.export_to_c(str(path), function_name=function)
        return Built(function, launched_with(str(compiled.ir_module)))
    except Exception as error:  # the libraries assert, CuteDSL raises many types, without a common base
        raise BuildError(f"{type(error).__name__}: {error}") from error


def launched_with(host_code: str) -> int:
    """Bytes of dynamic shared memory that the launches in host code, LLVM's dialect of MLIR, ask for: the largest.

    Raises
    ------
    BuildError
        If there is no launch.
    """
    found = []
    for launch in _SHARED.finditer(host_code):
        # Values are numbered anew in each function: the last definition before the launch is the one.
        constants = re.findall(rf"{launch[2]} = llvm\.mlir\.constant\((\d+) : i64\)", host_code[: launch.start()])
        found += [int(value) for value in constants[-1:]]
    if not found:
        raise BuildError("the compiled host code holds no launch whose shared memory is known")
    return max(found)
