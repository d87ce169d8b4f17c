"""How many thread-block clusters a GPU runs at the same time."""

import ctypes
from functools import cache

# An empty kernel: with nearly all shared memory of an SM taken, one block fits an SM, as with our kernels.
_PTX = b""".version 7.8
.target sm_90
.address_size 64
.visible .entry empty() { ret; }
\0"""
_SHARED_BYTES = 200 * 1024
_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@cache
def max_active_clusters(blocks: int, device: int) -> int:
    """The most clusters of `blocks` blocks, one block an SM, that run at once on the current device, number `device`.

    It is less than SMs / blocks where a graphics processing cluster has SMs left over. A persistent grid larger than
    this would run its last clusters in a second wave. CUDA must be initialised. The answer is kept.

    Raises
    ------
    RuntimeError
        If the driver refuses; the message names the call.
    """
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: object) -> None:
        status = getattr(driver, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} failed with CUDA error {status}")

    module, function, count = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    call("cuModuleLoadData", ctypes.byref(module), _PTX)
    try:
        call("cuModuleGetFunction", ctypes.byref(function), module, b"empty")
        call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED, _SHARED_BYTES)
        attribute = _Attribute(id=_CLUSTER_DIMENSION)
        attribute.value[:3] = [blocks, 1, 1]
        config = _LaunchConfig(shared=_SHARED_BYTES, attributes=ctypes.pointer(attribute), count=1)
        config.grid[:] = [blocks, 1, 1]
        config.block[:] = [128, 1, 1]
        call("cuOccupancyMaxActiveClusters", ctypes.byref(count), function, ctypes.byref(config))
    finally:
        call("cuModuleUnload", module)
    return count.value
