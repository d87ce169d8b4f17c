"""The conformance suite of engines: what searches and campaigns rely on.

Subclass `EngineConformance` in a test module, say how an engine is opened and what is known of its configurations, and
pytest runs every check::

    from tilescout.search.engines.testing import EngineConformance

    class TestMyEngine(EngineConformance):
        problem = GemmProblem(64, 64, 64)
        right = ({"stages": 2}, {"stages": 3})
        wrong = ({"stages": 9},)

        def open_engine(self):
            return MyEngine(template)

The checks are plain methods, so that they run without pytest too. Each opens an engine, unless `engine` is given one
that several share.
"""

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import date
from typing import Any

import numpy as np

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import CannotMeasureError, Engine, Task
from tilescout.search.engines.evaluator import Evaluator, evaluate
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.measure.provenance import Provenance
from tilescout.spaces.errors import TilescoutError
from tilescout.spaces.knobs import Configuration, Value
from tilescout.spaces.problems import Problem

__all__ = ["EngineConformance"]

_UNBEATEN = 1e-6  # a ratio to the library that no kernel reaches


class EngineConformance:
    """The checks; every method whose name begins with ``test_`` is one.

    Attributes
    ----------
    problem
        What is measured.
    right
        At least two configurations that compile, compute the right result and are timed.
    wrong
        At least one that compiles and then fails: its result is wrong, or it can't be launched.
    refused
        Some that do not compile, if the engine compiles.
    impossible
        A problem that the engine can't measure, if there is one.
    patience
        Seconds that anything may take, closing included.
    """

    problem: Problem
    right: Sequence[Mapping[str, Value]]
    wrong: Sequence[Mapping[str, Value]]
    refused: Sequence[Mapping[str, Value]] = ()
    impossible: Problem | None = None
    patience: float = 120.0

    @abstractmethod
    def open_engine(self) -> Engine:
        """Open an engine that nothing else uses."""

    @contextmanager
    def engine(self) -> Iterator[Engine]:
        """An engine for one check; override it to lend the same to all."""
        with self.open_engine() as engine:
            yield engine

    def test_it_says_what_measures(self) -> None:
        """An engine has all that a study, a table and a tracker record of it."""
        with self.engine() as engine:
            assert engine.gpus >= 1, "an engine has a GPU at least"
            assert all(engine.capacity(gpus) >= 1 for gpus in range(1, engine.gpus + 1)), "nothing can be in flight"
            assert engine.device.name, "the device has no name"
            assert engine.product, "the product has no name"
            assert engine.protocol, "the protocol has no version"
            assert engine.protocol_text, "the protocol is not described"
            assert len(engine.source_hash) > 0, "the source has no hash"
            assert engine.recorded <= date.today(), "what is measured was not measured in the future"
            assert all(isinstance(version, str) for version in engine.versions.values()), "versions are text"
            assert isinstance(engine.provenance, Provenance)
            assert engine.provenance.description.splitlines() == [engine.provenance.description], "not one line"
            assert engine.library(self.problem), "the library's kernel has no name"

    def test_a_space_is_of_the_problem_and_the_device(self) -> None:
        """The space of a problem has what can be tried, the same whenever it is asked for."""
        with self.engine() as engine:
            space = engine.space(self.problem)
            assert space.problem == self.problem
            assert space.device == engine.device
            for values in (*self.right, *self.wrong, *self.refused):
                assert values in space, f"{values} is not in the space"
            again = engine.space(self.problem)
            assert np.array_equal(space.codes, again.codes), "the space is another when it is asked for again"
            if self.impossible is not None:
                try:
                    engine.space(self.impossible)
                except TilescoutError:
                    pass
                else:
                    raise AssertionError(f"{self.impossible} is not refused")

    def test_compiling_gives_an_artifact_or_says_why_there_is_none(self) -> None:
        """A failure to compile is an outcome; a configuration that is compiled again is the same artifact."""
        with self.engine() as engine:
            asked = [*self.right, *self.refused, self.right[0]]
            futures = [engine.compile(Configuration.of(each), self.problem.signature) for each in asked]
            built = [self._settled(future) for future in futures]
            right, refused, again = built[: len(self.right)], built[len(self.right) : -1], built[-1]
            assert all(isinstance(each, Artifact) for each in right), f"right configurations do not compile: {right}"
            assert again == right[0], "compiled twice, a configuration is two artifacts"
            for failure in refused:
                assert isinstance(failure, CompileFailure), f"{failure} is no failure"
                assert failure.error, "a failure has no reason"
                assert "\n" not in failure.error, "a reason has more than one line"
                assert failure.compile_seconds >= 0

    def test_every_gpu_is_prepared_and_measures(self) -> None:
        """All GPUs answer, by their numbers."""
        with self.engine() as engine:
            for gpu in range(engine.gpus):
                (task,) = self._tasks(engine, self.right[:1], gpu)
                assert np.isfinite(task.library_us), "the library's time is not finite"
                assert task.library_us > 0, "the library takes no time"
                (measured,) = self._settled(engine.measure(gpu, [task]))
                assert measured.ok, f"GPU {gpu}: {measured}"

    def test_a_batch_is_answered_in_order_and_what_fails_stops_nothing(self) -> None:
        """A measurement a task, in the order of the tasks; a failure says why, and what comes after it is measured."""
        with self.engine() as engine:
            asked = [*self.wrong, *self.right, *self.wrong, self.right[0]]
            tasks = self._tasks(engine, asked)
            measured = self._settled(engine.measure(0, tasks))
            assert len(measured) == len(asked), f"{len(measured)} measurements of {len(asked)} tasks"
            for values, task, outcome in zip(asked, tasks, measured, strict=True):
                if values in self.wrong:
                    assert outcome.failed, f"{values} is wrong, and measured as {outcome}"
                    assert outcome.error, f"the failure of {values} has no reason"
                    assert outcome.timing is None, f"{values} is wrong, and timed"
                else:
                    assert outcome.ok, f"{values} is right, and measured as {outcome}"
                    assert outcome.timing is not None
                    assert outcome.timing.library_us == task.library_us, "timed against another time of the library"
                    assert outcome.timing.ratio_low <= outcome.timing.ratio <= outcome.timing.ratio_high
                assert outcome.gpu_seconds >= 0
                assert outcome.compile_seconds >= 0

    def test_an_incumbent_may_prune_and_without_one_nothing_is_pruned(self) -> None:
        """A configuration slower than the incumbent may be given up early; that is no failure."""
        with self.engine() as engine:
            for incumbent, allowed in ((_UNBEATEN, {Status.OK, Status.PRUNED}), (None, {Status.OK})):
                tasks = self._tasks(engine, self.right, incumbent=incumbent)
                for outcome in self._settled(engine.measure(0, tasks)):
                    assert outcome.status in allowed, f"with incumbent {incumbent}: {outcome}"
                    assert outcome.timing is not None or outcome.pilot_us is not None, "nothing is known of its time"

    def test_a_race_gives_ratios_or_is_refused(self) -> None:
        """A race has a ratio a round and task; an engine that can't measure anew says so."""
        with self.engine() as engine:
            tasks = self._tasks(engine, self.right)
            self._settled(engine.measure(0, tasks))
            race = engine.race(0, tasks, rounds=3, pairs=2, seed=0)
            if not engine.measures_anew:
                wait([race], self.patience)
                assert isinstance(race.exception(0), CannotMeasureError), "a race of what can't be raced is not refused"
                return
            ratios = self._settled(race)
            assert ratios.shape == (3, len(tasks)), f"ratios of shape {ratios.shape}"
            assert np.isfinite(ratios).all(), "a ratio is not finite"
            assert (ratios > 0).all(), "a ratio is not positive"

    def test_a_glance_gives_ratios_or_is_refused(self) -> None:
        """A glance has the library's time, and a ratio a round and task; an engine that has none says so."""
        with self.engine() as engine:
            tasks = self._tasks(engine, self.right)
            glance = engine.glances(0, [tasks, tasks[:1]], rounds=2, seed=0)
            wait([glance], self.patience)
            if (refused := glance.exception(0)) is not None:
                assert isinstance(refused, CannotMeasureError), "a glance of what can't be glanced at is not refused"
                return
            found = self._settled(glance)
            assert len(found) == 2, "two problems were asked about"
            for (library_us, ratios), asked in zip(found, (len(tasks), 1), strict=True):
                assert library_us > 0, "the library takes no time"
                assert ratios.shape == (2, asked), f"ratios of shape {ratios.shape}"
                assert (ratios > 0).all(), "a ratio is not positive"

    def test_an_evaluator_gets_every_outcome_once(self) -> None:
        """As many as the capacity are in flight, and each configuration comes back once with what became of it."""
        with self.engine() as engine, Evaluator(engine, self.problem) as evaluator:
            wanted = {evaluator.space.index(values): values for values in (*self.right, *self.wrong, *self.refused)}
            outcomes = list(evaluate(evaluator, wanted))
            found = sorted(index for index, _ in outcomes)
            assert found == sorted(wanted), f"submitted {sorted(wanted)}, got {found}"
            for index, outcome in outcomes:
                assert isinstance(outcome, Measurement)
                assert outcome.ok == (wanted[index] in self.right), f"{wanted[index]}: {outcome}"
                if wanted[index] in self.refused:
                    assert outcome.status in (Status.COMPILE_ERROR, Status.COMPILE_TIMEOUT)

    def test_closing_settles_what_is_in_flight_and_can_be_repeated(self) -> None:
        """Closing does not take long, and settles every future."""
        engine = self.open_engine()
        try:
            in_flight: list[Future[Any]] = [engine.prepare(0, self.problem)]
            for values in (*self.right, *self.wrong, *self.refused):
                in_flight.append(engine.compile(Configuration.of(values), self.problem.signature))
            started = time.monotonic()
        finally:
            engine.close()
        assert time.monotonic() - started < self.patience, "closing takes too long"
        wait(in_flight, 1.0)
        # Not those that `wait` returns: it takes a future that was cancelled before a thread came to it for unsettled.
        unsettled = [future for future in in_flight if not future.done()]
        assert not unsettled, f"{len(unsettled)} of {len(in_flight)} calls are not settled after closing"
        engine.close()

    def _tasks(
        self, engine: Engine, asked: Sequence[Mapping[str, Value]], gpu: int = 0, incumbent: float | None = None
    ) -> list[Task]:
        """Compiled configurations, on a GPU that is prepared."""
        configurations = [Configuration.of(values) for values in asked]
        compiling = [engine.compile(configuration, self.problem.signature) for configuration in configurations]
        library_us = self._settled(engine.prepare(gpu, self.problem))
        tasks = []
        for configuration, future in zip(configurations, compiling, strict=True):
            artifact = self._settled(future)
            assert isinstance(artifact, Artifact), f"{configuration} does not compile: {artifact.error}"
            tasks.append(Task(configuration, artifact, self.problem, library_us, incumbent))
        return tasks

    def _settled(self, future: "Future[Any]") -> Any:
        return future.result(self.patience)
