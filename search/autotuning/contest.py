"""The contest of a product: its candidates are compiled, verified, timed and raced against the library."""

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field, replace

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import CannotMeasureError, Engine, Task
from tilescout.search.engines.races import Racetrack
from tilescout.search.export.decisions import INDIFFERENCE, Evidence, Outcome
from tilescout.search.measure.race import Race, RaceOptions, race_fastest
from tilescout.spaces.errors import one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration

STUDY = "autotune"
"""Names the evidence that is found while a model is compiled, in the place of a study."""


@dataclass(frozen=True)
class ContestOptions:
    """How a product is decided.

    Attributes
    ----------
    candidates
        Configurations that are compiled, the default among them.
    race
        How the best of them are told apart.
    seed
        Of the order in the race.
    """

    candidates: int = 10
    race: RaceOptions = field(default_factory=lambda: RaceOptions(candidates=4))
    seed: int = 0


@dataclass(frozen=True)
class Entry:
    """A product whose candidates are being compiled.

    Attributes
    ----------
    problem
        The product.
    candidates
        Its configurations, the default first, each with what it is compiled to.
    """

    problem: GemmProblem
    candidates: "Sequence[tuple[Configuration, Future[Artifact | CompileFailure]]]"

    def drop(self) -> None:
        """Compile no more of it."""
        for _, compiled in self.candidates:
            compiled.cancel()


def enter(engine: Engine, problem: GemmProblem, configurations: Sequence[Configuration]) -> Entry:
    """Have the candidates of a product compiled, beside whatever else is going on; the default comes first."""
    return Entry(problem, [(each, engine.compile(each, problem.signature)) for each in configurations])


def decide(engine: Engine, entry: Entry, options: ContestOptions, deadline: float) -> Outcome | None:
    """Run the contest of a product on the first GPU of an engine.

    Parameters
    ----------
    engine
        Measures.
    entry
        What `enter` returned.
    options
        See `ContestOptions`.
    deadline
        When it must have begun to measure, by `time.monotonic`.

    Returns
    -------
    Outcome
        Whose kernel is chosen; None if the candidates were not compiled in time.

    Raises
    ------
    CannotMeasureError, DeviceError
        If the GPU can't measure it.
    """
    artifacts = _compiled(entry, deadline)
    if artifacts is None:
        return None
    problem, configurations = entry.problem, [each for each, _ in entry.candidates]
    library_us = engine.prepare(0, problem).result()
    tasks = {
        at: Task(configurations[at], artifact, problem, library_us, math.inf)
        for at, artifact in artifacts.items()
        if isinstance(artifact, Artifact)
    }
    measured = dict(zip(tasks, engine.measure(0, list(tasks.values())).result(), strict=True)) if tasks else {}
    timings = {at: each.timing for at, each in measured.items() if each.timing is not None}
    if not timings:
        errors = [each.error for each in (*artifacts.values(), *measured.values()) if each.error]
        return _outcome(engine, problem, _evidence(engine, library_us, f"no candidate works: {errors[0]}"), None)
    track = Racetrack(engine, 0, problem, library_us, configurations)
    try:
        # The default is the first that works: it is what another candidate must be proven against.
        race = race_fastest(timings, min(timings), track.measure, options.race, options.seed)
    except CannotMeasureError as error:  # a kernel took the measuring process down, though it was right before
        return _outcome(engine, problem, _evidence(engine, library_us, f"no race: {one_line(error)}"), None)
    return _judged(engine, problem, library_us, race, configurations)


def _compiled(entry: Entry, deadline: float) -> dict[int, Artifact | CompileFailure] | None:
    found = {}
    try:
        for at, (_, compiled) in enumerate(entry.candidates):
            found[at] = compiled.result(max(0.0, deadline - time.monotonic()))
    except LateError:
        entry.drop()
        return None
    return found


def _judged(
    engine: Engine, problem: GemmProblem, library_us: float, race: Race, configurations: Sequence[Configuration]
) -> Outcome:
    ratio = race.ratios[race.answer]
    proven = ratio.high <= 1 + INDIFFERENCE
    verdict = f"{'' if proven else 'not '}proven as fast as {engine.library(problem)}"
    evidence = replace(
        _evidence(engine, library_us, f"{verdict}: {ratio.low:.4f} to {ratio.high:.4f} of its time"),
        ratio=ratio.value, low=ratio.low, high=ratio.high, rounds=race.rounds,
    )  # fmt: skip
    return _outcome(engine, problem, evidence, configurations[race.answer] if proven else None)


def _evidence(engine: Engine, library_us: float, reason: str) -> Evidence:
    provenance = engine.provenance
    return Evidence(
        STUDY, reason, measured_by=provenance.description, versions=provenance.versions, library_us=library_us
    )


def _outcome(engine: Engine, problem: GemmProblem, evidence: Evidence, configuration: Configuration | None) -> Outcome:
    """An outcome, once its evidence is plausible: what is stored is checked by the same rule when it is read.

    Raises
    ------
    CannotMeasureError
        If it is not.
    """
    template, device = engine.template, engine.device.name
    try:
        evidence.check(problem, device)
    except (TypeError, ValueError) as error:
        raise CannotMeasureError(f"{problem} was not measured well: {error}") from error
    return Outcome(
        problem, template.name, template.source_hash, device, evidence.choice, evidence, configuration, engine.objective
    )
