"""Run searches on replayed tables, on all cores; each finished search is kept on disk."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from tilescout.experiments.compare.contender import Contender
from tilescout.experiments.compare.contenders import parse_contender
from tilescout.experiments.compare.processes import no_room, prepare_process, scheduled
from tilescout.experiments.compare.truth import Truth
from tilescout.search.engines.replay import ReplayEngine
from tilescout.search.studies.journal import Journal, JournalForm, never
from tilescout.search.tables.shipped import check_held, template_of
from tilescout.search.tables.table import Table
from tilescout.spaces.closing import Closing
from tilescout.spaces.errors import MALFORMED, StoreError, TableError, TilescoutError, one_line
from tilescout.spaces.problems import Problem
from tilescout.spaces.processes import context_for
from tilescout.spaces.texts import number_of, printable, printable_line


@dataclass(frozen=True)
class Case:
    """A problem of a table.

    Attributes
    ----------
    table
        The table's file.
    sha256
        The checksum of its rows.
    problem
        The problem, as it is printed.
    """

    table: str
    sha256: str
    problem: str

    @property
    def label(self) -> str:
        """For people: the table and the problem."""
        return f"{Path(self.table).stem} {self.problem}"


@dataclass(frozen=True)
class Run:
    """One search that is to be run.

    Attributes
    ----------
    contender
        The strategy, as it is asked for.
    case
        What it searches.
    trials
        Most trials.
    seed
        The number of the search among those of the strategy on the case.
    """

    contender: str
    case: Case
    trials: int
    seed: int

    @property
    def entropy(self) -> int:
        """The seed of all its randomness.

        It is the same for every strategy, and differs from problem to problem. Problems of a table have mostly the same
        configurations. With one seed for all, a strategy would draw the same configurations on every problem: luck
        would not average out over the problems, and intervals would be too narrow.
        """
        case = crc32(f"{self.case.sha256} {self.case.problem}".encode())
        return int(np.random.SeedSequence([self.seed, case]).generate_state(1)[0])


@dataclass(frozen=True)
class Trace:
    """A search that was run.

    Attributes
    ----------
    run
        Which one.
    indices
        The configurations that it tried, in order, as indices of the replay's space.
    seconds
        Wall-clock seconds of the search. Replaying takes next to none of them, so they are the strategy's own.
    error
        Why it failed, in one line; empty if it did not.
    """

    run: Run
    indices: tuple[int, ...]
    seconds: float
    error: str = ""


def open_case(case: Case) -> tuple[Truth, ReplayEngine, Problem]:
    """The truth about a case, the engine that answers for it, and its problem.

    Raises
    ------
    TilescoutError
        If the table can't be read, or holds nothing that can be replayed.
    """
    table = _table(case.table)
    problem = table.problem(case.problem)
    engine = ReplayEngine(table, template_of(table))
    return Truth.of(engine.recording(problem)), engine, problem


def find_cases(tables: Sequence[Path], problems: Sequence[str]) -> list[Case]:
    """The problems of some tables, all or those named; a table that is named twice, or a copy of it, counts once.

    Raises
    ------
    TableError
        If a table can't be read, a named problem is in none, two have one name, or nothing is left.
    """
    found: dict[tuple[str, str], Case] = {}
    for path in tables:
        table = Table.read(path)
        for problem in map(str, table.problems):
            sha256 = table.card.sha256
            found.setdefault((sha256, problem), Case(str(path.absolute()), sha256, problem))
    cases = list(found.values())
    check_held(problems, [case.problem for case in cases])
    chosen = [case for case in cases if not problems or case.problem in problems]
    if not chosen:
        raise TableError("there is no table to compare on: name one with --table")
    labelled: dict[str, Case] = {}
    for case in chosen:
        if (other := labelled.setdefault(case.label, case)) is not case:
            raise TableError(
                f"{other.table} and {case.table} both hold {case.problem}, and results would tell it by one name, "
                f"{case.label}: rename one of the files"
            )
    return chosen


def run_one(run: Run, contender: Contender | None = None) -> Trace:
    """Run one search, of the contender that its name stands for unless one is given.

    A strategy that raises is an outcome, as a configuration that fails is.
    """
    _, engine, problem = _opened(run.case)
    if contender is None:
        contender = parse_contender(run.contender)
    started = time.perf_counter()
    try:
        indices = tuple(map(int, contender.play(engine, problem, run.trials, run.entropy)))
    except Exception as error:
        return Trace(run, (), time.perf_counter() - started, one_line(f"{type(error).__name__}: {error}"))
    return Trace(run, indices, time.perf_counter() - started)


def run_all(
    runs: Sequence[Run], processes: int, timeout: float, contenders: Mapping[str, Contender] | None = None
) -> Iterator[Trace]:
    """Run searches in processes of their own; yield each as it ends.

    Parameters
    ----------
    runs
        The searches.
    processes
        How many at a time.
    timeout
        Seconds after which a search is killed and counts as failed.
    contenders
        By name; a name that is missing is parsed.

    Raises
    ------
    ProcessesError
        If the processes can't be started.
    """
    from pebble import ProcessPool

    known = contenders or {}
    pool = ProcessPool(max_workers=processes, context=context_for(known), initializer=prepare_process)
    with pool:
        pending: dict[Future[Trace], Run] = {}
        queue = iter(runs)
        try:
            while True:
                # A few more than there are processes: no process waits, and what is not started can be forgotten.
                for run in queue:
                    asked = (run, known.get(run.contender))
                    pending[scheduled(pool, run_named, asked, timeout)] = run
                    if len(pending) >= 2 * processes:
                        break
                if not pending:
                    return
                done, _ = wait(pending, return_when=FIRST_COMPLETED)
                for future in done:
                    yield _outcome(future, pending.pop(future), timeout)
        finally:
            if pending:
                pool.stop()


def run_named(run: Run, contender: Contender | None) -> Trace:
    """A search in a process of its own, whose warnings name it; each is told once, and not again for every seed."""
    logger, handler = logging.getLogger("tilescout"), logging.StreamHandler()
    handler.setFormatter(_Named(run))
    handler.addFilter(lambda record: _is_first(run.contender, run.case, record.name, record.lineno))
    logger.addHandler(handler)
    before, logger.propagate = logger.propagate, False
    try:
        return run_one(run, contender)
    finally:
        logger.propagate = before
        logger.removeHandler(handler)


class _Named(logging.Formatter):
    """Begins a line with the search that it is of."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self._run = run

    def format(self, record: logging.LogRecord) -> str:
        text = f"{self._run.contender} on {self._run.case.label}: {super().format(record)}"
        return printable(text) if record.exc_info else printable_line(text)


def _is_first(*warning: object) -> bool:
    """Whether this process has not told this yet."""
    first = warning not in _TOLD
    _TOLD.add(warning)
    return first


_TOLD: set[tuple[object, ...]] = set()


def _outcome(future: "Future[Trace]", run: Run, timeout: float) -> Trace:
    try:
        return future.result()
    except TilescoutError:
        raise
    except TimeoutError:
        return Trace(run, (), timeout, f"not done after {timeout:g} s")
    except BrokenProcessPool as error:
        raise no_room(error) from error
    except Exception as error:  # the process died
        return Trace(run, (), 0.0, one_line(f"{type(error).__name__}: {error}"))


FORM = JournalForm("the file of searches", "run", separators=(", ", ": "))
"""The form of ``runs.jsonl``."""


class FinishedRuns(Closing):
    """Finished searches in a file, one a line, so that a comparison that was killed goes on where it was.

    Parameters
    ----------
    path
        The file; its folder is made if it does not exist.
    resume
        Keep the searches that are there.
    anew
        Drop the searches that are there. With neither, there must be none.

    Raises
    ------
    StoreError
        If the file can't be read or written, is something else, or has searches that are neither to be kept nor to be
        dropped.
    """

    def __init__(self, path: Path, resume: bool, anew: bool = False) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._journal = Journal(path, FORM, never, new=anew)
        except (OSError, StoreError) as error:
            raise StoreError(f"can't use {path}: {one_line(error)}; choose another folder with --out") from error
        try:
            self.traces = [_trace(record) for record in self._journal.earlier]
        except (StoreError, *MALFORMED) as error:
            self.close()
            raise StoreError(f"can't use {path}: {one_line(error)}; choose another folder with --out") from error
        if self.traces and not resume:
            self.close()
            searches = number_of(len(self.traces), "search", "searches")
            raise StoreError(
                f"{path.parent} has {searches} of a comparison: keep them with --resume, drop them "
                "with --anew, or choose another folder with --out"
            )

    def check(self, sizes: Mapping[Case, int]) -> None:
        """Refuse searches that tried what a problem does not have.

        Parameters
        ----------
        sizes
            How many configurations each problem has.

        Raises
        ------
        StoreError
            If there is one.
        """
        for trace in self.traces:
            if trace.run.case in sizes and not all(0 <= index < sizes[trace.run.case] for index in trace.indices):
                raise StoreError(
                    f"can't use {self._path}: a search of {trace.run.case.label} tried a configuration that the table "
                    "does not have; choose another folder with --out"
                )

    def left(self, runs: Iterable[Run]) -> list[Run]:
        """Those of `runs` that have not succeeded yet."""
        done = {trace.run for trace in self.traces if not trace.error}
        return [run for run in runs if run not in done]

    def take(self, traces: Iterable[Trace], on_trace: Callable[[Trace], None]) -> None:
        """Append searches as they end."""
        for trace in traces:
            self._journal.append([asdict(trace)])
            self.traces.append(trace)
            on_trace(trace)

    def close(self) -> None:
        """Let others open the file."""
        self._journal.close()


def runs_of(contenders: Sequence[Contender], cases: Sequence[Case], trials: int, seeds: int) -> list[Run]:
    """The searches of a comparison."""
    return [
        Run(contender.name, case, trials, seed)
        for contender in contenders
        for case in cases
        for seed in range(min(seeds, contender.seeds))
    ]


def played_for(run: Run, deterministic: Collection[tuple[str, str]]) -> Run:
    """The search that stands for this one: of a contender that is deterministic on its table, the one of seed 0."""
    return replace(run, seed=0) if (run.contender, run.case.table) in deterministic else run


@cache
def _table(path: str) -> Table:
    return Table.read(Path(path))


@cache
def _opened(case: Case) -> tuple[Truth, ReplayEngine, Problem]:
    return open_case(case)


def _trace(record: Mapping[str, Any]) -> Trace:
    run = record["run"]
    case = Case(**run["case"])
    trace = Trace(Run(**{**run, "case": case}), tuple(record["indices"]), record["seconds"], record["error"])
    texts = (trace.run.contender, case.table, case.sha256, case.problem, trace.error)
    numbers = (trace.run.trials, trace.run.seed, *trace.indices)
    if not all(isinstance(text, str) for text in texts) or not all(type(number) is int for number in numbers):
        raise TypeError("a text or number of a search is something else")
    if not 0 <= trace.seconds < float("inf"):
        raise ValueError("the seconds of a search are negative, or without end")
    return trace
