"""Compile a CuteDSL entry point to an object file, with no GPU: what the `build` of a template calls."""

import struct
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescout.spaces.errors import BuildError
from tilescout.spaces.faults import described
from tilescout.spaces.problems import DType

if TYPE_CHECKING:
    from cutlass import cute

_ELEMENTS = {"bf16": "BFloat16", "fp16": "Float16", "fp32": "Float32", "e4m3": "Float8E4M3FN"}


def import_compiler() -> None:
    """Import CuteDSL, for a process that only writes object files: in half the time, and compiling a fifth faster.

    TVM FFI imports torch to get ahead of a conflict on Windows, and uses it for nothing that is done here: without it
    the import takes 0.5 instead of 1.5 CPU seconds, and 170 instead of 350 MB. And CuteDSL would compile host code a
    second time and load it, to call the kernel in this process: without that, a kernel of ``gemm_sm90`` took 0.45 to
    0.50 instead of 0.56 to 0.62 CPU seconds, with the same bytes as the result (7 configurations, 2 cores, 2026-11-22).
    """
    torch = sys.modules.get("torch")
    if torch is None:
        sys.modules["torch"] = None  # type: ignore[assignment]  # an import of it raises ImportError
    try:
        import tvm_ffi  # noqa: F401
    finally:
        if torch is None:
            del sys.modules["torch"]  # a kernel may need it
    from cutlass import cute

    if not isinstance(cute.compile, partial):
        cute.compile = partial(cute.compile, no_jit_engine=True)


def element_type(dtype: DType) -> Any:
    """CuteDSL's name for an element type."""
    import cutlass

    return getattr(cutlass, _ELEMENTS[dtype.name])


def row_major(dtype: DType, vector: int) -> "cute.Tensor":
    """The stand-in, when a kernel is compiled, for a row-major matrix of any number of rows.

    The number of columns is a multiple of `vector`, so that the kernel may read and write `vector` elements at a time.
    """
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_compact_tensor

    shape = cute.sym_int(symbol="rows"), cute.sym_int(divisibility=vector, symbol="columns")
    return make_fake_compact_tensor(element_type(dtype), shape, stride_order=(1, 0), assumed_align=vector * dtype.bytes)


def compile_object(entry: Callable[..., None], arguments: Sequence[Any], path: Path, function: str) -> Any:
    """Write the object file of an entry point.

    Parameters
    ----------
    entry
        A function or object that ``cute.compile`` takes; it is called with the arguments and a stream.
    arguments
        The stand-ins for its arguments at run time: tensors of ``cutlass.cute.runtime.make_fake_compact_tensor``, whose
        sizes ``cute.sym_int`` leaves open, and numbers.
    path
        The file to write.
    function
        The name of the function in the file. It takes torch tensors and numbers, and runs on the caller's current
        stream.

    Returns
    -------
    object
        What CuteDSL compiled.

    Raises
    ------
    BuildError
        If CuteDSL, the kernel's own code or ptxas refuse.
    """
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_stream

    try:
        stream = make_fake_stream(use_tvm_ffi_env_stream=True)
        compiled = cute.compile(entry, *arguments, stream, options="--enable-tvm-ffi")
        compiled.export_to_c(str(path), function_name=function)
        return compiled
    except Exception as error:  # CuteDSL raises many types, without a common base
        raise BuildError(described(error)) from error


def check_shared_memory(path: Path, needed: int) -> None:
    """Refuse an object file whose kernel asks for another number of bytes of shared memory than was computed.

    The launch code stores the size as an immediate operand. That it is there proves the arithmetic that the rules of a
    space rest on against what the compiler laid out.

    Raises
    ------
    BuildError
        If it is not there.
    """
    if struct.pack("<I", needed) not in path.read_bytes():
        raise BuildError(f"the kernel does not ask for the {needed} bytes of shared memory that were computed")
