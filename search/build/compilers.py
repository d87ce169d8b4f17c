"""Compile configurations in a pool of processes, with no GPU."""

import errno
import importlib
import os
import shutil
import subprocess
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from pebble import ProcessExpired, ProcessPool

from tilescout.search.build.artifacts import SHARED_OBJECT, Artifact, ArtifactKey, ArtifactStore, CompileFailure
from tilescout.search.build.binaries import find_cuobjdump, instruction_count, resource_usage
from tilescout.search.build.closing import Closing
from tilescout.search.build.cores import available_cores
from tilescout.search.build.loading import runtime_libraries
from tilescout.search.build.resources import Resources
from tilescout.spaces.errors import BuildError, StoreError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.processes import spawn_context
from tilescout.spaces.templates import Built, KernelTemplate


@dataclass(frozen=True)
class CompileOptions:
    """How compiling is organised.

    Attributes
    ----------
    processes
        Compilers that run at the same time; by default one for each core that this process may use.
    timeout
        Seconds after which a compiler is killed. A kernel takes about 0.5 s, a process's first one 3 s.
    """

    processes: int = field(default_factory=available_cores)
    timeout: float = 120.0


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
    linker, libraries = find_linker(), runtime_libraries()
    find_cuobjdump()
    start = time.perf_counter()
    with store.scratch() as scratch:
        shared_object, obj = scratch / SHARED_OBJECT, scratch / "kernel.o"
        try:
            built = template.build(key.configuration, key.signature, key.arch, obj)
            # No run path: the host that loads it may keep the libraries elsewhere. It loads them first, and the
            # dynamic linker then finds them by name.
            command = [linker, "-shared", "-o", str(shared_object), str(obj), *map(str, libraries)]
            linked = subprocess.run(command, capture_output=True, text=True, check=False)
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
            raise StoreError(f"can't build in the artifact store {store.root}: {error.strerror}") from error
        except BuildError as error:
            _refuse_passing(error, store)
            artifact = Artifact(shared_object, "", "", None, time.perf_counter() - start, one_line(error))
            for left in scratch.iterdir():
                left.unlink()
        return store.publish(key, artifact, scratch)


_SHORTAGES = {errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE}


def _refuse_passing(error: BuildError, store: ArtifactStore) -> None:
    """Raise if a build failed because memory or disk space ran out, and not because of its configuration."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError):
            raise MemoryError(one_line(error)) from error
        if isinstance(cause, OSError) and cause.errno in _SHORTAGES:
            raise StoreError(f"can't build in the artifact store {store.root}: {cause.strerror}") from error
        cause = cause.__cause__ or cause.__context__
    if os.strerror(errno.ENOSPC) in str(error):  # what compilers and linkers print
        raise StoreError(f"can't build in the artifact store {store.root}: {os.strerror(errno.ENOSPC)}") from error
    if os.strerror(errno.ENOMEM) in str(error):
        raise MemoryError(one_line(error)) from error


def _resources(built: Built, obj: Path) -> Resources | None:
    if built.shared_memory is None:
        return None
    binary = obj.read_bytes()
    registers, spilled, static = resource_usage(binary)
    return Resources(registers, spilled, static + built.shared_memory, instruction_count(binary))


class CompilePool(Closing):
    """Compiler processes for one template, signature and target, with a store behind them.

    Parameters
    ----------
    template, signature, arch
        What is compiled.
    store
        Where artifacts are looked up first, and kept.
    options
        How many processes, and how long each may take.
    """

    def __init__(
        self, template: KernelTemplate, signature: str, arch: str, store: ArtifactStore, options: CompileOptions
    ) -> None:
        self.template, self.signature, self.arch, self.store, self.options = template, signature, arch, store, options
        self._pool: ProcessPool | None = None
        self._compiling: dict[str, Future[Artifact | CompileFailure]] = {}

    def submit(self, configuration: Configuration, signature: str | None = None) -> "Future[Artifact | CompileFailure]":
        """Compile a configuration unless the store has it, or it is being compiled.

        Parameters
        ----------
        configuration
            The knob values.
        signature
            For problems of another signature than the pool's.

        Returns
        -------
        Future
            The artifact, or why there is none. It raises only where the configuration is not at fault, for example if
            the store can't be written.
        """
        result: Future[Artifact | CompileFailure] = Future()
        key = ArtifactKey.of(self.template, configuration, signature or self.signature, self.arch)
        if (compiling := self._compiling.get(key.digest)) is not None:
            return compiling
        if (stored := self.store.find(key)) is not None:
            result.set_result(stored.outcome)
            return result
        self._compiling[key.digest] = result
        submitted = time.perf_counter()

        def finish(task: "Future[Artifact]") -> None:
            self._compiling.pop(key.digest, None)
            if task.cancelled():
                result.cancel()
                result.set_running_or_notify_cancel()
                return
            error = task.exception()
            if error is None:
                result.set_result(task.result().outcome)
            elif (failure := self._failure(error, time.perf_counter() - submitted)) is not None:
                result.set_result(failure)
            else:
                result.set_exception(error)

        arguments = (self.template, key, self.store.root)
        self._processes().schedule(_build_task, args=arguments, timeout=self.options.timeout).add_done_callback(finish)
        return result

    def _processes(self) -> ProcessPool:
        if self._pool is None:
            self.store.sweep()
            self._pool = ProcessPool(
                max_workers=self.options.processes,
                initializer=_prepare_process,
                initargs=(self.arch, type(self.template).__module__),
                context=spawn_context(),
            )
        return self._pool

    def _failure(self, error: BaseException, waited: float) -> CompileFailure | None:
        # A process that is gone can't tell how long it worked. The time since the configuration was submitted includes
        # its wait in the queue, so it is an upper bound.
        seconds = min(waited, self.options.timeout)
        if isinstance(error, FutureTimeout):
            message = f"the compiler did not finish in {self.options.timeout:g} s and was killed"
            return CompileFailure(message, seconds, timed_out=True)
        if isinstance(error, ProcessExpired):
            message = f"the compiler died with exit code {error.exitcode}"
            return CompileFailure(message, seconds)
        if isinstance(error, MemoryError):
            message = f"not enough memory to compile ({one_line(error)}); it is not recorded and can be tried again"
            return CompileFailure(message, seconds)
        return None

    def close(self) -> None:
        """Kill the compilers that still work and end the processes; the futures of unfinished kernels are cancelled."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None
        for result in list(self._compiling.values()):  # pebble does not settle the futures of the tasks that it stops
            if result.cancel():
                result.set_running_or_notify_cancel()
        self._compiling.clear()


_NICENESS = 10  # the measuring process must not wait for a core: times while the GPU waits for the host don't count


def _prepare_process(arch: str, module: str) -> None:
    os.nice(_NICENESS)
    # CuteDSL reads its target from the environment, and without a GPU has no other way to know it.
    os.environ["CUTE_DSL_ARCH"] = arch
    # A process takes its tasks while the others wait: one that came with the template's first import, which may bring
    # the compiler with it, would make them wait for seconds, one after another.
    importlib.import_module(module)


def _build_task(template: KernelTemplate, key: ArtifactKey, root: Path) -> Artifact:
    return build(template, key, ArtifactStore(root))
