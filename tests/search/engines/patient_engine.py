"""An engine for tests on a machine of any speed: it tells what hangs soon, and waits long for what is slow."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import Task
from tilescout.search.engines.local import LocalEngine
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.process import MeasuringProcess
from tilescout.spaces.knobs import Configuration

HANG_SECONDS = 3.0
"""Seconds that compilers and kernels of `plain_gemm` have which never end; the engine's options hold for the others."""


class PatientEngine(LocalEngine):
    """A local engine that has less patience with those kernels of `plain_gemm` that hang than with all others."""

    def compile(self, configuration: Configuration, signature: str) -> "Future[Artifact | CompileFailure]":
        if configuration["fault"] == "compiler_hangs":
            self._pool.options = replace(self.options.compile, timeout=HANG_SECONDS)
        compiled = super().compile(configuration, signature)
        self._pool.options = self.options.compile
        return compiled

    def measure(self, gpu: int, tasks: Sequence[Task]) -> "Future[list[Measurement]]":
        def have(seconds: float) -> "Future[None]":
            def give(process: MeasuringProcess) -> None:
                process.timeout = seconds

            return self._on(gpu, give)

        if any(task.configuration["fault"] == "endless" for task in tasks):
            have(HANG_SECONDS)
        measured = super().measure(gpu, tasks)
        have(self.options.timeout)
        return measured
