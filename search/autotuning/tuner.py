"""Decide about the matrix products of a graph: from the evidence store, else by contests within a budget of seconds."""

import hashlib
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from threading import TIMEOUT_MAX, RLock, Timer, current_thread

from tilescout.costmodel.roofline import Roofline
from tilescout.search.autotuning.cached import CachedCode
from tilescout.search.autotuning.contest import ContestOptions, Entry, decide, enter
from tilescout.search.autotuning.pace import Pace
from tilescout.search.autotuning.ranks import agree
from tilescout.search.autotuning.shortlist import shortlist
from tilescout.search.autotuning.store import EvidenceStore
from tilescout.search.autotuning.summary import Summary
from tilescout.search.build.artifacts import ArtifactStore
from tilescout.search.build.compilers import CompileOptions
from tilescout.search.engines.complements import complemented
from tilescout.search.engines.engine import Engine
from tilescout.search.export.bundle import Bundle
from tilescout.search.export.decisions import Choice, Outcome
from tilescout.search.export.graph_rewrite import Sighting
from tilescout.spaces.arguments import check_kinds
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import ExportError, ProblemError, SpaceError, StoreError, TilescoutError, one_line
from tilescout.spaces.gemm import GemmProblem
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.templates import KernelTemplate

_LOG = logging.getLogger(__name__)

_AHEAD = 3
"""Products whose candidates are compiled ahead of the one that is measured."""

_KEPT = 60.0
"""Seconds after which outcomes are written while others are found: each time all kernels are copied to a new bundle."""

_SIZES = tuple(2**power for power in range(14))
"""Where m is known only when the model runs, it is tuned at these too: our kernel then serves what lies between two."""

_FOR_OTHER_SIZES = 0.5
"""The share of what is left of the budget that these may have: other graphs may come."""


@dataclass(frozen=True)
class TunerOptions:
    """How much is spent on deciding.

    Attributes
    ----------
    seconds
        For all graphs of this process together, by the clock on the wall; infinite if all is to be decided. A contest
        that has begun is ended.
    contest
        How a product is decided.
    patience
        Seconds for which another process that decides is waited for; another rank of the job, for as much longer as
        the budget has.
    idle
        Seconds without a question after which the compilers and the measuring process are ended; they hold some of the
        GPU's memory.
    side_by_side
        Whether products of few rows that read the same activations become branches of a CUDA graph, as
        `tilescout.search.export.siblings.rewrite` says.
    keys_in_place
        Whether heads of attention that share keys and values read them in place where a model copies them for each, as
        `tilescout.search.export.siblings.heads` says.
    dependent_launch
        Whether TorchInductor's own kernels let the next kernel begin before they end (programmatic dependent launch),
        in graphs in which products run our kernels; ours do so anyway. It makes the replay of a CUDA graph shorter, and
        launches by the host slower (`experiments/results/one-line.md`). None is yes where TorchInductor records CUDA
        graphs, as in its mode reduce-overhead. True is for those who record CUDA graphs of compiled code themselves.
        Products are then decided by kernels that are timed between such kernels, one of which Triton compiles.
    standby
        Whether processes stand by for the next process that tunes, as `CompileOptions.standby` says.
    """

    seconds: float = 20.0
    contest: ContestOptions = field(default_factory=ContestOptions)
    patience: float = 300.0
    idle: float = 30.0
    side_by_side: bool = True
    keys_in_place: bool = True
    dependent_launch: bool | None = None
    standby: bool = CompileOptions.standby

    def __post_init__(self) -> None:
        check_kinds(ExportError, **{name: (getattr(self, name), Real) for name in ("seconds", "patience", "idle")})
        if not self.seconds >= 0:
            raise ExportError(f"the budget of autotune can't be {self.seconds} s: allowed are numbers from 0 on")
        if not self.patience >= 0 or not self.idle >= 0:
            raise ExportError(
                f"a tuner can't wait {self.patience} s, or stay {self.idle} s: allowed are numbers from 0 on"
            )


class Tuner:
    """Decides about products, and keeps the account.

    It works while a graph is compiled, before any code is written: generated code can't change later, and a CUDA graph
    that recorded it neither. What is not decided within the budget stays the library's in this process; the next
    process goes on with it.

    Parameters
    ----------
    template, device
        The kernels, and the GPU that they run on.
    store
        Where decisions are kept.
    artifacts
        Folder of compiled kernels.
    open_engine
        Starts what compiles and measures; called when something must be decided.
    options
        See `TunerOptions`.
    beside
        Another tuner, with which it shares the budget and the account. Of both, one has an engine at a time.
    """

    def __init__(
        self,
        template: KernelTemplate,
        device: Device,
        store: EvidenceStore,
        artifacts: Path,
        open_engine: Callable[[], Engine],
        options: TunerOptions,
        beside: "Tuner | None" = None,
    ) -> None:
        self.template, self.device, self.store, self.options = template, device, store, options
        self.summary: Summary = Summary(cached=CachedCode()) if beside is None else beside.summary
        if self.summary.cached is not None:
            self.summary.cached = self.summary.cached.beside(store.bundles)
        self._beside = beside
        if beside is not None:
            beside._beside = self
        self._artifacts, self._open = artifacts, open_engine
        self._engine: Engine | None = None
        self._own = set[GemmProblem]()  # by this tuner: of the summary's, others may have been another's
        self._failed = ""  # why nothing can be measured; it is not tried again
        self._lock: RLock = beside._lock if beside is not None else RLock()  # of both, one decides at a time
        self._timer: Timer | None = None

    def decide(self, sightings: Sequence[Sighting]) -> Bundle | None:
        """The bundle that holds what is decided about the products of a graph; None if nothing is.

        Parameters
        ----------
        sightings
            The products, as `tilescout.search.export.graph_rewrite.find_products` tells them.
        """
        with self._lock:
            try:
                bundle = self._decided(sightings)
                self._account(sightings, bundle)
                return bundle
            finally:
                self._wait_for_more()

    def leave(self, sightings: Sequence[Sighting], reason: str) -> None:
        """Account for the products of a graph that nobody can decide about, and say why."""
        _LOG.warning("products of a graph run the library's kernels: %s", reason)
        with self._lock:
            self._account(sightings, None, reason)

    def _decided(self, sightings: Sequence[Sighting]) -> Bundle | None:
        bundle = None
        try:
            known = self.store.state().bundle
            bundle = self.store.bundle(known)
            # Another rank may have the whole of its budget left, and wait for another process first.
            patience = self.options.patience + self.options.seconds
            # Where all is known it is asked, too: another rank may have compiled this graph when less was.
            digest = agree(self._request(sightings), lambda: self._answer(sightings, known), patience, known)
            bundle = None  # what this rank knows is not what the job runs
            bundle = self._agreed(digest)
        except (TilescoutError, OSError) as error:
            self._fail(error)
        if self.options.seconds and self._wanted(sightings, bundle):
            self._leave_unfinished()
        return bundle

    def _fail(self, error: Exception) -> None:
        self._failed = self._failed or one_line(error)
        _LOG.warning("products that are not decided run the library's kernels: %s", self._failed)

    def _leave_unfinished(self) -> None:
        """Keep the code of a graph from whoever can tune, whatever the reason: another rank may have had no time."""
        try:
            self.store.leave_unfinished()
        except (TilescoutError, OSError) as error:
            if not self._failed:
                self._fail(error)

    def _agreed(self, digest: str) -> Bundle | None:
        if not digest:
            return None
        bundle = self.store.bundle(digest)
        if bundle is None:
            raise StoreError(
                f"the rank that decided wrote a bundle that is not in {self.store.bundles}: let all ranks see one store"
            )
        return bundle

    def key(self) -> str:
        """A name for what compiled code depends on.

        It is another one after a graph was left unfinished: who can tune must not find the code of that in a cache. Who
        only looks up finds the code of what is known now.
        """
        state = self.store.state()
        return f"{state.name} {state.unfinished if self.options.seconds else state.bundle}"

    def close(self) -> None:
        """End the compilers and the measuring process."""
        with self._lock:
            self._stop_timer()
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()

    def _wait_for_more(self) -> None:
        """End them once nothing was asked for a while."""
        if self._engine is not None:
            self._stop_timer()
            self._timer = Timer(min(self.options.idle, TIMEOUT_MAX), self._close_if_idle)
            self._timer.daemon = True
            self._timer.start()

    def _close_if_idle(self) -> None:
        with self._lock:  # which whoever asks holds: then the timer was stopped while it waited here
            idle = self._timer is current_thread()
        if idle:
            self.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answer(self, sightings: Sequence[Sighting], known: str) -> str:
        """Decide what can be decided beyond a bundle that is known; the digest of the bundle that then holds."""
        # Who only looks up waits for nobody, and needs not be able to write; nor who finds all decided.
        if not self.options.seconds or not self._wanted(sightings, self.store.bundle(known)):
            return known
        with self.store.lock(self.options.patience):
            bundle = self.store.bundle(self.store.state().bundle)
            before = set(self._own)
            # A product whose longest form is the library's is asked about again without its epilogue.
            while (wanted := self._wanted(sightings, bundle)) and self._left > 0 and not self._failed:
                count = len(self._own)
                bundle = self._tuned(wanted, self._left) or bundle
                if len(self._own) - count < len(wanted):
                    break
            if not wanted and self._left > 0 and not self._failed:
                around = self._around(sightings, bundle, self._own - before)
                bundle = self._tuned(around, self._left * _FOR_OTHER_SIZES) or bundle
            return bundle.digest if bundle is not None else ""

    def _tuned(self, wanted: Sequence[GemmProblem], seconds: float) -> Bundle | None:
        """The bundle with what was decided of some problems; None if nothing was.

        What is decided is kept whatever ends the contests, and every `_KEPT` while they last: a process may be killed.
        """
        bundle, found = None, list[Outcome]()
        kept = time.monotonic()
        try:
            with closing(self._contests(wanted, seconds)) as outcomes:
                for outcome in outcomes:
                    found.append(outcome)
                    if time.monotonic() - kept > _KEPT:
                        bundle, kept = self._kept(found), time.monotonic()
        finally:
            bundle = self._kept(found) or bundle
        return bundle

    def _kept(self, found: list[Outcome]) -> Bundle | None:
        """The bundle with outcomes that were found, which are taken out; None if there are none."""
        if not found:
            return None
        bundle = self.store.add(found, ArtifactStore(self._artifacts), self.device.arch, self.device.name)
        self._own |= {outcome.problem for outcome in found}
        self.summary.tuned |= self._own
        found.clear()
        return bundle

    def _contests(self, wanted: Sequence[GemmProblem], seconds: float) -> Generator[Outcome, None, None]:
        """The outcomes of as many contests as there is time for."""
        if not wanted:
            return
        deadline = time.monotonic() + seconds
        with self._charged(), closing(self._entered(wanted, deadline)) as entered:
            for engine, entry in entered:
                outcome = self._contest(engine, entry, deadline)
                if outcome is not None:
                    yield outcome

    @contextmanager
    def _charged(self) -> Iterator[None]:
        """Take from the budget what is done here; if that fails, nothing more is tried in this process."""
        started = time.monotonic()
        try:
            yield
        except TilescoutError as error:
            self._failed = one_line(error)
            _LOG.warning("nothing more is tuned in this process: %s", self._failed)
        finally:
            self.summary.seconds += time.monotonic() - started

    @property
    def _left(self) -> float:
        """The seconds that are left of the budget."""
        return self.options.seconds - self.summary.seconds

    def _entered(self, wanted: Sequence[GemmProblem], deadline: float) -> Generator[tuple[Engine, Entry], None, None]:
        """The entries of products, one after another until a deadline, and the engine that measures them."""
        # What is next is chosen while the engine starts, which takes seconds, and while the GPU measures.
        with ThreadPoolExecutor(1) as entering:
            engine, chosen = self._started_choosing(wanted, entering)
            with complemented(engine, wanted) as searches:
                beside = {problem: each for each, problem in searches if each is not engine}

                pace = Pace(len(wanted), self.options.contest.candidates, deadline)

                def enter(problem: GemmProblem) -> Entry:
                    return self._enter(engine, problem, chosen.get(problem), beside.get(problem), pace.enter())

                with closing(_ahead(entering, enter, wanted, deadline)) as entries:
                    for entry in entries:
                        yield engine, entry
                        pace.leave(len(entry.candidates))

    def _started_choosing(
        self, wanted: Sequence[GemmProblem], entering: Executor
    ) -> "tuple[Engine, Mapping[GemmProblem, Future[list[Configuration]]]]":
        """The engine and, if it had to be started, the configurations that were chosen for products meanwhile."""
        meanwhile = wanted[: 1 + _AHEAD] if self._engine is None else ()
        choosing = {problem: entering.submit(self._chosen, problem) for problem in meanwhile}
        engine = self._started()
        return engine, {problem: future for problem, future in choosing.items() if not future.cancel()}

    def _chosen(self, problem: GemmProblem) -> list[Configuration]:
        return shortlist(self.template, problem, self.device, self.options.contest.candidates)

    def _enter(
        self,
        engine: Engine,
        problem: GemmProblem,
        chosen: "Future[list[Configuration]] | None",
        beside: Engine | None,
        count: int,
    ) -> Entry:
        """Have so many candidates of a product compiled, its complement's in the place of our last ones."""
        own = self._chosen(problem) if chosen is None else chosen.result()
        if beside is None:
            return enter(engine, problem, own[:count])
        options = self.options.contest
        wanted = min(options.others * count // options.candidates, count - 1)
        others = shortlist(beside.template, problem, self.device, wanted)
        return enter(engine, problem, own[: count - len(others)], beside, others)

    def _contest(self, engine: Engine, entry: Entry, deadline: float) -> Outcome | None:
        started = time.monotonic()
        try:
            outcome = decide(engine, entry, self.options.contest, deadline)
        except TilescoutError as error:
            self.summary.undecided[entry.problem] = one_line(error)
            _LOG.warning("%s stays the library's: %s", entry.problem, one_line(error))
            return None
        if outcome is not None:
            text = f"{outcome.choice}, {outcome.evidence.reason}"
            _LOG.info("%s: %s (in %.2f s)", entry.problem, text, time.monotonic() - started)
        return outcome

    def _started(self) -> Engine:
        self._stop_timer()
        if self._engine is None:
            if self._beside is not None:
                self._beside.close()
            self._engine = self._open()
        return self._engine

    def _wanted(self, sightings: Sequence[Sighting], bundle: Bundle | None) -> list[GemmProblem]:
        """The problems that must be decided, the product that is expected to take most of the time first."""
        found: Counter[GemmProblem] = Counter()
        for sighting in sightings:
            problem = self._undecided(sighting, bundle)
            if problem is not None:
                found[problem] += 1
        expected = {problem: count * Roofline.of(problem, self.device).time_us for problem, count in found.items()}
        return sorted(found, key=lambda problem: (-expected[problem], problem))

    def _around(
        self, sightings: Sequence[Sighting], bundle: Bundle | None, tuned: Set[GemmProblem]
    ) -> list[GemmProblem]:
        """Of products of unknown m that were tuned just now: other m at which they may be run, the nearest first."""
        found: dict[GemmProblem, tuple[float, float]] = {}
        for sighting in sightings:
            problem = self._shown(sighting, bundle)
            if not sighting.dynamic or problem not in tuned:
                continue
            for size in _SIZES:
                other = replace(problem, m=size)
                if _choice(bundle, other) is None and any(self._possible(Sighting((other,), dynamic=True))):
                    away = abs(math.log2(size / problem.m))
                    found[other] = away, -Roofline.of(other, self.device).time_us
        return sorted(found, key=lambda problem: (found[problem], problem))

    def _undecided(self, sighting: Sighting, bundle: Bundle | None) -> GemmProblem | None:
        """The problem of a product that is next to be decided; None if it is decided for a kernel, or wholly."""
        for problem in self._possible(sighting):
            choice = _choice(bundle, problem)
            if choice is None:
                return problem
            if choice is not Choice.LIBRARY:
                return None
        return None

    def _possible(self, sighting: Sighting) -> Iterator[GemmProblem]:
        for problem in sighting.problems:
            try:
                self.template.check(problem)
            except (ProblemError, SpaceError):
                continue
            yield problem

    def _request(self, sightings: Sequence[Sighting]) -> str:
        problems = sorted(
            {f"{problem}{' of any m' * sighting.dynamic}" for sighting in sightings for problem in sighting.problems}
        )
        return hashlib.sha256("\n".join([str(self.store.folder.name), *problems]).encode()).hexdigest()

    def _account(self, sightings: Sequence[Sighting], bundle: Bundle | None, why: str = "") -> None:
        counts: Counter[GemmProblem] = Counter()
        for sighting in sightings:
            counts[self._shown(sighting, bundle)] += 1
        self.summary.meet(counts, bundle)
        is_alone = self._beside is None and not why
        spent = f"the budget of {self.options.seconds:g} s was spent"
        asked = spent if self._left <= 0 else "the rank of the job that asked first did not decide it"
        why = why or self._failed or asked
        for problem in counts:
            if not is_alone and _choice(bundle, problem) is None:  # what is known was decided for the other graphs
                self.summary.decisions.pop(problem, None)
            if problem not in self.summary.decisions:
                possible = problem in set(self._possible(Sighting((problem,), dynamic=False)))
                reason = why if possible else f"{self.template.name} has no kernel for it"
                self.summary.undecided.setdefault(problem, reason)
        _LOG.info("%s", self.summary)

    def _shown(self, sighting: Sighting, bundle: Bundle | None) -> GemmProblem:
        """The form of a product that the account shows: the one that runs a tuned kernel, else the longest."""
        possible = list(self._possible(sighting)) or list(sighting.problems)
        decided = {problem: choice for problem in possible if (choice := _choice(bundle, problem)) is not None}
        tuned = (problem for problem, choice in decided.items() if choice is not Choice.LIBRARY)
        return next(tuned, None) or next(iter(decided), possible[0])


def _ahead(
    executor: Executor, enter: Callable[[GemmProblem], Entry], wanted: Sequence[GemmProblem], deadline: float
) -> Generator[Entry, None, None]:
    """The entries of products until a deadline. An executor makes them, up to `_AHEAD` ahead of the one asked for.

    At the end it begins nothing more, what it does is waited for, and nothing more is compiled of any entry.
    """
    entries = list[Future[Entry]]()
    try:
        for at in range(len(wanted)):
            if time.monotonic() >= deadline:
                break
            entries += [executor.submit(enter, each) for each in wanted[len(entries) : at + 1 + _AHEAD]]
            yield entries[at].result()
    finally:
        executor.shutdown(cancel_futures=True)
        for entry in entries:
            if not entry.cancelled() and entry.exception() is None:
                entry.result().drop()


def _choice(bundle: Bundle | None, problem: GemmProblem) -> Choice | None:
    return None if bundle is None else bundle.choice(problem)
