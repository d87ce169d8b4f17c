"""Processes that compile at the same time and take turns on a GPU: each is alone on it while it measures."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import LOCK_EX, flock
from pathlib import Path
from signal import ITIMER_REAL, SIGALRM, setitimer, signal
from typing import Any

_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 2.0  # an exception that is raised while an object is deleted is lost


class OutOfTime(BaseException):
    """Patience has ended. No ``except Exception`` of a compiler takes it for an error of its own."""


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
        while self._left() > 0 and len(list(self.folder.glob("compiled-*"))) < self.processes:
            time.sleep(_LOOK_SECONDS)

    @contextmanager
    def within_patience(self) -> Iterator[None]:
        """Raise `OutOfTime` where the main thread is when patience ends."""

        def end(*_: object) -> None:
            raise OutOfTime

        before = signal(SIGALRM, end)
        setitimer(ITIMER_REAL, max(self._left(), _LOOK_SECONDS), _AGAIN_SECONDS)
        try:
            yield
        finally:
            setitimer(ITIMER_REAL, 0)
            signal(SIGALRM, before)

    def _left(self) -> float:
        return self._began + self.patience - time.monotonic()

    @contextmanager
    def benchmarks_alone(self) -> Iterator[None]:
        """Have each benchmark that TorchInductor runs while it compiles be a turn.

        What is benchmarked is called once before: a kernel is loaded then, which needs a core and no turn. With it in
        the turn, each of five processes took 14 to 19 s for 19 candidates of a product.
        """
        from torch._inductor.runtime.benchmarking import benchmarker

        def load(_: Any, benchmarked: Callable[[], Any], *arguments: Any, **options: Any) -> None:
            benchmarked()

        with self._alone_in(type(benchmarker), "benchmark_gpu", load):
            yield

    @contextmanager
    def contests_alone(self) -> Iterator[None]:
        """Have each contest of ``autotune`` be a turn."""
        from tilescout.search.autotuning import tuner

        with self._alone_in(tuner, "decide"):
            yield

    @contextmanager
    def _alone_in(
        self, owner: Any, name: str, before: Callable[..., None] = lambda *_, **options: None
    ) -> Iterator[None]:
        """Have each call of a function be a turn, before which another is called; one within another is part of it."""
        original, within = getattr(owner, name), False

        def in_turn(*arguments: Any, **options: Any) -> Any:
            nonlocal within
            if within:
                return original(*arguments, **options)
            before(*arguments, **options)
            with self.alone():
                within = True
                try:
                    return original(*arguments, **options)
                finally:
                    within = False

        setattr(owner, name, in_turn)
        try:
            yield
        finally:
            setattr(owner, name, original)
