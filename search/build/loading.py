"""Compiled kernels in this process: the shared libraries that they need, loading them, calling them."""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_WRITE, fcntl
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tilescout.search.build.artifacts import read_shared_object
from tilescout.spaces.errors import ArtifactError
from tilescout.spaces.loaders import Launch as Launch  # named here by all that measure
from tilescout.spaces.loaders import load_loader
from tilescout.spaces.workloads import Tensors, load_workload

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LoadedKernel:
    """A kernel that was loaded; calling it starts it.

    Attributes
    ----------
    entry
        Its entry point.
    arguments
        Puts the arguments of an entry point in order: `tilescout.spaces.workloads.Workload.arguments`.
    max_clusters
        How many of its clusters run on the device at once.
    scratch_bytes
        Bytes of device memory that a launch needs for itself; its entry point takes them last.
    """

    entry: Callable[..., None]
    arguments: Callable[[Tensors, "torch.Tensor", int], tuple[Any, ...]]
    max_clusters: int
    scratch_bytes: int = 0

    def __call__(self, inputs: Tensors, output: "torch.Tensor") -> None:
        """Start it on the current stream."""
        self.entry(*self.arguments(inputs, output, self.max_clusters), *self.scratch(output))

    def scratch(self, output: "torch.Tensor") -> tuple["torch.Tensor", ...]:
        """The memory that a launch needs for itself, beside its output; empty if it needs none."""
        if not self.scratch_bytes:
            return ()
        import torch

        # Of torch's pool, which hands it to what is launched next on the same stream, or keeps it for a CUDA graph.
        return (output.new_empty(self.scratch_bytes, dtype=torch.uint8),)


def runtime_libraries() -> list[Path]:
    """The shared libraries that artifacts are linked against and need loaded: CuteDSL's runtime, then TVM FFI.

    Raises
    ------
    ArtifactError
        If a package that holds one is missing.
    """
    found = []
    for package, pattern in (
        ("nvidia_cutlass_dsl", "cu*/lib/libcute_dsl_runtime.so"),
        ("tvm_ffi", "lib/libtvm_ffi.so"),
    ):
        spec = find_spec(package)
        places = list(spec.submodule_search_locations or []) if spec else []
        # Of the builds for several CUDA versions, the newest.
        libraries = sorted(library for place in places for library in Path(place).glob(pattern))
        if not libraries:
            raise ArtifactError(f"{Path(pattern).name} is missing: install nvidia-cutlass-dsl and apache-tvm-ffi")
        found.append(libraries[-1])
    return found


@cache
def load_runtime_libraries() -> None:
    """Load what artifacts are linked against, once, where the dynamic linker then finds it.

    Raises
    ------
    ArtifactError, OSError
        If a library is missing or does not load.
    """
    for library in runtime_libraries():
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


@contextmanager
def sealed_file(content: bytes) -> Iterator[Path]:
    """A path, while the context is open, of a file in memory with these bytes, which nothing can change any more.

    What is hashed is then what is loaded: the file that it was read from may be another one by then.

    Raises
    ------
    OSError
        If there is no room for it.
    """
    # The dynamic linker takes two files of one path for the same, and TVM FFI goes by the suffix: each has a name of
    # its own, in a folder that only this user can enter.
    made = os.memfd_create("kernel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with os.fdopen(made, "wb") as file, TemporaryDirectory(prefix="tilescout-") as folder:
        file.write(content)
        file.flush()
        fcntl(file, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)
        path = Path(folder, "kernel.so")
        path.symlink_to(f"/proc/self/fd/{file.fileno()}")
        yield path


@dataclass(frozen=True)
class Library:
    """A shared object that was loaded.

    Attributes
    ----------
    module
        TVM FFI's module; it has the entry points.
    name
        What the dynamic linker, and so debuggers, call it. There is no file of that name any more.
    """

    module: Any
    name: str


@lru_cache(maxsize=1024)
def load_library(shared_object: Path, sha256: str) -> Library:
    """Load a shared object, once its checksum is right; one that is loaded stays so.

    Raises
    ------
    ArtifactError, OSError, RuntimeError
        If it is missing, damaged or no shared object.
    """
    import tvm_ffi

    load_runtime_libraries()
    with sealed_file(read_shared_object(shared_object, sha256)) as sealed:
        return Library(tvm_ffi.load_module(str(sealed)), str(sealed))


@lru_cache(maxsize=1024)
def load_launch(
    shared_object: Path, sha256: str, function: str, workload: str, max_clusters: int, scratch_bytes: int = 0
) -> LoadedKernel:
    """Load a kernel, once its checksum is right; one that is loaded stays so.

    Parameters
    ----------
    shared_object, sha256, function
        The artifact's file, its checksum and its entry point.
    workload
        What it computes: the workload knows in which order an entry point takes its arguments.
    max_clusters
        How many of the kernel's clusters run on the device at once.
    scratch_bytes
        Bytes of device memory that a launch needs for itself, at most; see `KernelTemplate.scratch_bytes`.

    Raises
    ------
    ArtifactError, OSError, AttributeError, RuntimeError
        If it is missing, damaged, or has no such entry point.
    """
    entry: Callable[..., None] = getattr(load_library(shared_object, sha256).module, function)
    return LoadedKernel(entry, load_workload(workload).arguments, max_clusters, scratch_bytes)


@lru_cache(maxsize=1024)
def load_described(description: Path, sha256: str, loader: str, device: int | None = None) -> Launch:
    """The function that starts a library's kernel, as an artifact describes it, once its checksum is right.

    A loader gets the library ready on the current device: a CUDA graph may record the first launch there.

    Parameters
    ----------
    description, sha256
        The artifact's file and its checksum.
    loader
        The template's `tilescout.spaces.loaders.Loader`, as module:Class.
    device
        The number of the current GPU, where a process uses several: each has a function of its own.

    Raises
    ------
    ArtifactError, OSError, SpaceError
        If it is missing, damaged, or describes nothing that the loader knows.
    """
    return load_loader(loader).launch(read_shared_object(description, sha256).decode())
