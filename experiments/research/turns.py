"""Processes that compile at the same time and take turns on a GPU: each is alone on it while it measures."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

_LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Turns:
    """The turns of some processes.

    Attributes
    ----------
    folder
        They share it, and nobody else does.
    processes
        How many they are.
    patience
        Seconds from now for which they wait for each other.
    """

    folder: Path
    processes: int
    patience: float
    _began: float = field(default_factory=time.monotonic)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the others' turns to end, and be the only one on the GPU."""
        with (self.folder / "turn").open("wb") as file:
            flock(file, LOCK_EX)
            yield

    def meet(self, name: str) -> None:
        """Tell that this one has compiled, and wait for the others to have done so, or for patience to end."""
        (self.folder / f"compiled-{name}").touch()
        while time.monotonic() < self._began + self.patience:
            if len(list(self.folder.glob("compiled-*"))) >= self.processes:
                return
            time.sleep(_LOOK_SECONDS)

    @contextmanager
    def benchmarks_alone(self) -> Iterator[None]:
        """Have each benchmark that TorchInductor runs while it compiles be a turn; one within another is part of it."""
        from torch._inductor.runtime.benchmarking import benchmarker

        made: Any = type(benchmarker)
        original, within = made.benchmark_gpu, False

        def in_turn(*arguments: Any, **options: Any) -> Any:
            nonlocal within
            if within:
                return original(*arguments, **options)
            with self.alone():
                within = True
                try:
                    return original(*arguments, **options)
                finally:
                    within = False

        made.benchmark_gpu = in_turn
        try:
            yield
        finally:
            made.benchmark_gpu = original
