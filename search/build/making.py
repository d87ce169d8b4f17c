"""Make one artifact, in this process and with no GPU: compile, link and inspect it, and put it into the store."""

import errno
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from tilescout.search.build.artifacts import (
    DESCRIPTION,
    SHARED_OBJECT,
    Artifact,
    ArtifactKey,
    ArtifactStore,
    read_shared_object,
)
from tilescout.search.build.binaries import find_cuobjdump, instruction_count, resource_usage
from tilescout.search.build.loading import runtime_libraries
from tilescout.spaces.errors import ArtifactError, BuildError, StoreError, TilescoutError, one_line
from tilescout.spaces.faults import SHORTAGES, described
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.resources import Resources
from tilescout.spaces.templates import Built, KernelTemplate

# What is printed of a tool that was killed: by GCC of its linker, by nvcc, by GCC of its other tools, by Clang, and by
# Python. Nothing but the lack of memory, or a person, sends the signals 9 and 15.
_KILLED = re.compile(
    r"(?:terminated with|died due to) signal (?:9|15)\b|(?:Killed|Terminated) signal terminated program"
    r"|unable to execute command: (?:Killed|Terminated)|died with <Signals\.SIG(?:KILL|TERM): "
)


def find_linker() -> str:
    """The C compiler that links artifacts.

    Raises
    ------
    BuildError
        If there is none on the PATH.
    """
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return path
    raise BuildError("no C compiler (cc, gcc or clang) on the PATH: linking kernels needs one")


def build(template: KernelTemplate, key: ArtifactKey, store: ArtifactStore) -> Artifact:
    """Compile, link, inspect and store one artifact, in this process; a configuration's failure is stored too.

    Raises
    ------
    ArtifactError, BuildError
        If a tool or library that every configuration needs is missing. That is not stored.
    MemoryError
        If there was not enough memory. That says nothing of the configuration either.
    StoreError
        If the store can't be written.
    """
    if template.loader:
        return describe(template, key, store)
    if (compiled := key.compiled(template)) != key:
        base = store.find(compiled) or build(template, compiled, store)
        return relaunch(template, key, store, base) if base.ok else base
    linker, libraries = find_linker(), runtime_libraries()
    find_cuobjdump()
    start = time.perf_counter()
    with store.scratch() as scratch:
        shared_object, obj = scratch / SHARED_OBJECT, scratch / "kernel.o"
        try:
            built = _built(template, key, obj)
            # No run path: the host that loads it may keep the libraries elsewhere. It loads them first, and the
            # dynamic linker then finds them by name.
            command = [linker, "-shared", "-o", str(shared_object), str(obj), *map(str, libraries)]
            # What is killed half-way leaves its own files in the scratch folder, too, which is swept.
            environment = {**os.environ, "TMPDIR": str(scratch.absolute()), "LC_ALL": "C"}  # see `_refuse_passing`
            linked = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
            if linked.returncode < 0:
                raise MemoryError(f"the linker was killed by signal {-linked.returncode}")
            if linked.returncode:
                raise BuildError(f"linking failed: {linked.stderr}")
            resources = _resources(built, obj)
            obj.unlink()
            artifact = Artifact(
                path=shared_object,
                sha256=sha256(shared_object.read_bytes()).hexdigest(),
                function=built.function,
                resources=resources,
                compile_seconds=time.perf_counter() - start,
            )
        except OSError as error:
            raise _no_place(store, error.strerror) from error
        except BuildError as error:
            _refuse_passing(error, store)
            failure = Artifact(shared_object, "", "", None, time.perf_counter() - start, one_line(error))
            with store.scratch() as empty:  # what the build left in its own, a folder perhaps, is of no use
                return store.publish(key, failure, empty)
        return store.publish(key, artifact, scratch)


def _built(template: KernelTemplate, key: ArtifactKey, path: Path) -> Built:
    """The template's own step. Whatever its code raises is the configuration's failure, but for a missing module."""
    try:
        built: object = template.build(key.configuration, key.signature, key.arch, path)
    except (TilescoutError, MemoryError):
        raise
    except ImportError as error:
        raise ArtifactError(f"can't build {template.name}: {described(error)}") from error
    except (Exception, SystemExit) as error:  # code of others
        raise BuildError(described(error)) from error
    if not isinstance(built, Built):
        raise BuildError(f"`build` of {template.name} returned a {type(built).__name__}, expected a Built")
    said: tuple[object, object] = built.function, built.shared_memory
    if not isinstance(said[0], str) or not isinstance(said[1], int | None):
        raise BuildError(f"`build` of {template.name} returned {built}, expected a name and a number of bytes or None")
    return built


def relaunch(template: KernelTemplate, key: ArtifactKey, store: ArtifactStore, compiled: Artifact) -> Artifact:
    """Store an artifact that differs in its launch alone from one that was compiled; no tool is needed.

    Raises
    ------
    ArtifactError
        If what was compiled is not what its record says.
    StoreError
        If the store can't be written.
    """
    start = time.perf_counter()
    binary = read_shared_object(compiled.path, compiled.sha256)
    with store.scratch() as scratch:
        path, error = scratch / SHARED_OBJECT, ""
        try:
            binary = template.relaunch(binary, key.configuration, key.signature)
            path.write_bytes(binary)
        except OSError as failure:
            raise _no_place(store, failure.strerror) from failure
        except BuildError as failure:
            error = one_line(failure)
        except Exception as failure:  # code of others
            error = described(failure)
        artifact = replace(
            compiled,
            path=path,
            sha256="" if error else sha256(binary).hexdigest(),
            compile_seconds=time.perf_counter() - start,
            error=error,
        )
        return store.publish(key, artifact, scratch)


def describe(template: KernelTemplate, key: ArtifactKey, store: ArtifactStore) -> Artifact:
    """Store the description of a library's kernel: nothing is compiled, and no tool is needed.

    Raises
    ------
    ArtifactError, BuildError
        If the template's code fails.
    StoreError
        If the store can't be written.
    """
    start = time.perf_counter()
    with store.scratch() as scratch:
        path = scratch / DESCRIPTION
        try:
            built = _built(template, key, path)
            checksum = sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise _no_place(store, error.strerror) from error
        return store.publish(key, Artifact(path, checksum, built.function, None, time.perf_counter() - start), scratch)


def described_artifact(
    template: KernelTemplate, configuration: Configuration, signature: str, arch: str, store: ArtifactStore
) -> Artifact:
    """The artifact of a library's kernel, of the store or new; see `describe`."""
    key = ArtifactKey.of(template, configuration, signature, arch)
    return store.find(key) or describe(template, key, store)


def _no_place(store: ArtifactStore, reason: str | None) -> StoreError:
    return StoreError(f"can't build in the artifact store {store.root}: {reason}")


def _refuse_passing(error: BuildError, store: ArtifactStore) -> None:
    """Raise if a build failed because memory or disk space ran out, and not because of its configuration.

    Of tools there are only the English words that they print.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            raise MemoryError(one_line(error)) from error
        if isinstance(cause, OSError) and cause.errno in SHORTAGES:
            raise _no_place(store, cause.strerror) from error
        cause = cause.__cause__ or cause.__context__
    if os.strerror(errno.ENOSPC) in str(error):  # what compilers and linkers print
        raise _no_place(store, os.strerror(errno.ENOSPC)) from error
    if os.strerror(errno.ENOMEM) in str(error) or _KILLED.search(str(error)):
        raise MemoryError(one_line(error)) from error


def _resources(built: Built, obj: Path) -> Resources | None:
    if built.shared_memory is None:
        return None
    binary = obj.read_bytes()
    registers, spilled, static = resource_usage(binary, obj.parent)
    return Resources(registers, spilled, static + built.shared_memory, instruction_count(binary))
