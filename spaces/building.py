"""Compile a CuteDSL entry point to an object file, with no GPU: what the `build` of a template calls."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilescout.spaces.errors import BuildError
from tilescout.spaces.problems import DType

if TYPE_CHECKING:
    from cutlass import cute

_ELEMENTS = {"bf16": "BFloat16", "fp16": "Float16", "fp32": "Float32", "e4m3": "Float8E4M3FN"}


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


def compile_object(entry: Callable[..., None], arguments: Sequence[Any], path: Path, function: str) -> None:
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

    Raises
    ------
    BuildError
        If CuteDSL or ptxas refuse.
    """
    from cutlass import cute
    from cutlass.cute.runtime import make_fake_stream

    try:
        stream = make_fake_stream(use_tvm_ffi_env_stream=True)
        cute.compile(entry, *arguments, stream, options="--enable-tvm-ffi").export_to_c(
            str(path), function_name=function
        )
    except Exception as error:  # CuteDSL raises many types, without a common base
        raise BuildError(f"{type(error).__name__}: {error}") from error
