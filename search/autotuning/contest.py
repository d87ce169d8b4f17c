"""The contest of a product: our candidates and the library's own are verified, timed and raced against its choice."""

import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field, replace

from tilescout.search.build.artifacts import Artifact, CompileFailure
from tilescout.search.engines.engine import CannotMeasureError, Engine, Task
from tilescout.search.engines.library_candidates import Listed, listed_candidates
from tilescout.search.engines.races import Racetrack
from tilescout.search.export.decisions import Choice, Evidence, Outcome
from tilescout.search.measure.measurement import Timing
from tilescout.search.measure.race import Race, RaceOptions, race_fastest
from tilescout.spaces.errors import ExportError, SpaceError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate

_LOG = logging.getLogger(__name__)

STUDY = "autotune"
"""Names the evidence that is found while a model is compiled, in the place of a study."""


@dataclass(frozen=True)
class ContestOptions:
    """How a product is decided.

    Attributes
    ----------
    candidates
        Configurations that are compiled, the default among them; at least 1.
    others
        Of these, at most so many are of the complement of the space, where it has one that may be faster on the
        product.
    guesses
        Of those algorithms among which the library would choose; 0 leaves the library's own out.
    margin
        What a kernel must be proven to gain, relative. What runs around a product in a model is not what ran around
        it in the race: of twelve transformer blocks, the times of single products told the block's time up to 0.41 %
        (experiments/results/objectives.md). So a smaller gain may be none, and the library's choice stays.
    race
        How the best of them are told apart.
    seed
        Of the order in the race.
    """

    candidates: int = 10
    others: int = 4
    guesses: int = 8
    margin: float = 0.01
    race: RaceOptions = field(default_factory=lambda: RaceOptions(candidates=4))
    seed: int = 0

    def __post_init__(self) -> None:
        if self.candidates < 1:
            raise ExportError(f"a contest can't have {self.candidates} candidates: the default is always one")
        if self.others < 0 or self.guesses < 0:
            raise ExportError(
                f"a contest can't have {self.others} others and {self.guesses} guesses: 0 leaves them out"
            )
        if not 0 <= self.margin < 1:  # what was not proven as fast as the library is no decision for a kernel
            raise ExportError(
                f"a kernel can't have to gain {self.margin} of a time: allowed are numbers from 0 to below 1"
            )


@dataclass(frozen=True)
class Candidate:
    """A configuration that is being compiled.

    Attributes
    ----------
    configuration, compiled
        The configuration, and what it is compiled to.
    template
        Its template, if it is not that of the engine that measures: that of its complement.
    """

    configuration: Configuration
    compiled: "Future[Artifact | CompileFailure]"
    template: KernelTemplate | None = None


@dataclass(frozen=True)
class Entry:
    """A product whose candidates are being compiled.

    Attributes
    ----------
    problem
        The product.
    candidates
        Its configurations, the default first.
    """

    problem: GemmProblem
    candidates: Sequence[Candidate]

    def drop(self) -> None:
        """Compile no more of it."""
        for each in self.candidates:
            each.compiled.cancel()


def enter(
    engine: Engine,
    problem: GemmProblem,
    configurations: Sequence[Configuration],
    beside: Engine | None = None,
    others: Sequence[Configuration] = (),
) -> Entry:
    """Have the candidates of a product compiled, and others by an engine beside; the default comes first."""
    own = [Candidate(each, engine.compile(each, problem.signature)) for each in configurations]
    if beside is None:
        return Entry(problem, own)
    them = [Candidate(each, beside.compile(each, problem.signature), beside.template) for each in others]
    return Entry(problem, [*own, *them])


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
        If the GPU can't measure it, or no candidate compiles.
    """
    problem, ours = entry.problem, len(entry.candidates)
    preparing = engine.prepare(0, problem)  # while the last candidates are compiled
    artifacts = _compiled(entry, deadline)
    if artifacts is None:
        return None
    failures = [each.error for each in artifacts.values() if isinstance(each, CompileFailure)]
    if len(failures) == ours:  # of the product that says nothing, and what is decided is decided for good
        raise CannotMeasureError(f"none of its candidates compiles: {failures[0]}")
    library_us = preparing.result()
    listed = _listed(engine, problem, library_us, options.guesses)
    tasks = {
        at: Task(own.configuration, artifact, problem, library_us, math.inf, own.template)
        for at, artifact in artifacts.items()
        for own in [entry.candidates[at]]
        if isinstance(artifact, Artifact)
    } | dict(enumerate(listed.tasks if listed is not None else (), ours))
    measured = dict(zip(tasks, engine.measure(0, list(tasks.values())).result(), strict=True)) if tasks else {}
    timings = {at: each.timing for at, each in measured.items() if each.timing is not None}
    if not timings:
        errors = [each.error for each in (*artifacts.values(), *measured.values()) if each.error]
        return _left(engine, problem, library_us, f"no candidate works: {errors[0]}")
    try:
        race = _raced(engine, problem, library_us, tasks, timings, options)
    except CannotMeasureError as error:  # a kernel took the measuring process down, though it was right before
        return _left(engine, problem, library_us, f"no race: {one_line(error)}")
    answer, ratio = race.answer, race.ratios[race.answer]
    named = listed if answer >= ours else None
    whose = f"{named.library}'s algorithm {answer - ours + 1} of {len(named.tasks)}, " if named is not None else ""
    against = f"{engine.library(problem)}: {ratio.low:.4f} to {ratio.high:.4f} of its time"
    raced = {at: found.value for at, found in race.ratios.items()}
    theirs = [raced.get(at, timing.ratio) for at, timing in timings.items() if at >= ours]
    if listed is not None and theirs and named is None:
        against += f", {listed.library}'s best of {len(listed.tasks)} {min(theirs):.4f} of it"
    if ratio.high > 1 - options.margin:
        return _left(engine, problem, library_us, f"{whose}not proven to gain {options.margin:.0%} over {against}")
    evidence = replace(
        _evidence(engine, library_us, f"{whose}proven faster than {against}"),
        ratio=ratio.value, low=ratio.low, high=ratio.high, rounds=race.rounds,
        of=Choice.OURS if named is None else Choice.ALGORITHM,
    )  # fmt: skip
    return _outcome(engine, problem, evidence, tasks[answer], "" if named is None else named.version)


def _compiled(entry: Entry, deadline: float) -> dict[int, Artifact | CompileFailure] | None:
    found = {}
    try:
        for at, each in enumerate(entry.candidates):
            found[at] = each.compiled.result(_until(deadline))
    except LateError:
        entry.drop()
        return None
    return found


def _until(deadline: float) -> float | None:
    """Seconds that are left; None where there is no end to them."""
    return None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())


def _listed(engine: Engine, problem: GemmProblem, library_us: float, count: int) -> Listed | None:
    """The library's own candidates; None where they are not asked for, or the library can't be asked."""
    if not count:
        return None
    try:
        return listed_candidates(engine, 0, problem, library_us, count)
    except (CannotMeasureError, SpaceError) as error:
        _LOG.info("%s: the library's own algorithms take no part: %s", problem, one_line(error))
        return None


def _raced(
    engine: Engine,
    problem: GemmProblem,
    library_us: float,
    tasks: Mapping[int, Task],
    timings: Mapping[int, Timing],
    options: ContestOptions,
) -> Race:
    """The race of those that work, by their numbers.

    Raises
    ------
    CannotMeasureError
        As `Racetrack.measure` does.
    """
    track = Racetrack(engine, 0, problem, library_us, (), tasks)
    # The first that works, our default if it does, is what another candidate must be proven against.
    return race_fastest(timings, min(timings), track.measure, options.race, options.seed)


def _left(engine: Engine, problem: GemmProblem, library_us: float, reason: str) -> Outcome:
    """The outcome that leaves a product to the library."""
    return _outcome(engine, problem, _evidence(engine, library_us, reason))


def _evidence(engine: Engine, library_us: float, reason: str) -> Evidence:
    provenance = engine.provenance
    return Evidence(
        STUDY, reason, measured_by=provenance.description, versions=provenance.versions, library_us=library_us
    )


def _outcome(
    engine: Engine, problem: GemmProblem, evidence: Evidence, answer: Task | None = None, library: str = ""
) -> Outcome:
    """An outcome, once its evidence is plausible: what is stored is checked by the same rule when it is read.

    Raises
    ------
    CannotMeasureError
        If it is not.
    """
    template, configuration = engine.template, None
    if answer is not None:
        template, configuration = answer.template or template, answer.configuration
    device = engine.device.name
    try:
        evidence.check(problem, device)
    except (TypeError, ValueError) as error:
        raise CannotMeasureError(f"{problem} was not measured well: {error}") from error
    source = template.source_hash
    return Outcome(
        problem, template.name, source, device, evidence.choice, evidence, configuration, engine.objective, library
    )
