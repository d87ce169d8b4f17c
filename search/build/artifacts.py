"""Compiled kernels on disk: a content-addressed store that many processes may share."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from sys import intern
from tempfile import mkdtemp
from typing import Any

from tilescout.spaces.errors import MALFORMED, ArtifactError, StoreError
from tilescout.spaces.inputs import parse_json, read_regular
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.outputs import sweep
from tilescout.spaces.resources import Resources
from tilescout.spaces.templates import KernelTemplate
from tilescout.spaces.trust import check_folder, read_record

FORMAT = 1
_RECORD = "artifact.json"
_SCRATCH = "tmp-"
_LARGEST_RECORD = 1 << 20  # bytes; one has 1 kB
_LARGEST_OBJECT = 1 << 28  # bytes; one has 40 kB to 1 MB
SHARED_OBJECT = "kernel.so"  # its name in a folder of the store
DESCRIPTION = "kernel.txt"  # that of the description of a library's kernel


@dataclass(frozen=True)
class ArtifactKey:
    """All that a compiled kernel depends on; it holds for every size.

    Attributes
    ----------
    space, source_hash
        The template and the hash of its source.
    configuration
        The knob values.
    signature, arch
        The part of the problem that is compiled in (its types and layouts), and the compiler target.
    compiler
        Version of nvidia-cutlass-dsl; empty where nothing is compiled.
    """

    space: str
    source_hash: str
    configuration: Configuration
    signature: str
    arch: str
    compiler: str

    @classmethod
    def of(cls, template: KernelTemplate, configuration: Configuration, signature: str, arch: str) -> "ArtifactKey":
        """The key under which the installed compiler's artifact is stored."""
        compiler = "" if template.loader else version("nvidia-cutlass-dsl")
        return cls(template.name, template.source_hash, configuration, signature, arch, compiler)

    def compiled(self, template: KernelTemplate) -> "ArtifactKey":
        """The key of what is compiled for it: another one where it differs from that in its launch alone."""
        return replace(self, configuration=template.compiled_as(self.configuration))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {**asdict(self), "configuration": dict(self.configuration)}

    @cached_property
    def digest(self) -> str:
        """The artifact's name: SHA-256 of the key."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel, or the record that a configuration does not compile.

    For a kernel of a library it is a description, as text, in the place of a shared object.

    Attributes
    ----------
    path
        The shared object; it exists only if `error` is empty.
    sha256
        Checksum of the shared object; empty if there is none.
    function
        Name of its entry point.
    resources
        The resources that the kernel occupies.
    compile_seconds
        Seconds of one core that compiling took.
    error
        Why it does not compile, in one line.
    """

    path: Path
    sha256: str
    function: str
    resources: Resources | None
    compile_seconds: float
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a kernel."""
        return not self.error

    @property
    def outcome(self) -> "Artifact | CompileFailure":
        """The artifact itself, or the failure that it is the record of."""
        return self if self.ok else CompileFailure(self.error, self.compile_seconds)


@dataclass(frozen=True)
class CompileFailure:
    """Why a configuration has no kernel.

    Attributes
    ----------
    error
        The message of the compiler or linker, or how its process ended, in one line.
    compile_seconds
        Seconds of one core that were spent.
    timed_out
        Whether the compiler did not finish in time, so that nothing is known of the configuration.
    """

    error: str
    compile_seconds: float = 0.0
    timed_out: bool = False


def read_shared_object(path: Path, sha256: str) -> bytes:
    """The bytes of a shared object, if they are what its record says; loading one is running its code.

    Whoever uses a shared object uses these bytes: the file may be another one a moment later.

    Raises
    ------
    ArtifactError
        If it is missing or its checksum differs.
    """
    try:
        content = read_regular(path, _LARGEST_OBJECT, follow=False)
    except OSError as error:
        raise ArtifactError(f"artifact {path} can't be read ({error.strerror}); compile it again") from error
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ArtifactError(
            f"artifact {path} is damaged: its SHA-256 is {found[:12]}…, recorded is {sha256[:12]}…; "
            "delete its folder and compile it again"
        )
    return content


class ArtifactStore:
    """A directory of artifacts, a folder each, named by the digest of the key.

    A folder appears by a rename when it is complete: readers never see half of one, and of several writers the first
    wins.

    Parameters
    ----------
    root
        The directory.
    to_read
        Whether artifacts are read above all: the directory is made, if it does not exist, once one is to be kept.

    Raises
    ------
    StoreError
        If others could have filled it, or, unless it is there to read, if it can't be made or written.
    """

    def __init__(self, root: Path, to_read: bool = False) -> None:
        self.root = root
        self._made = False
        if not to_read:
            self._make()
            return
        try:
            check_folder(root, StoreError)
        except FileNotFoundError:  # nothing was kept yet
            pass
        except OSError as error:
            raise StoreError(f"can't read the artifact store {root}: {error.strerror}") from error

    def _make(self) -> None:
        root = self.root
        try:
            root.parent.mkdir(mode=0o775, parents=True, exist_ok=True)  # else, with a umask of 0, anybody may write it
            root.mkdir(mode=0o755, exist_ok=True)
            check_folder(root, StoreError)
        except OSError as error:
            raise StoreError(f"can't make the artifact store {root}: {error.strerror}") from error
        if not os.access(root, os.W_OK):
            raise StoreError(f"can't write the artifact store {root}: choose another with `store`")
        self._made = True

    def folder(self, key: ArtifactKey) -> Path:
        """Where the artifact of a key is, or would be."""
        return self.root / key.digest[:2] / key.digest

    def find(self, key: ArtifactKey) -> Artifact | None:
        """The artifact of a key; None if it was not made, or what was made is incomplete (it is made again then).

        Raises
        ------
        ArtifactError
            If somebody else may have written its record.
        """
        folder = self.folder(key)
        try:
            record = parse_json(read_record(folder / _RECORD, _LARGEST_RECORD, ArtifactError))
            if record["key"] != json.loads(json.dumps(key.to_dict())):  # of another kernel, moved here
                return None
            resources = Resources(**record["resources"]) if record["resources"] else None
            artifact = Artifact(
                path=folder / (DESCRIPTION if record["key"]["compiler"] == "" else SHARED_OBJECT),
                sha256=record["sha256"],
                function=record["function"],
                resources=resources,
                compile_seconds=record["compile_seconds"],
                error=record["error"],
            )
        except (OSError, *MALFORMED):
            return None
        return artifact if artifact.path.exists() or not artifact.ok else None

    def configurations(self, like: ArtifactKey) -> list[Configuration]:
        """The configurations of the kernels that are stored under keys which differ from this one in nothing else.

        A record that can't be read is left out; one that somebody else may have written, too: it is not used either.
        """
        wanted, found = _all_but_configuration(like.to_dict()), []
        for path in self.root.glob(f"??/*/{_RECORD}"):
            with suppress(OSError, ArtifactError, *MALFORMED):
                status = path.lstat()
                kernel = _recorded_kernel(path, (status.st_ino, status.st_size, status.st_ctime_ns))
                if kernel is not None and kernel[0] == wanted:
                    found.append(kernel[1])
        return found

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary folder on the store's file system, removed at the end if it still exists."""
        if not self._made:
            self._make()
        try:
            folder = Path(mkdtemp(prefix=_SCRATCH, dir=self.root))
        except OSError as error:
            raise StoreError(f"can't write the artifact store {self.root}: {error.strerror}") from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def sweep(self) -> None:
        """Remove the temporary folders of compilers that were killed: those that nothing has touched for an hour."""
        sweep(self.root, f"{_SCRATCH}*")

    def publish(self, key: ArtifactKey, artifact: Artifact, scratch: Path) -> Artifact:
        """Move the files of a build from `scratch` into the store, with a record; return the stored artifact."""
        folder = self.folder(key)
        record = {
            "format": FORMAT,
            "key": key.to_dict(),
            "sha256": artifact.sha256,
            "function": artifact.function,
            "resources": asdict(artifact.resources) if artifact.resources else None,
            "compile_seconds": artifact.compile_seconds,
            "error": artifact.error,
        }
        try:
            (scratch / _RECORD).write_text(json.dumps(record, indent=1))
            (scratch / _RECORD).chmod(0o644)  # whatever the umask: it is refused if others may write it
            folder.parent.mkdir(mode=0o755, exist_ok=True)
            if folder.exists() and self.find(key) is None:
                shutil.rmtree(folder)
            try:
                scratch.rename(folder)
            except OSError:
                if not folder.exists():
                    raise
        except OSError as error:
            raise StoreError(f"can't write the artifact store {self.root}: {error.strerror}") from error
        stored = self.find(key)
        if stored is None:
            raise ArtifactError(
                f"the record of artifact {folder} can't be read; delete the folder and compile it again"
            )
        return stored


@cache
def _recorded_kernel(path: Path, state: tuple[int, int, int]) -> tuple[str, Configuration] | None:
    """All of a kernel's key but its configuration, and that, as its record says; None if there is no kernel.

    Every search lists the records, and reading one takes 0.3 ms. A record stays as it is: one in another `state` (its
    inode, its bytes, and the time of its last change, of its mode or owner too) is another.
    """
    record = parse_json(read_record(path, _LARGEST_RECORD, ArtifactError))
    if record["error"]:
        return None
    return _all_but_configuration(record["key"]), Configuration.of(record["key"]["configuration"])


def _all_but_configuration(key: dict[str, Any]) -> str:
    return intern(json.dumps({**key, "configuration": None}, sort_keys=True))
