"""The code that runs on the machines of a Ray cluster: a compile task, and the actor of a GPU's measuring process.

Kernels run in a child process of the actor, which can be killed; compilers run in a child process of the task's worker,
for the same reason. Artifacts come and go as bytes with their SHA-256, which is checked before anything is loaded.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from socket import gethostname
from tempfile import gettempdir
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact, ArtifactKey, ArtifactStore, CompileFailure, read_shared_object
from tilescout.search.build.compilers import CompileOptions, CompilePool
from tilescout.search.engines.engine import CannotMeasureError
from tilescout.search.engines.jobs import measure_batch
from tilescout.search.measure.process import MeasuringProcess, WorkerLostError
from tilescout.search.measure.protocol import ProtocolOptions
from tilescout.search.measure.worker import Job
from tilescout.spaces.errors import ArtifactError, BuildError
from tilescout.spaces.loaders import Listing
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.trust import check_folder


@dataclass(frozen=True)
class Shipped:
    """A compiled kernel on its way between machines; `artifact.path` is that of the machine it was made on."""

    artifact: Artifact
    shared_object: bytes


def session_folder(session: str) -> Path:
    """Where the workers of a session keep files on their machine; made if it does not exist.

    Raises
    ------
    ArtifactError
        If somebody else made it.
    """
    folder = Path(gettempdir()) / f"tilescout-{session}"
    folder.mkdir(mode=0o700, exist_ok=True)
    check_folder(folder, ArtifactError)
    return folder


def compile_task(template: KernelTemplate, key: ArtifactKey, timeout: float, session: str) -> Shipped | CompileFailure:
    """Compile one configuration in this worker's compiler process.

    Raises
    ------
    BuildError
        If this machine would compile something else: it has another tilescout, or another compiler.
    """
    here = ArtifactKey.of(template, key.configuration, key.signature, key.arch)
    if here != key:
        what = "nvidia-cutlass-dsl" if here.source_hash == key.source_hash else f"source of {key.space}"
        raise BuildError(f"{gethostname()} of the Ray cluster has another {what}: install the same on all its machines")
    built = _pool(template, key.arch, timeout, session).submit(key.configuration, key.signature).result()
    if isinstance(built, CompileFailure):
        return built
    shared_object = read_shared_object(built.path, built.sha256)
    shutil.rmtree(built.path.parent, ignore_errors=True)
    return Shipped(built, shared_object)


_POOLS: dict[tuple[str, str, float, str], CompilePool] = {}  # of this worker's process, which compiles one at a time


def _pool(template: KernelTemplate, arch: str, timeout: float, session: str) -> CompilePool:
    """One compiler process for this worker, kept: its first kernel takes seconds."""
    what = (template.name, arch, timeout, session)
    if what not in _POOLS:
        store = ArtifactStore(session_folder(session) / "compiled")
        _POOLS[what] = CompilePool(template, "", arch, store, CompileOptions(processes=1, timeout=timeout))
    return _POOLS[what]


class GpuWorker:
    """An actor: the GPU that Ray gave it, and a measuring process on it.

    Parameters
    ----------
    session
        Names the folder of shared objects on this machine, which all actors of a session share.
    gpu
        ``cuda``, of which Ray shows one; or ``cpu``.
    timeout
        See `LiveOptions`.
    """

    def __init__(self, session: str, gpu: str, timeout: float) -> None:
        self._folder = session_folder(session)
        self._process = MeasuringProcess(gpu, timeout)

    def describe(self) -> dict[str, Any]:
        """The GPU's name, versions of the software here, and the actor's process."""
        described = self._process.describe()
        return {"name": described["name"], "versions": described["versions"], "pid": os.getpid()}

    def prepare(self, workload: str, problem: str, options: ProtocolOptions) -> float:
        """The library's steady time on a problem, in µs."""
        return self._process.prepare(workload, problem, options)

    def listing(self, loader: str, problem: str, guesses: int | None) -> Listing:
        """The kernels that a library has for a problem."""
        return self._process.listing(loader, problem, guesses)

    def named(self, loader: str, problems: Sequence[str]) -> list[Sequence[int | str]]:
        """The kernel that a library runs of its own accord for each problem."""
        return self._process.named(loader, problems)

    def measure(
        self, jobs: Sequence[Job], prunable: Sequence[bool], shared_objects: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Measure jobs, whose shared objects are references to bytes by their checksum."""
        return [asdict(each) for each in measure_batch(self._process, self._received(jobs, shared_objects), prunable)]

    def race(
        self, jobs: Sequence[Job], rounds: int, pairs: int, seed: int, shared_objects: Mapping[str, Any]
    ) -> NDArray[np.float64]:
        """Ratios of jobs to the library, of shape [rounds, jobs]."""
        try:
            return self._process.race(self._received(jobs, shared_objects), rounds, pairs, seed)
        except WorkerLostError as lost:
            raise CannotMeasureError(f"the race ended early: {lost}") from None

    def close(self) -> None:
        """End the measuring process, and remove the artifacts that were received."""
        self._process.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _received(self, jobs: Sequence[Job], shared_objects: Mapping[str, Any]) -> list[Job]:
        """The jobs, with the path that each shared object has on this machine."""
        import ray

        paths = {sha256: self._folder / f"{sha256}.so" for sha256 in shared_objects}
        missing = [sha256 for sha256, path in paths.items() if not path.exists()]
        for sha256, content in zip(missing, ray.get([shared_objects[sha256] for sha256 in missing]), strict=True):
            save_shared_object(paths[sha256], sha256, content)
        return [replace(job, shared_object=str(paths[job.sha256])) for job in jobs]


def save_shared_object(path: Path, sha256: str, content: bytes) -> None:
    """Put a shared object that came from elsewhere in its place, once its checksum is right.

    Raises
    ------
    ArtifactError
        If it is not what its record says.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ArtifactError(f"an artifact came damaged: its SHA-256 is {found[:12]}…, expected {sha256[:12]}…")
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)
