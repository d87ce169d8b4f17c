"""A tuner's process: it searches parts of spaces by its own code, and asks the referee to measure."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from tilescout.experiments.compare.asking import AskingEngine, Part, Racing, Trying
from tilescout.experiments.compare.autotuners import Autotuner
from tilescout.experiments.compare.contenders import parse_contender
from tilescout.experiments.compare.flashinfer import bucket
from tilescout.experiments.compare.processes import prepare_process
from tilescout.experiments.compare.ranked_list import RankedList
from tilescout.search.measure.measurement import Measurement, Status
from tilescout.search.samplers import check_sampler
from tilescout.spaces.devices import Device
from tilescout.spaces.errors import SamplerError, one_line
from tilescout.spaces.knobs import Configuration
from tilescout.spaces.processes import spawn_context
from tilescout.spaces.templates import KernelTemplate

TUNE, BUCKETED, DEFAULT = "tune.", "flashinfer.autotuner", "default"
"""How a tuner is named: ``tune.SAMPLER`` is the whole of ``tilescout tune``, the default and the race included.
``default`` tries nothing. Any other is a contender of `tilescout.experiments.compare.contenders`, which hands out the
fastest that it measured; FlashInfer's autotuner measures at another m, see `bucketed`."""

WHOLE_LIST = 10**6
AHEAD = 16  # in flight in a live search on 16 cores
FINAL_ROUNDS, FINAL_PAIRS = 12, 1


@dataclass(frozen=True)
class Play:
    """A search that is to be played.

    Attributes
    ----------
    tuner, problem, number, trials
        The tuner, the problem as it is printed, the number of the search, and most trials of one that is no list.
    """

    tuner: str
    problem: str
    number: int
    trials: int

    @property
    def seed(self) -> int:
        """The seed of all its randomness: the same for every tuner, another for every problem and search."""
        return int(np.random.SeedSequence([self.number, crc32(self.problem.encode())]).generate_state(1)[0])


@dataclass(frozen=True)
class Sent:
    """A problem's part of the space, as it is sent to a process.

    Attributes
    ----------
    problem, codes, default, library_us
        See `Part`; the codes are of shape [configurations, knobs].
    """

    problem: str
    codes: NDArray[np.int16]
    default: Configuration
    library_us: float


@dataclass(frozen=True)
class Outcome:
    """How a search ended.

    Attributes
    ----------
    answer
        The configuration that it hands out, as an index of the problem's part; None if it has none.
    seconds
        What the tuner took itself: wall-clock seconds less those in which it waited for the GPU.
    error
        Why it failed, in one line; empty if it did not.
    """

    answer: int | None
    seconds: float
    error: str = ""


@dataclass
class Asked:
    """All that a search had measured, and how long it waited.

    Attributes
    ----------
    ask
        Has a request done.
    ratios
        Times over the library's, by problem and index: of what was given up early, that of its one launch.
    waited
        Seconds.
    """

    ask: Callable[[Trying | Racing], Any]
    ratios: dict[tuple[str, int], float] = field(default_factory=dict)
    waited: float = 0.0

    def __call__(self, request: Trying | Racing) -> Any:
        begun = time.perf_counter()
        found = self.ask(request)
        self.waited += time.perf_counter() - begun
        if isinstance(request, Trying) and isinstance(found, Measurement):
            timed = found.timing is not None and found.status is Status.OK
            self.ratios[request.problem, request.index] = found.timing.ratio if found.timing and timed else np.inf
        return found

    def fastest(self, problem: str, count: int) -> list[int]:
        """So many of the fastest of a problem that were timed, the fastest first."""
        timed = {index: ratio for (name, index), ratio in self.ratios.items() if name == problem and ratio < np.inf}
        return sorted(timed, key=timed.__getitem__)[:count]


def bucketed(problem: str) -> str:
    """The problem at which FlashInfer profiles for a problem: its m is the next of FlashInfer's buckets."""
    rows, rest = problem.split("x", 1)
    return f"{bucket(int(rows))}x{rest}"


def searched_at(tuner: str, problem: str) -> str:
    """The problem at which a tuner measures."""
    return bucketed(problem) if tuner == BUCKETED else problem


def check_tuner(tuner: str) -> None:
    """Refuse a tuner that can't be played here, and import what it needs.

    Raises
    ------
    SamplerError
        With what is wrong or what to install.
    """
    if tuner.startswith(TUNE):
        check_sampler(tuner.removeprefix(TUNE))
    elif tuner != DEFAULT:
        parse_contender(tuner).check()


def played(play: Play, template: KernelTemplate, device: Device, parts: Mapping[str, Part], ask: Asked) -> int | None:
    """The index, in the problem's part, of what a tuner hands out; None if nothing that it tried was timed."""
    part = parts[play.problem]
    if play.tuner == DEFAULT:
        return part.space.index(part.default)
    if play.tuner.startswith(TUNE):
        return _tuned(play, AskingEngine(template, device, parts, ask, AHEAD), part)
    name = searched_at(play.tuner, play.problem)
    contender = parse_contender(play.tuner)
    trials = WHOLE_LIST if isinstance(contender, Autotuner | RankedList) else play.trials
    engine = AskingEngine(template, device, parts, ask)
    live = engine.recording(parts[name].space.problem)
    for index in contender.play(engine, parts[name].space.problem, trials, play.seed):
        if (name, index) not in ask.ratios:  # of a list, that says what is to be measured
            live.measurement(index)
    found = ask.fastest(name, contender.finalists)
    if len(found) > 1:
        again = ask(Racing(name, tuple(found), FINAL_ROUNDS, FINAL_PAIRS, play.seed))
        found = [found[int(np.log(again).mean(axis=0).argmin())]]
    return part.space.index(parts[name].space[found[0]]) if found else None


def _tuned(play: Play, engine: AskingEngine, part: Part) -> int | None:
    """The answer of ``tilescout tune``."""
    from tilescout.search.engines.evaluator import Evaluator
    from tilescout.search.tuning.budget import Budget
    from tilescout.search.tuning.study import TuneOptions, run_study

    sampler = play.tuner.removeprefix(TUNE)
    with Evaluator(engine, part.space.problem) as evaluator, TemporaryDirectory(prefix="tilescout-") as folder:
        best = run_study(evaluator, TuneOptions(sampler, play.seed, Budget(play.trials), Path(folder))).best
    return best.index if best is not None else None


def serve(connection: Connection, template: KernelTemplate, device: Device, tuners: Sequence[str]) -> None:
    """Play searches until the referee hangs up; parts of problems are sent before the searches of them."""
    prepare_process()
    for tuner in tuners:
        check_tuner(tuner)
    parts: dict[str, Part] = {}

    def ask(request: Trying | Racing) -> Any:
        connection.send(request)
        return connection.recv()

    while True:
        try:
            message = connection.recv()
        except EOFError:
            return
        if isinstance(message, Sent):
            part = template.space_of(message.codes, template.parse(message.problem), device)
            if part is None:
                raise SamplerError(f"nothing of the part of {message.problem} is legal")
            parts[message.problem] = Part(part, message.default, message.library_us)
            continue
        connection.send(_outcome(message, template, device, parts, Asked(ask)))


def _outcome(play: Play, template: KernelTemplate, device: Device, parts: Mapping[str, Part], ask: Asked) -> Outcome:
    begun, error, answer = time.perf_counter(), "", None
    try:
        answer = played(play, template, device, parts, ask)
    except Exception as failed:  # a tuner that raises is an outcome
        error = one_line(f"{type(failed).__name__}: {failed}")
    return Outcome(answer, time.perf_counter() - begun - ask.waited, error)


class Player:
    """A process that plays searches, one after the other.

    Parameters
    ----------
    template, device
        The kernels, and the GPU.
    tuners
        What it will play; their modules are imported at once.
    """

    def __init__(self, template: KernelTemplate, device: Device, tuners: Sequence[str]) -> None:
        self._asked = (template, device, tuple(tuners))
        self._sent: list[Sent] = []
        self._start()

    def _start(self) -> None:
        context = spawn_context()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, *self._asked), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, parts: Sequence[Sent]) -> None:
        """Tell it of the problems that the next searches are of."""
        self._sent = list(parts)
        for part in parts:
            self._connection.send(part)

    def play(self, play: Play, answer: Callable[[Trying | Racing], Any], seconds: float) -> Outcome:
        """Have a search played, and answer its requests; it is ended when it lasts longer than so many seconds."""
        end = time.monotonic() + seconds
        self._connection.send(play)
        while self._connection.poll(max(end - time.monotonic(), 0)):
            try:
                message = self._connection.recv()
            except EOFError:
                self._restart()
                return Outcome(None, 0.0, "its process died")
            if isinstance(message, Outcome):
                return message
            self._connection.send(answer(message))
        self._restart()
        return Outcome(None, seconds, f"not done after {seconds:g} s")

    def _restart(self) -> None:
        self.close()
        self._start()
        self.send(self._sent)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()
        self._connection.close()
