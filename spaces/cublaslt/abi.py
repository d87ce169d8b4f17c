"""The functions of cuBLASLt that choose and run an algorithm, called through ctypes.

The library is the one that torch has loaded: its algorithms are those among which `torch.mm` has its choice, and no
package is needed that torch does not bring. A dozen functions of a C ABI that is stable within a major version are
called; bindings such as nvmath-python wrap the same functions, and would be one more package in every process that
measures or runs an exported model. Sizes of structures and values of enumerations are those of `cublasLt.h` 13.1; every
attribute was set once in the library of that version, which refuses a wrong size.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import (
    POINTER,
    byref,
    c_float,
    c_int,
    c_int8,
    c_int32,
    c_int64,
    c_size_t,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from tilescout.spaces.errors import DeviceError, SpaceError

NAME = "libcublasLt.so"
_MAPS = Path("/proc/self/maps")


class DataType(IntEnum):
    """`cudaDataType_t`."""

    FP32 = 0
    FP16 = 2
    BF16 = 14
    E4M3 = 28


COMPUTE_32F = 68  # CUBLAS_COMPUTE_32F: sums in fp32
POINTERS_ON_DEVICE = 1  # CUBLASLT_POINTER_MODE_DEVICE
BEST_FIT, ONE_ALGORITHM = 0, 1  # CUBLASLT_SEARCH_BEST_FIT, CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID
_SUCCESS, _NOT_SUPPORTED = 0, 15
_STATUS = {
    1: "not initialised", 3: "out of memory", 7: "invalid value", 8: "not for this GPU", 11: "memory mapping failed",
    13: "execution failed", 14: "internal error", _NOT_SUPPORTED: "not supported",
}  # fmt: skip


class Epilogue(IntEnum):
    """`cublasLtEpilogue_t`; its parts may be or-ed. The library's GELU is an approximation, and not among them."""

    NONE = 1
    RELU = 2
    BIAS = 4


class Attribute(Enum):
    """An attribute of something that the library knows: its number, and the C type of its value."""

    def __init__(self, number: int, kind: Any) -> None:
        self.number, self.kind = number, kind


class Desc(Attribute):
    """`cublasLtMatmulDescAttributes_t`."""

    POINTER_MODE = 2, c_int32
    TRANSPOSE_A = 3, c_int32
    TRANSPOSE_B = 4, c_int32
    EPILOGUE = 7, c_uint32
    BIAS = 8, c_void_p
    SCALE_A = 17, c_void_p
    SCALE_B = 18, c_void_p
    FAST_ACCUMULATION = 25, c_int8
    BIAS_TYPE = 26, c_int32


class Layout(Attribute):
    """`cublasLtMatrixLayoutAttribute_t`."""

    BATCH = 5, c_int32
    BATCH_STRIDE = 6, c_int64


class Preference(Attribute):
    """`cublasLtMatmulPreferenceAttributes_t`."""

    SEARCH = 0, c_uint32
    WORKSPACE = 1, c_uint64


class Cap(Attribute):
    """`cublasLtMatmulAlgoCapAttributes_t`: what an algorithm can be told."""

    SPLIT_K = 0, c_int32
    REDUCTIONS = 1, c_uint32
    SWIZZLE = 2, c_uint32
    TILES = 6, c_uint32
    CUSTOM_OPTION = 7, c_int32
    STAGES = 13, c_uint32
    ALIGNMENT_A = 16, c_uint32
    ALIGNMENT_B = 17, c_uint32
    ALIGNMENT_C = 18, c_uint32
    ALIGNMENT_D = 19, c_uint32


class Config(Attribute):
    """`cublasLtMatmulAlgoConfigAttributes_t`: what an algorithm is told."""

    ID = 0, c_int32
    TILE = 1, c_uint32
    SPLIT_K = 2, c_int32
    REDUCTION = 3, c_uint32
    SWIZZLE = 4, c_uint32
    CUSTOM_OPTION = 5, c_uint32
    STAGES = 6, c_uint32
    INNER_SHAPE = 7, c_uint16
    CLUSTER = 8, c_uint16


SETTABLE = {
    Desc: "cublasLtMatmulDescSetAttribute",
    Layout: "cublasLtMatrixLayoutSetAttribute",
    Preference: "cublasLtMatmulPreferenceSetAttribute",
    Config: "cublasLtMatmulAlgoConfigSetAttribute",
}
"""The function that sets the attributes of a class."""


class Algorithm(ctypes.Structure):
    """`cublasLtMatmulAlgo_t`: an algorithm with its configuration, opaque; holds for one version of the library."""

    _fields_ = (("data", c_uint64 * 8),)


class Found(ctypes.Structure):
    """`cublasLtMatmulHeuristicResult_t`: an algorithm for a problem, and the workspace in bytes that it needs there."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class LibraryError(SpaceError):
    """The library refused a call.

    Attributes
    ----------
    status
        Its `cublasStatus_t`.
    """

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function} answered {status} ({_STATUS.get(status, 'unknown')})")
        self.status = status


def loaded_library(maps: Path = _MAPS) -> Path:
    """The file of the library that this process has loaded, by torch or otherwise.

    Raises
    ------
    DeviceError
        If it has loaded none.
    """
    for line in maps.read_text().splitlines():
        path = Path(line.partition("/")[1] + line.partition("/")[2])
        if path.name.startswith(NAME):
            return path
    raise DeviceError(f"torch has loaded no {NAME}: install a torch that is built for CUDA")


def version_of(path: Path) -> str:
    """The version of the library at `path`, for example ``13.1.0``; no device is needed.

    Raises
    ------
    DeviceError
        If it can't be loaded.
    """
    try:
        function = ctypes.CDLL(str(path)).cublasLtGetVersion
    except (OSError, AttributeError) as error:
        raise DeviceError(f"can't use {path}: {error}") from error
    function.restype = c_size_t
    number = int(function())
    return f"{number // 10_000}.{number // 100 % 100}.{number % 100}"


_IN, _OUT = c_void_p, POINTER(c_void_p)
_TYPES_OF_PROBLEM = (c_int,) * 6  # compute, scale, A, B, C, D
_LAYOUTS = (c_void_p,) * 4  # A, B, C, D
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_OUT,),
    "cublasLtMatmulDescCreate": (_OUT, c_int, c_int),
    "cublasLtMatmulDescDestroy": (_IN,),
    "cublasLtMatmulDescSetAttribute": (_IN, c_int, c_void_p, c_size_t),
    "cublasLtMatrixLayoutCreate": (_OUT, c_int, c_uint64, c_uint64, c_int64),
    "cublasLtMatrixLayoutDestroy": (_IN,),
    "cublasLtMatrixLayoutSetAttribute": (_IN, c_int, c_void_p, c_size_t),
    "cublasLtMatmulPreferenceCreate": (_OUT,),
    "cublasLtMatmulPreferenceDestroy": (_IN,),
    "cublasLtMatmulPreferenceSetAttribute": (_IN, c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoGetIds": (_IN, *_TYPES_OF_PROBLEM, c_int, POINTER(c_int), POINTER(c_int)),
    "cublasLtMatmulAlgoInit": (_IN, *_TYPES_OF_PROBLEM, c_int, POINTER(Algorithm)),
    "cublasLtMatmulAlgoCapGetAttribute": (POINTER(Algorithm), c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "cublasLtMatmulAlgoConfigGetAttribute": (POINTER(Algorithm), c_int, c_void_p, c_size_t, POINTER(c_size_t)),
    "cublasLtMatmulAlgoConfigSetAttribute": (POINTER(Algorithm), c_int, c_void_p, c_size_t),
    "cublasLtMatmulAlgoCheck": (_IN, _IN, *_LAYOUTS, POINTER(Algorithm), POINTER(Found)),
    "cublasLtMatmulAlgoGetHeuristic": (_IN, _IN, *_LAYOUTS, _IN, c_int, POINTER(Found), POINTER(c_int)),
    "cublasLtMatmul": (
        *(_IN, _IN),
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),  # alpha, A and its layout, B and its layout
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),  # beta, C and its layout, D and its layout
        *(POINTER(Algorithm), c_void_p, c_size_t, c_void_p),
    ),
}
_MOST_VALUES = 2048  # of a capability that is a list; cublasLt.h 13.1 knows 635 tiles


class Library:
    """The library's functions, with a handle on the current device. It stays loaded as long as the process lives.

    Parameters
    ----------
    path
        The file; it is loaded already, or is loaded now.

    Attributes
    ----------
    version
        As the library tells it, for example ``13.1.0``.

    Raises
    ------
    LibraryError
        If it can't be used here: there is no GPU, or no driver.
    DeviceError
        If it lacks a function.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._library = ctypes.CDLL(str(path))
            for name, arguments in _SIGNATURES.items():
                getattr(self._library, name).argtypes = arguments
        except (OSError, AttributeError) as error:
            raise DeviceError(f"can't use {path}: {error}") from error
        self.version = version_of(path)
        self.handle = self.create("cublasLtCreate")

    def function(self, name: str) -> Callable[..., int]:
        """A function that answers its status, for what is called so often that nothing may stand in between."""
        found: Callable[..., int] = getattr(self._library, name)
        return found

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function.

        Raises
        ------
        LibraryError
            If it answers anything but success.
        """
        status = self.function(function)(*arguments)
        if status != _SUCCESS:
            raise LibraryError(function, status)

    def create(self, function: str, *arguments: Any) -> c_void_p:
        """The thing that a function makes, which it returns in its first argument."""
        made = c_void_p()
        self.call(function, byref(made), *arguments)
        return made

    def set(self, described: Any, attribute: Attribute, value: int | None) -> None:
        """Set an attribute of what the library describes."""
        held = attribute.kind(value)
        self.call(SETTABLE[type(attribute)], described, attribute.number, byref(held), ctypes.sizeof(held))

    def capability(self, algorithm: Algorithm, attribute: Cap) -> int:
        """A capability that is one number."""
        return self._number("cublasLtMatmulAlgoCapGetAttribute", algorithm, attribute)

    def capabilities(self, algorithm: Algorithm, attribute: Cap) -> list[int]:
        """A capability that is a list; ``[0]``, the value for "not defined", where it is empty."""
        function, values, written = "cublasLtMatmulAlgoCapGetAttribute", (c_uint32 * _MOST_VALUES)(), c_size_t()
        self.call(function, byref(algorithm), attribute.number, None, 0, byref(written))
        count = min(written.value // ctypes.sizeof(c_uint32), _MOST_VALUES)
        if count == 0:
            return [0]
        size = count * ctypes.sizeof(c_uint32)
        self.call(function, byref(algorithm), attribute.number, byref(values), size, byref(written))
        return list(values[:count])

    def configured(self, algorithm: Algorithm, attribute: Config) -> int:
        """A part of an algorithm's configuration."""
        return self._number("cublasLtMatmulAlgoConfigGetAttribute", algorithm, attribute)

    def _number(self, function: str, algorithm: Algorithm, attribute: Attribute) -> int:
        held, written = attribute.kind(), c_size_t()
        arguments = (attribute.number, byref(held), ctypes.sizeof(held), byref(written))
        self.call(function, byref(algorithm), *arguments)
        return int(held.value)

    def identifiers(self, types: Sequence[int], most: int) -> list[int]:
        """The algorithms for a combination of types: compute, scale, A, B, C, D."""
        found, count = (c_int * most)(), c_int()
        self.call("cublasLtMatmulAlgoGetIds", self.handle, *types, most, found, byref(count))
        return sorted(found[: count.value])

    def algorithm(self, types: Sequence[int], identifier: int) -> Algorithm:
        """An algorithm with its default configuration."""
        made = Algorithm()
        self.call("cublasLtMatmulAlgoInit", self.handle, *types, identifier, byref(made))
        return made
