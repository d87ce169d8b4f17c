"""Try configurations of one problem by an engine: compile them and measure them, both at the same time."""

import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import Engine, Task
from tilescout.search.engines.library_candidates import Candidate, best_of_own, fastest_candidate, own_candidates
from tilescout.search.engines.peers import timed_peer
from tilescout.search.engines.races import Racetrack, compiled_again
from tilescout.search.measure.library_best import BESIDE, CANDIDATES, CUBLASLT, LibraryBest, Peer
from tilescout.search.measure.measurement import Measurement
from tilescout.search.measure.provenance import Provenance
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.closing import Closing
from tilescout.spaces.errors import DeviceError, ProblemError, SpaceError
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.launched import codes_known, kernels_of, served_by
from tilescout.spaces.problems import Problem
from tilescout.spaces.space import Indices


class Evaluator(Closing):
    """Tries configurations on one problem by an engine, on one or more of its GPUs.

    `submit` hands a configuration over, `wait` gives outcomes back in the order in which they finish. Compiling runs
    ahead: as many configurations as `capacity` may be submitted and not yet returned. A failure of a configuration is
    an outcome, never an exception. Use it as a context manager. The engine is not closed with it: the evaluators of
    several problems may share one.

    Parameters
    ----------
    engine
        Compiles and measures.
    problem
        The problem that is tuned.
    gpus
        Numbers of the GPUs to use; None takes all. Without one, nothing can be measured before `move`.
    like
        One of the same problem by an engine of other kernels: the library's best is asked for once.

    Attributes
    ----------
    engine, template, problem
        The engine, what it compiles, and the problem.
    space
        The configurations that can be tried.
    device
        The GPU whose times are reported.
    library
        The function that calls the library's kernel; times are relative to it.
    capacity
        Most configurations in flight.
    waited, lent
        Seconds that were spent in `wait`, and for which another search had the GPU.
    elsewhere
        The lowest ratio to the library that the search found in other spaces; infinite if it knows none.

    Raises
    ------
    ProblemError, SpaceError
        If the template can't compute the problem, or not on this device.
    TableError
        If a table that is replayed holds nothing of the problem.
    """

    def __init__(
        self,
        engine: Engine,
        problem: Problem,
        gpus: Sequence[int] | None = None,
        like: "Evaluator | None" = None,
    ) -> None:
        check_kinds(DeviceError, engine=(engine, Engine), gpus=(gpus, Collection | None))
        check_kinds(ProblemError, problem=(problem, Problem))
        self.engine, self.template, self.problem = engine, engine.template, problem
        self.device = engine.device
        self._on_gpu = dict.fromkeys(range(engine.gpus) if gpus is None else gpus, 0)  # tasks in flight, by GPU
        self.capacity = engine.capacity(max(1, len(self._on_gpu)))
        self._prepared = engine.prepare(next(iter(self._on_gpu)), problem) if self._on_gpu else None
        self.space = engine.space(problem)  # a second or less, while a GPU is set up
        self.library = engine.library(problem)
        self._in_flight = 0
        self._compiling: dict[int, Future[Artifact | CompileFailure]] = {}
        self._compiled: deque[tuple[int, bool, Artifact]] = deque()
        self.waited = self.lent = 0.0
        self.elsewhere = math.inf
        self._expected: list[Future[Artifact | CompileFailure]] = []
        self._done = _Outcomes()
        self._incumbent = math.inf
        self._lock = threading.RLock()  # an outcome may be there at once, and hands over the next
        self._closed = False
        self._beside: dict[int, Task] = {}
        self._raced: dict[int, Artifact] = {}  # a race of many short heats would look each up every time
        self._like, self._asking = like, threading.Lock()
        self._candidate: Candidate | None = None

    @property
    def provenance(self) -> Provenance:
        """Where the measurements come from, once the engine is ready to measure.

        Raises
        ------
        DeviceError
            If a GPU can't be used.
        """
        return self.engine.provenance

    @property
    def measures_anew(self) -> bool:
        """Whether configurations can `race`."""
        return self.engine.measures_anew

    @property
    def has_gpu(self) -> bool:
        """Whether the problem is set up on a GPU, or is being."""
        return self._prepared is not None

    def stored(self) -> Indices:
        """Indices of the configurations whose kernels need not be compiled, in order."""
        return self._compiled_as(self.engine.stored(self.problem.signature))

    def stock(self) -> Indices:
        """Indices of the configurations that the kernels of the template's stock serve, compiled or not, in order."""
        return self._compiled_as(self.template.stock(self.problem, self.device))

    @cached_property
    def kernels(self) -> NDArray[np.int64]:
        """The number of the kernel that each configuration is compiled as, of shape [configurations]."""
        launched = self.template.launched
        return kernels_of(launched, self.space.knobs, self.space.codes) if launched else np.arange(len(self.space))

    def _compiled_as(self, configurations: Iterable[Configuration]) -> Indices:
        """Indices of those that are compiled as one of some configurations, which may be illegal for the problem."""
        if not self.template.launched:
            return np.array(sorted(self.space.index(each) for each in configurations if each in self.space), np.int64)
        codes = codes_known(self.space.knobs, configurations)
        return served_by(kernels_of(self.template.launched, self.space.knobs, codes), self.kernels)

    def expect(self, index: int) -> None:
        """Start compiling a configuration that is likely to be submitted; if it never is, nothing hears of it."""
        self._expected.append(self.engine.expect(self.space[index], self.problem.signature))

    def submit(self, index: int, incumbent: float | None = None) -> None:
        """Start trying the configuration with this index in `space`.

        Parameters
        ----------
        index
            The configuration.
        incumbent
            The best ratio to the library so far, infinite if there is none: a configuration that is clearly slower may
            be given up early. None tries it in full.

        Raises
        ------
        IndexError
            If the space has no such configuration.
        RuntimeError
            If as many as `capacity` are in flight, or the evaluator was closed.
        DeviceError
            If the problem can't be set up.
        """
        if self._closed:
            raise RuntimeError("the evaluator was closed")
        if not 0 <= index < len(self.space):
            raise IndexError(f"no configuration {index}, the space holds {len(self.space)}")
        configuration = self.space[index]  # what is no whole number is refused before it counts as in flight
        if self._in_flight >= self.capacity:
            many = "one configuration" if self.capacity == 1 else f"{self.capacity} configurations"
            raise RuntimeError(f"the evaluator takes {many} at a time: wait for an outcome first")
        self.library_us()  # nothing is measured before
        self._in_flight += 1
        # Compiling takes a while: by the time the kernel is measured, a better incumbent may be known.
        if incumbent is not None:
            self._incumbent = min(self._incumbent, incumbent)
        compiled = self._compiling[index] = self.engine.compile(configuration, self.problem.signature)
        done = self._done
        compiled.add_done_callback(
            self._heard(done, lambda: self._take(done, index, incumbent is not None, compiled.result()))
        )

    def wait(self) -> list[tuple[int, Measurement]]:
        """Block until at least one submitted configuration is done; return all that are, with their indices.

        An error is raised once all outcomes that are there have been returned.

        Raises
        ------
        RuntimeError
            If nothing is in flight.
        DeviceError, StoreError, BuildError
            If the engine could not try a configuration at all.
        """
        if not self._in_flight:
            raise RuntimeError("there is nothing to wait for: submit a configuration first")
        begun = time.monotonic()
        outcomes = [self._done.get()]
        self.waited += time.monotonic() - begun
        while not self._done.empty():
            outcomes.append(self._done.get())
        found = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if found:
            self._in_flight -= len(found)
            for error in errors:
                self._done.put(error)
            return found
        self._in_flight -= len(errors)
        raise errors[0]

    @property
    def has_outcome(self) -> bool:
        """Whether `wait` would return at once."""
        return not self._done.empty()

    def give_up(self) -> None:
        """Forget all that is in flight: its compilers are ended, and what is being measured is not heard of."""
        with self._lock:
            self._done = _Outcomes()
            self._in_flight = 0
            self._compiled.clear()
            compiling, self._compiling = [*self._compiling.values(), *self._expected], {}
            self._expected = []
        for future in compiling:
            future.cancel()

    def library_us(self) -> float:
        """The library's steady time on the problem, in µs; waits until the problem is set up.

        Raises
        ------
        DeviceError
            If it can't be.
        RuntimeError
            If there is no GPU yet.
        """
        if self._prepared is None:
            raise RuntimeError("the evaluator has no GPU yet: move it to one")
        return self._prepared.result()

    def library_best(self, count: int = CANDIDATES) -> LibraryBest | None:
        """The fastest of `count` of the library's own kernels, which then can `race` under the number `BESIDE`.

        See `tilescout.search.engines.library_candidates.listed_candidates`; what was recorded is of the usual number.
        None if the library has no list of candidates for what the kernels compute, or they are on it themselves.

        Nothing may be in flight.

        Raises
        ------
        CannotMeasureError, SpaceError, DeviceError
            If it is not known: none of the candidates works, or nothing is measured here and it was not recorded.
        """
        recorded = self.engine.recorded_library_best(self.problem)
        if recorded is not None:
            return recorded
        found = (self._like or self)._fastest_candidate(count)
        if found is None:
            return None
        self._beside[BESIDE] = found.task
        return found.best

    @cached_property
    def own_candidates(self) -> Sequence[int]:
        """Indices of the library's candidates where the kernels are its own, its first guess first; else none."""
        return own_candidates(self.template, self.space)

    def best_of_own(self, measured: Mapping[int, Measurement]) -> LibraryBest | None:
        """The fastest of `own_candidates` by what was measured of them; None if the kernels are not the library's own.

        Raises
        ------
        CannotMeasureError
            If none of them was timed.
        """
        return best_of_own(self.template, self.space, self.provenance.versions.get(CUBLASLT, ""), measured)

    def _fastest_candidate(self, count: int) -> Candidate | None:
        with self._asking:
            if self._candidate is None:
                gpu = next(iter(self._on_gpu))
                self._candidate = fastest_candidate(self.engine, gpu, self.problem, self.library_us(), count)
            return self._candidate

    def peers(self, names: Sequence[str]) -> list[Peer]:
        """The peers of these names, tuned and timed now, which takes up to a minute each; nothing may be in flight.

        Those that work can `race` under the numbers below `BESIDE`, the first under ``BESIDE - 1``.

        Raises
        ------
        SpaceError
            If there is no such peer.
        """
        found = []
        for number, name in enumerate(names, start=1):
            gpu = next(iter(self._on_gpu))
            peer, task = timed_peer(self.engine, gpu, self.problem, self.library_us(), name)
            found.append(peer)
            if task is not None:
                self._beside[BESIDE - number] = task
        return found

    def move(self, gpu: int) -> None:
        """Measure on another GPU from now on; nothing may be in flight."""
        self._on_gpu = {gpu: 0}
        if self._prepared is None:
            self._prepared = self.engine.prepare(gpu, self.problem)

    def entrant(self, index: int) -> Task:
        """The task of measuring a configuration that is right once more, for a race of another evaluator.

        Raises
        ------
        CannotMeasureError
            If it does not compile any more.
        """
        configuration = self.space[index]
        artifact = compiled_again(self.engine.compile(configuration, self.problem.signature))
        return Task(configuration, artifact, self.problem, self.library_us(), template=self.template)

    def admit(self, task: Task) -> int:
        """Have what another evaluator measures `race` here, too; its number there."""
        number = min((BESIDE, *self._beside)) - 1
        self._beside[number] = task
        return number

    def race(self, indices: Sequence[int], rounds: int, pairs: int, seed: int) -> NDArray[np.float64]:
        """Measure configurations that are right once more, in interleaved rounds; nothing may be in flight.

        They race on inputs that the search has not seen, where times depend on them. See `Racetrack.measure`; `indices`
        are of `space`, or of what `library_best` and `peers` found.
        """
        gpu, problem = next(iter(self._on_gpu)), self.problem.unseen
        library_us = self.engine.prepare(gpu, problem).result() if problem != self.problem else self.library_us()
        beside = {
            number: replace(task, problem=problem, library_us=library_us) for number, task in self._beside.items()
        }
        track = Racetrack(self.engine, gpu, problem, library_us, self.space, beside, self._raced)
        return track.measure(indices, rounds, pairs, seed)

    def close(self) -> None:
        """Drop configurations that are not measured yet; the outcome of one that is being measured is ignored."""
        with self._lock:
            self._closed = True
            self._compiled.clear()
            expected, self._expected = self._expected, []
        for future in expected:
            future.cancel()

    def _heard(self, done: "_Outcomes", act: Callable[[], None]) -> "Callable[[Future[Any]], None]":
        """A callback for a future that acts on its outcome; the caller of `wait` hears of any error."""

        def heard(future: "Future[Any]") -> None:
            try:
                act()
            except CancelledError:  # the engine was closed, or it was given up
                pass
            except BaseException as error:  # whatever it is
                done.put(error)

        return heard

    def _take(self, done: "_Outcomes", index: int, prunable: bool, compiled: Artifact | CompileFailure) -> None:
        with self._lock:
            if done is not self._done:
                return
            self._compiling.pop(index, None)
            if isinstance(compiled, CompileFailure):
                done.put((index, Measurement.of_failure(compiled)))
                return
            self._compiled.append((index, prunable, compiled))
            self._feed()

    def _feed(self) -> None:
        """Hand compiled configurations to the GPUs: one that is measured and one that waits on each."""
        while self._compiled and not self._closed:
            gpu = min(self._on_gpu, key=lambda each: self._on_gpu[each])
            if self._on_gpu[gpu] == 2:
                return
            index, prunable, artifact = self._compiled.popleft()
            self._on_gpu[gpu] += 1
            incumbent = self._incumbent if prunable else None
            task = Task(self.space[index], artifact, self.problem, self.library_us(), incumbent)
            measured = self.engine.measure(gpu, [task])
            measured.add_done_callback(self._heard(self._done, self._returned(self._done, gpu, index, measured)))

    def _returned(
        self, done: "_Outcomes", gpu: int, index: int, measured: "Future[list[Measurement]]"
    ) -> Callable[[], None]:
        def returned() -> None:
            [measurement] = measured.result()
            with self._lock:
                if measurement.timing is not None:
                    self._incumbent = min(self._incumbent, measurement.timing.ratio)
                self._on_gpu[gpu] -= 1
                self._feed()
            done.put((index, measurement))

        return returned


_Outcomes = queue.SimpleQueue[tuple[int, Measurement] | BaseException]


def evaluate(evaluator: Evaluator, indices: Iterable[int]) -> Iterator[tuple[int, Measurement]]:
    """Try configurations, as many at a time as the evaluator takes; yield each as it is done.

    Raises
    ------
    SpaceError
        If `indices` are none of the space, or `evaluator` is none.
    """
    check_kinds(SpaceError, evaluator=(evaluator, Evaluator), indices=(indices, Iterable))
    in_flight = 0
    for index in indices:
        check_kinds(SpaceError, index=(index, Integral))
        if not 0 <= index < len(evaluator.space):
            raise SpaceError(f"there is no configuration {index}: allowed are 0 to {len(evaluator.space) - 1}")
        evaluator.submit(index)
        in_flight += 1
        if in_flight == evaluator.capacity:
            done = evaluator.wait()
            in_flight -= len(done)
            yield from done
    while in_flight:
        done = evaluator.wait()
        in_flight -= len(done)
        yield from done
