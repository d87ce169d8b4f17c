"""Share GPUs between several searches: the next one is the search that expects to gain the most."""

import threading
import time
from bisect import insort
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilescout.search.tuning.budget import Budget


@dataclass(frozen=True)
class Claim:
    """The request of a search for a turn.

    Attributes
    ----------
    trials, gpu_seconds
        Its finished trials, and the seconds of GPU time that they took.
    gain
        By how much its next trial is expected to lower the best time, relative; None if its strategy can't say.
    """

    trials: int
    gpu_seconds: float
    gain: float | None

    def rank(self) -> tuple[float, ...]:
        """Orders claims, the first served first.

        A search that has tried nothing comes first, so that none is left without its default. Next is one that can't
        say what it expects; of several the one that had the least GPU time, so that they share it evenly. Then comes
        the largest expected gain a second of GPU time, at what a trial of that search took so far.
        """
        if self.trials == 0:
            return (0.0,)
        if self.gain is None:
            return (1.0, self.gpu_seconds)
        return (2.0, -self.gain * self.trials / max(self.gpu_seconds, 1e-9))


@dataclass(frozen=True)
class Turn:
    """The use of a GPU for so many more trials. With 0 trials, the budget is spent and only the race is left.

    Attributes
    ----------
    gpu, trials
        Which GPU, and how many trials.
    gpu_seconds, seconds
        What is left of the budget of all searches, of GPU time an even part for each that may run at the same time, and
        by the clock; None where that is not limited.
    looks
        Whether it is there only to see what earlier runs have found, and another one follows.
    """

    gpu: int
    trials: int
    gpu_seconds: float | None = None
    seconds: float | None = None
    looks: bool = False

    def budget(self, claim: Claim, whole: bool) -> Budget:
        """The budget of a search within the turn, whose request was `claim`; see `Budget.whole`."""
        gpu_seconds = None if self.gpu_seconds is None else claim.gpu_seconds + self.gpu_seconds
        return Budget(claim.trials + self.trials, gpu_seconds, self.seconds, whole)


class StoppedError(KeyboardInterrupt):
    """The searches were told to end: to one in a thread of its own, this is Ctrl-C."""


class Line:
    """A lock that several may hold: of those that wait for it, the one of the least rank is next.

    Parameters
    ----------
    places
        How many may hold it at the same time.
    """

    def __init__(self, places: int = 1) -> None:
        self._waiting: list[tuple[int, ...]] = []
        self._free = places
        self._changed = threading.Condition()

    @contextmanager
    def held(self, *rank: int) -> Iterator[None]:
        """Wait for the lock, and hold it; nobody else may have the same rank at the same time."""
        with self._changed:
            insort(self._waiting, rank)
            self._changed.wait_for(lambda: self._free > 0 and self._waiting[0] == rank)
            del self._waiting[0]
            self._free -= 1
            self._changed.notify_all()  # there may be a place for the next, too
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()


class Turns:
    """Hands GPUs to searches in threads, within a budget that they share.

    With one seat a GPU is one search's at a time. It goes to the best claim once every search that does not run has
    made one: with one GPU, who is next does not depend on which thread is faster.

    With several seats as many searches share a GPU: while one of them waits for a compiler, it measures for another. A
    seat that is free goes to the best claim that there is; none has a second turn before all have had their first. Each
    turn has a part of the GPU seconds to itself. Where those that run have all of them, a claim waits for what they
    leave.

    Searches that go on with studies of an earlier run each have a turn to look at what these hold. None goes on before
    all have: what was spent before is known then. Trials of earlier runs count as those of the first turn.

    Parameters
    ----------
    searches, gpus
        How many there are of each.
    budget
        Of all searches together. Each has a trial for its default, also where that exceeds the budget.
    slice
        Trials of a turn at most. The first turn of a search is its even part of the budget's trials, if that is less.
    seats
        Searches that may have a GPU at the same time.
    resumed
        Whether the searches may have trials of an earlier run.
    """

    def __init__(
        self, searches: int, gpus: int, budget: Budget, slice: int, seats: int = 1, resumed: bool = False
    ) -> None:
        self._budget, self._slice = budget, slice
        self._searches, self._alone = searches, seats == 1
        self._unseen = set(range(searches)) if resumed else set[int]()  # those that have not looked
        self._begun: set[int] = set()  # those that had their first turn, in an earlier run too
        self._gone: set[int] = set()  # those that left
        self._free = list(range(gpus)) * seats
        self._seats = len(self._free)
        self._idle = searches  # those that run no turn
        self._claims: dict[int, Claim] = {}
        self._granted: dict[int, Turn] = {}
        self._known: dict[int, Claim] = {}  # the last claim of every search
        self._promised: dict[int, int] = {}  # trials of the turns that run
        self._parts: dict[int, float] = {}  # GPU seconds of the same
        self._last: dict[int, int] = {}  # the last GPU of every search
        self._started = time.monotonic()
        self._stopped = False
        self._changed = threading.Condition()

    @property
    def first(self) -> int:
        """Trials of the first turn of a search, where the budget has them."""
        trials = self._budget.trials
        return self._slice if trials is None else max(1, min(self._slice, trials // self._searches))

    def ask(self, search: int, claim: Claim) -> int | None:
        """Claim a turn: the GPU of it, or None where `take` has to wait for one."""
        with self._changed:
            self._claims[search] = self._known[search] = claim
            self._grant()
            return self._granted[search].gpu if search in self._granted else None

    def take(self, search: int, claim: Claim) -> Turn:
        """Wait for a turn, which may have been asked for.

        Raises
        ------
        StoppedError
            If `stop` was called.
        """
        with self._changed:
            if search not in self._granted and search not in self._claims:
                self.ask(search, claim)
            self._changed.wait_for(lambda: search in self._granted or self._stopped)
            if self._stopped:
                raise StoppedError
            return self._granted.pop(search)

    def give(self, search: int, turn: Turn, claim: Claim) -> None:
        """End a turn, with what was found so far."""
        with self._changed:
            self._known[search] = claim
            self._take_back(search, turn)
            self._idle += 1
            if turn.looks:
                self._unseen.discard(search)
                if claim.trials >= self.first:
                    self._begun.add(search)

    def leave(self, search: int, turn: Turn | None, claim: Claim) -> None:
        """Leave for good, with what was found, from within a turn or without one."""
        with self._changed:
            self._known[search] = claim
            self._gone.add(search)
            self._unseen.discard(search)
            self._claims.pop(search, None)
            turn = self._granted.pop(search, turn)  # one that was asked for and never begun
            self._changed.notify_all()
            if turn is not None:
                self._take_back(search, turn)
            else:
                self._idle -= 1
            self._grant()

    def stop(self) -> None:
        """Have every search end that asks for a turn, or goes on."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def go_on(self) -> None:
        """Nothing, within a turn.

        Raises
        ------
        StoppedError
            If `stop` was called.
        """
        if self._stopped:
            raise StoppedError

    def _take_back(self, search: int, turn: Turn) -> None:
        self._free.append(turn.gpu)
        self._promised.pop(search, None)
        self._parts.pop(search, None)

    def _grant(self) -> None:
        while self._free and (claiming := self._claiming()):
            search = min(claiming, key=lambda each: (self._claims[each].rank(), each))
            if search in self._begun and self._all_promised():
                return  # what the turns that run leave of their parts is known when they end
            claim = self._claims.pop(search)
            # Where it was before, its problem is still set up.
            last = self._last.get(search)
            gpu = last if last in self._free else self._free[0]
            self._free.remove(gpu)
            self._last[search] = gpu
            turn = self._granted[search] = self._turn(search, gpu)
            self._promised[search], self._parts[search] = turn.trials, turn.gpu_seconds or 0.0
            self._known[search] = claim
            self._idle -= 1
            self._changed.notify_all()

    def _turn(self, search: int, gpu: int) -> Turn:
        """The next turn of a search."""
        if search in self._unseen:
            return Turn(gpu, 0, looks=True)
        if left := self._left(search):
            turn = Turn(gpu, left, *self._time_left())
        else:  # the default in any case
            turn = Turn(gpu, int(search not in self._begun and not self._known[search].trials))
        self._begun.add(search)
        return turn

    def _claiming(self) -> Collection[int]:
        """The searches among which a GPU is handed out now."""
        ready = self._claims.keys()
        if self._alone and len(ready) < self._idle:
            return ()
        if ahead := self._unseen or self._due():
            return ready & ahead
        return ready

    def _due(self) -> set[int]:
        """Searches that have not had their first turn."""
        return set(range(self._searches)) - self._begun - self._gone

    def _time_left(self) -> tuple[float | None, float | None]:
        """The GPU seconds of a turn that begins, its part of those left, and the seconds left; None without a limit."""
        budget, gone = self._budget, time.monotonic() - self._started
        more = min(self._seats, self._searches - len(self._gone)) - len(self._parts)  # searches that may begin a turn
        unspent = self._unspent()
        left = None if unspent is None else max(0.0, unspent - sum(self._parts.values())) / max(1, more)
        return left, None if budget.seconds is None else max(0.0, budget.seconds - gone)

    def _unspent(self) -> float | None:
        spent = sum(claim.gpu_seconds for claim in self._known.values())
        return None if self._budget.gpu_seconds is None else self._budget.gpu_seconds - spent

    def _all_promised(self) -> bool:
        """Whether turns that run have all GPU seconds that are left."""
        unspent = self._unspent()
        if unspent is None or not self._parts:  # where none runs, none ends: a claim would wait for ever
            return False
        return 0.0 < unspent <= sum(self._parts.values()) + 1e-9  # of rounding

    def _left(self, search: int) -> int:
        """The trials of the next turn of a search."""
        if 0.0 in self._time_left():
            return 0
        # Of those without a first turn, what they lack of it.
        lacked = {each: max(0, self.first - self._trials(each)) for each in self._due()}
        if self._budget.trials is None:
            return lacked.get(search, self._slice)
        left = self._budget.trials - sum(map(self._trials, self._known)) - sum(self._promised.values())
        if search in lacked:
            return max(0, min(lacked[search], left // len(lacked)))
        return max(0, min(self._slice, left - sum(lacked.values())))

    def _trials(self, search: int) -> int:
        """The trials that a search has, as far as is known."""
        return self._known[search].trials if search in self._known else 0
