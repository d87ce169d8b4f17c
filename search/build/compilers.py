"""Compile configurations in processes that are forked from a warm one, with no GPU."""

import os
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tilescout.search.build.artifacts import (
    Artifact,
    ArtifactKey,
    ArtifactStore,
    CompileFailure,
)
from tilescout.search.build.cores import available_cores
from tilescout.search.build.forks import ForkDiedError, ForkPool, ForkTimeoutError
from tilescout.search.build.making import build, describe, relaunch
from tilescout.search.build.standby import Ready, Standby, can_stand_by
from tilescout.search.build.waiting import Shared, settle
from tilescout.search.build.warm import Task, serve
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.checking import check_number
from tilescout.spaces.closing import Closing
from tilescout.spaces.errors import BuildError, SamplerError, TilescoutError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate, comes_with_package, find_template


@dataclass(frozen=True)
class CompileOptions:
    """How compiling is organised.

    Attributes
    ----------
    processes
        Compilers that run at the same time; by default one for each core that this process may use.
    timeout
        Seconds after which a compiler is killed. A kernel takes about 0.5 s.
    standby
        Fork the compilers, and in a live search the measuring processes, from processes that stand by after this one
        ended, where there can be such: the next search imports neither the compiler nor torch. The compiler of a
        template of your own does not stand by, for its source may change.

    Raises
    ------
    SamplerError
        If one of them is something else.
    """

    processes: int = field(default_factory=available_cores)
    timeout: float = 120.0
    standby: bool = True

    def __post_init__(self) -> None:
        check_number("`processes`", self.processes, whole=True, least=1)
        check_number("`timeout`", self.timeout, whole=False)
        check_kinds(SamplerError, standby=(self.standby, bool))


class CompilePool(Closing):
    """Compilers for one template, signature and target, with a store behind them.

    Every kernel is compiled in a process of its own, which is forked from one that has imported the compiler.

    Parameters
    ----------
    template, signature, arch
        What is compiled.
    store
        Where artifacts are looked up first, and kept.
    options
        How many compilers, and how long each may take.
    beside
        A pool that is closed after this one. Where compilers of both are forked from the same process and have the same
        store, they share their compilers: they have as many together as that pool has alone.
    """

    def __init__(
        self,
        template: KernelTemplate,
        signature: str,
        arch: str,
        store: ArtifactStore,
        options: CompileOptions,
        beside: "CompilePool | None" = None,
    ) -> None:
        self.template, self.signature, self.arch, self.store, self.options = template, signature, arch, store, options
        self._lender = beside if beside is not None and self._can_borrow(beside) else None
        self._forks: ForkPool | None = None
        self._starting = threading.Lock()
        self._compiling: dict[str, Shared[Artifact | CompileFailure]] = {}
        self._later: dict[str, Future[None]] = {}  # those of them that let all others go first
        self._lock = threading.Lock()

    def start(self) -> None:
        """Have the compiler imported by the time that the first kernel is asked for."""
        if not self.template.loader:
            self._started().start()

    def stored(self, signature: str) -> list[Configuration]:
        """The configurations whose kernels for a signature are in the store; a library's need no compiler."""
        if self.template.loader:
            return []
        return self.store.configurations(ArtifactKey.of(self.template, Configuration(()), signature, self.arch))

    def submit(
        self, configuration: Configuration, signature: str | None = None, *, later: bool = False
    ) -> "Future[Artifact | CompileFailure]":
        """Compile a configuration unless the store has it, or it is being compiled.

        Parameters
        ----------
        configuration
            The knob values.
        signature
            For problems of another signature than the pool's.
        later
            Begin when nothing else waits for a compiler, or once it is submitted again without this.

        Returns
        -------
        Future
            The artifact, or why there is none. It raises only where the configuration is not at fault, for example if
            the store can't be written. Cancelling it ends the compiler, unless another call waits for the same kernel.

        Raises
        ------
        BuildError
            If no compiler can be started.
        """
        key = ArtifactKey.of(self.template, configuration, signature or self.signature, self.arch)
        if (compiled := key.compiled(self.template)) != key and self.store.find(key) is None:
            is_new = compiled.digest not in self._compiling and self.store.find(compiled) is None
            return self._once_there(self.submit(compiled.configuration, key.signature, later=later), key, is_new)
        with self._lock:
            if (compiling := self._compiling.get(key.digest)) is not None and (joined := compiling.wait()) is not None:
                if not later and (waiting := self._later.pop(key.digest, None)) is not None:
                    self._started().hurry(waiting)
                return joined
            result: Future[Artifact | CompileFailure] = Future()
            if (stored := self.store.find(key)) is not None:
                result.set_result(stored.outcome)
                return result
            if self.template.loader:  # described in less time than a process takes to be asked
                try:
                    result.set_result(describe(self.template, key, self.store))
                except TilescoutError as error:
                    result.set_exception(error)
                return result
            arguments = {"space": key.space, "configuration": dict(key.configuration), "signature": key.signature}
            task = self._started().submit(arguments, self.options.timeout, later)
            shared = self._compiling[key.digest] = Shared(result)
            wanted = shared.wait()
            assert wanted is not None
            if later:
                self._later[key.digest] = task

        def finish(task: "Future[None]") -> None:
            with self._lock:
                if self._compiling.get(key.digest) is shared:
                    del self._compiling[key.digest]
                    self._later.pop(key.digest, None)
            settle(result, task, lambda: self._outcome(key, task))

        task.add_done_callback(finish)
        result.add_done_callback(lambda done: task.cancel() if done.cancelled() else None)
        return wanted

    def _once_there(
        self, compiled: "Future[Artifact | CompileFailure]", key: ArtifactKey, is_new: bool
    ) -> "Future[Artifact | CompileFailure]":
        """The artifact that differs from a kernel in its launch, once that is there; its seconds count if it is new."""
        result: Future[Artifact | CompileFailure] = Future()

        def relaunched() -> Artifact | CompileFailure:
            base = compiled.result()
            seconds = base.compile_seconds if is_new else 0.0
            if not isinstance(base, Artifact):
                return replace(base, compile_seconds=seconds)
            found = relaunch(self.template, key, self.store, base)
            return replace(found, compile_seconds=found.compile_seconds + seconds).outcome

        result.add_done_callback(lambda done: compiled.cancel() if done.cancelled() else None)
        compiled.add_done_callback(lambda done: settle(result, done, relaunched))
        return result

    def _can_borrow(self, lender: "CompilePool") -> bool:
        ours, theirs = (_common_source(pool.template, pool.arch) for pool in (self, lender))
        return ours is not None and ours == theirs and self.store.root == lender.store.root

    def _started(self) -> ForkPool:
        if self._lender is not None:
            return self._lender._started()
        with self._starting:
            if self._forks is None:
                self.store.sweep()
                self._forks = ForkPool(
                    partial(_warm_up, self.template, self.arch),
                    partial(_build_task, self.template, self.arch, self.store.root),
                    self.options.processes,
                    _NICENESS,
                    self._standby(),
                )
            return self._forks

    def _standby(self) -> tuple[Standby, dict[str, str | int]] | None:
        standby = standby_of(self.template, self.arch)
        if not self.options.standby or standby is None:
            return None
        root, processes = str(self.store.root.absolute()), self.options.processes
        return standby, {"template": self.template.name, "store": root, "processes": processes}

    def _outcome(self, key: ArtifactKey, task: "Future[None]") -> Artifact | CompileFailure:
        try:
            task.result()
        except ForkTimeoutError as error:
            message = f"the compiler did not finish in {error.seconds:g} s and was killed"
            return CompileFailure(message, error.seconds, timed_out=True)
        except ForkDiedError as error:
            return CompileFailure(f"the compiler died with exit code {error.exitcode}", error.seconds)
        except MemoryError as error:
            message = f"not enough memory to compile ({one_line(error)}); it is not recorded and can be tried again"
            return CompileFailure(message)
        stored = self.store.find(key)
        if stored is None:
            raise BuildError(
                f"the sources of {key.space} are not what they were when the compiler started: start again"
            )
        return stored.outcome

    def close(self) -> None:
        """Kill the compilers that still work; the futures of unfinished kernels are cancelled."""
        if self._lender is not None:
            with self._lock:
                compiling = list(self._compiling.values())
            for each in compiling:
                each.give_up()
        with self._starting:
            forks, self._forks = self._forks, None
        if forks is not None:
            forks.close()


def standby_of(template: KernelTemplate, arch: str) -> Standby | None:
    """Return the process that compilers of a template are forked from; None where none can stand by for it."""
    ready_for = _common_source(template, arch)
    if ready_for is None or not can_stand_by():
        return None
    return Standby(f"{__name__}:{ready_to_compile.__name__}", ready_for)


def _common_source(template: KernelTemplate, arch: str) -> tuple[str, str] | None:
    """The template and the target that a process is ready for which compilers of several templates can be forked from.

    Templates for which it is the same can have compilers of one process. None if a template's is ready for it alone.
    """
    if template.loader or not comes_with_package(template):
        return None
    return template.warmed_like, arch


_NICENESS = 10  # the measuring process must not wait for a core: times while the GPU waits for the host don't count


def _warm_up(template: KernelTemplate, arch: str) -> None:
    # CuteDSL reads its target from the environment, and without a GPU has no other way to know it.
    os.environ["CUTE_DSL_ARCH"] = arch
    template.warm_up()


def ready_to_compile(name: str, arch: str) -> Ready:
    """Get ready to stand by as the compiler of templates that come with the package, for a target.

    They are those that are `KernelTemplate.warmed_like` the one that is named.
    """
    warmed = find_template(name)
    _warm_up(warmed, arch)
    # Else each compiler of it would import it, which takes 11 ms (two cores).
    beside = find_template(warmed.complement) if warmed.complement else None

    def compile_what_is_asked(asked: Connection, request: Mapping[str, Any]) -> None:
        template = find_template(request["template"])
        os.environ["CUTE_DSL_ARCH"] = arch
        os.nice(_NICENESS)
        serve(asked, partial(_build_task, template, arch, Path(request["store"])), request["processes"])

    return (compile_what_is_asked, beside.warm_up_beside) if beside is not None else compile_what_is_asked


def _build_task(template: KernelTemplate, arch: str, root: Path, task: Task) -> None:
    if task["space"] != template.name:  # of a pool beside the template's
        template = find_template(task["space"])
    key = ArtifactKey.of(template, Configuration.of(task["configuration"]), task["signature"], arch)
    build(template, key, ArtifactStore(root))
