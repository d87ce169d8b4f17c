"""From configurations to compiled kernels: compilers, the artifact store, and what a binary says.

Everything public is named here; a module is imported when one of its names is first used. Nothing here needs a GPU::

    from tilescout.search.build import ArtifactStore, CompileOptions, CompilePool

    with CompilePool(template, "bf16", "sm_90a", ArtifactStore(folder), CompileOptions()) as pool:
        artifact = pool.submit(configuration).result()
"""

from typing import TYPE_CHECKING

from tilescout.spaces.lazy import public_names

if TYPE_CHECKING:
    from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore, CompileFailure
    from tilescout.search.build.compilers import CompileOptions, CompilePool
    from tilescout.search.build.cores import available_cores

__all__ = [
    "Artifact",
    "ArtifactKey",
    "ArtifactStore",
    "CompileFailure",
    "CompileOptions",
    "CompilePool",
    "available_cores",
]

__getattr__, __dir__ = public_names(
    __name__,
    {
        "Artifact": "artifacts",
        "ArtifactKey": "artifacts",
        "ArtifactStore": "artifacts",
        "CompileFailure": "artifacts",
        "CompileOptions": "compilers",
        "CompilePool": "compilers",
        "available_cores": "cores",
    },
)
