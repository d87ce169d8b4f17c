"""The shared libraries that compiled kernels need."""

from importlib.util import find_spec
from pathlib import Path

from tilescout.spaces.errors import ArtifactError


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
